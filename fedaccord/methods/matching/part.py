"""RM: representation matching (Eq. 1 and 2). Each client also rebuilds the received model's activations.

theta_i, the matching layers, is trained along with the model and kept by the client; it never travels.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fedaccord.core.batches import Batch, mapped
from fedaccord.core.params import load_params, read_params
from fedaccord.core.protocols import OWN, Beginning, Built, ClientPart, End, Outgoing, Part, Slot, Slots, Work
from fedaccord.core.records import Params
from fedaccord.core.seeds import global_seed
from fedaccord.core.settings import at_least, hyper, one_of, setting
from fedaccord.methods.matching.activations import record, recording
from fedaccord.methods.matching.describe import matching_report
from fedaccord.methods.matching.layers import Matching


class MatchingWork(Work):
    """The term rm_weight * L_M of one client in one round."""

    def __init__(self, at: Beginning, part: "MatchingPart"):
        self.model, self.part, self.weight = at.model, part, at.hyper["rm_weight"]
        self.trained: Sequence[nn.Module] = (part.matching,)
        self.shared: Sequence[nn.Module] = (part.frozen,)

    @contextmanager
    def watch(self, inputs: Batch) -> Iterator[None]:
        if not self.weight:
            yield
            return
        with recording(self.model, inputs, self.part.matching.layers) as recorder:
            yield
        self.recorder = recorder

    def term(self, inputs: Batch, output: Any, targets: Batch) -> Tensor | None:
        """Eq. 2, second term: return rm_weight * L_M(x; w_i, w, theta_i)."""
        if not self.weight:
            return None
        part = self.part
        trained = self.recorder.finished(output, part.matching.layers)
        with torch.no_grad():
            some = mapped(lambda x: x[: part.batch], inputs)
            _, fixed = record(part.frozen, some, part.matching.layers, positions=False)
        return self.weight * part.matching.loss(trained, fixed)


class MatchingPart(ClientPart):
    """The client side of representation matching, for one model."""

    stacks = True

    def __init__(self, built: Built):
        settings = built.settings
        self.frozen = copy.deepcopy(built.model).eval().requires_grad_(False)
        layers = layer_names(settings["rm_layers"])
        self.matching = Matching(self.frozen, built.example, layers, settings["rm_kernel"], settings["rm_step"])
        if any(is_channels_last(weight) for weight in built.model.parameters()):
            self.matching.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.batch = settings["rm_batch"] or None
        self.fresh = settings["rm_memory"] == "fresh"
        self.used = built.uses("rm_weight")  # if not even a tuner may give it a weight, theta_i is not trained

    def begin(self, at: Beginning) -> Work:
        load_params(self.frozen, at.model.state_dict())  # what was received, and the client's own part if it has one
        if "theta" in at.kept:
            load_params(self.matching, at.kept["theta"])
        else:
            with global_seed(at.seed, "matching", at.round if self.fresh else 0, at.client):
                self.matching.reset_parameters()
        return MatchingWork(at, self) if self.used else Work()

    def finish(self, end: End, work: Work) -> Outgoing:
        return Outgoing() if self.fresh else Outgoing(kept={"theta": self.theta()})

    def theta(self) -> Params:
        return {name: value.cpu() for name, value in read_params(self.matching).items()}

    def own_template(self) -> Params:
        return {} if self.fresh else self.theta()


class RepresentationMatching(Part):
    name = "RM"
    about = "each client also rebuilds the received model's activations from its own (representation matching)"
    cost = 2.0
    settings = (
        hyper(at_least(0, "rm_weight", 1e-4, "Weight of the matching loss, Eq. 1."), axis="1e-5..1e-3/5 log"),
        setting("rm_layers", "", "Layers of interest by name, with commas (found if empty; see `fedaccord matching`)."),
        at_least(0, "rm_kernel", 0, "Size of the matching convolutions (0: that of the layer they reverse)."),
        at_least(0, "rm_step", 0.03, "Size of theta_i's gradients (0: as the weighted loss gives them).", printed=0.0),
        at_least(0, "rm_batch", 16, "Examples of a mini-batch that are matched (0: all).", printed=0),
        one_of(("persistent", "fresh"), "rm_memory", "persistent", "Whether theta_i is kept or starts anew each round"),
    )
    slots = Slots(client=(Slot("theta", OWN),))

    def client(self, built: Built) -> ClientPart:
        return MatchingPart(built)

    def explain(self, model: nn.Module, inputs: Batch, settings: Mapping[str, Any]) -> str:
        """Return a table of what matching would do to this model."""
        return matching_report(model, inputs, layer_names(settings["rm_layers"]), settings["rm_kernel"])


def layer_names(text: str) -> list[str] | None:
    """Return the layers of interest that were named by hand, or None if they are to be found."""
    return [name.strip() for name in text.split(",") if name.strip()] or None


def is_channels_last(weight: Tensor) -> bool:
    return weight.dim() == 4 and not weight.is_contiguous() and weight.is_contiguous(memory_format=torch.channels_last)
