"""MOON: model-contrastive learning (Li, He and Song, 2021, Algorithm 1, lines 14 to 18).

With z what a client's model makes of an example, z_glob what the received model makes of it and z_prev what the
client's own model of its last round makes of it, all of unit length, the client adds to its loss
    mu * -log( exp(z z_glob / tau) / (exp(z z_glob / tau) + exp(z z_prev / tau)) )
which pulls it towards the received model and away from where its own data took it before.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, softplus

from fedaccord.core.batches import Batch
from fedaccord.core.errors import MatchingError
from fedaccord.core.params import load_params
from fedaccord.core.protocols import STATE, Beginning, Built, ClientPart, End, Outgoing, Part, Slot, Slots, Work
from fedaccord.core.settings import above, at_least, hyper
from fedaccord.methods.matching.activations import Activation, Event, observe, record, recording


def representation(events: Sequence[Event]) -> Tensor:
    """Return z, the activation of the last layer of interest below the top, one row per example."""
    # MOON: the output of a projection head of its own. HERE: that of the last non-linearity below the top, which is
    # what the top layer of a plain network sees. WHY: any model is taken as it is; a head would change what is trained
    # and what travels. Where a pooling follows, as in a ResNet, z still has the positions.
    return [event for event in events if isinstance(event, Activation)][-2].value.flatten(1)


class ContrastiveWork(Work):
    """The contrastive term of one client in one round."""

    def __init__(self, at: Beginning, part: "Contrastive"):
        self.model, self.part, self.weight = at.model, part, at.hyper["moon_weight"]
        self.shared: Sequence[nn.Module] = (part.received,)
        self.own: Sequence[nn.Module] = (part.previous,)

    @contextmanager
    def watch(self, inputs: Batch) -> Iterator[None]:
        with recording(self.model, inputs, positions=False) as recorder:
            yield
        self.recorder = recorder

    def term(self, inputs: Batch, output: Any, targets: Batch) -> Tensor:
        z = representation(self.recorder.finished(output))
        with torch.no_grad():
            other = [
                representation(record(model, inputs, positions=False)[1])
                for model in (self.part.received, self.part.previous)
            ]
        near, far = (cosine_similarity(z, each) / self.part.temperature for each in other)
        return self.weight * softplus(far - near).mean()


class Contrastive(ClientPart):
    stacks = True

    def __init__(self, built: Built):
        if sum(isinstance(event, Activation) for event in observe(built.model, built.example)) < 3:
            raise MatchingError("MOON needs a hidden layer below the top; this model has none that can be found")
        self.received = copy.deepcopy(built.model).eval().requires_grad_(False)
        self.previous = copy.deepcopy(self.received)
        self.temperature = built.settings["moon_temperature"]

    def begin(self, at: Beginning) -> Work:
        """Load the received model and the client's own of its last round.

        Before its first round a client's own model is the received one, and the term has no gradient.
        """
        # MOON's code: no such term in the first round; a client that comes later begins with a model of random weights.
        # HERE: with the received one, whenever it comes. WHY: away from random weights is no direction.
        state = at.model.state_dict()
        load_params(self.received, state)
        load_params(self.previous, {**state, **at.kept.get("previous", {})})
        return ContrastiveWork(at, self) if at.hyper["moon_weight"] else Work()

    def finish(self, end: End, work: Work) -> Outgoing:
        return Outgoing(kept={"previous": {name: value.clone() for name, value in end.params.items()}})


class Moon(Part):
    name = "MOON"
    about = "pulls what a client's model sees towards the received model's view, away from its own of last round"
    cost = 2.12
    settings = (
        hyper(at_least(0, "moon_weight", 1.0, "mu, the weight of MOON's contrastive term."), axis="0.1..10/5 log"),
        above(0, "moon_temperature", 0.5, "tau, the temperature of MOON's contrastive term."),
    )
    slots = Slots(client=(Slot("previous", STATE),))

    def client(self, built: Built) -> ClientPart:
        return Contrastive(built)
