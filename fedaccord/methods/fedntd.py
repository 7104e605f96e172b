"""FedNTD: not-true distillation (Lee et al., 2022).

A client forgets the classes that it does not have. So beside the cross-entropy it distils what the received model says
of all classes but the true one: with q and q_g the softmax of both models' scores over the classes c != y, at
temperature tau,
    L = L_CE + beta L_NTD,      L_NTD = tau^2 sum_{c != y} q_g(c) log (q_g(c) / q(c))
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div

from fedaccord.core.batches import Batch, output_of
from fedaccord.core.errors import SettingsError
from fedaccord.core.params import load_params
from fedaccord.core.protocols import Beginning, Built, ClientPart, Part, Work
from fedaccord.core.settings import above, at_least, hyper


class DistillingWork(Work):
    """The term beta L_NTD of one client in one round."""

    def __init__(self, at: Beginning, part: "Distilling"):
        self.part, self.weight = part, at.hyper["ntd_weight"]
        self.shared: Sequence[nn.Module] = (part.received,)

    def term(self, inputs: Batch, output: Any, targets: Batch) -> Tensor:
        with torch.no_grad():
            said = output_of(self.part.received, inputs)
        tau = self.part.temperature
        own, other = (not_true(scores, targets).div(tau).log_softmax(1) for scores in (output, said))
        # tau^2 is in FedNTD's code of 2022 and was not in earlier code; with its tau = 1 there is no difference
        return self.weight * tau**2 * kl_div(own, other, reduction="batchmean", log_target=True)


def not_true(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the scores of all classes but the true one, (examples, classes - 1); the last class takes its place."""
    # a mask would give a shape that depends on values, which a stack of clients cannot have
    last = scores.shape[1] - 1
    places = torch.arange(last, device=scores.device).expand(len(scores), last)
    return scores.gather(1, torch.where(places == targets.unsqueeze(1), last, places))


class Distilling(ClientPart):
    stacks = True

    def __init__(self, built: Built):
        self.received = copy.deepcopy(built.model).eval().requires_grad_(False)
        self.temperature = built.settings["ntd_temperature"]
        with torch.no_grad():
            output = output_of(self.received, built.example)
        if not isinstance(output, Tensor) or output.dim() != 2 or output.shape[1] < 3:
            given = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
            raise SettingsError(f"FedNTD distils scores of three classes or more, (examples, classes), not {given}")

    def begin(self, at: Beginning) -> Work:
        load_params(self.received, at.model.state_dict())
        return DistillingWork(at, self) if at.hyper["ntd_weight"] else Work()


class FedNTD(Part):
    name = "FedNTD"
    about = "clients also distil what the received model says of all classes but the true one"
    cost = 1.62
    settings = (
        hyper(at_least(0, "ntd_weight", 1.0, "beta, the weight of not-true distillation."), axis="0.1..10/5 log"),
        above(0, "ntd_temperature", 1.0, "tau, the temperature of not-true distillation."),
    )

    def client(self, built: Built) -> ClientPart:
        return Distilling(built)
