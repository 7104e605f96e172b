"""FedNova: normalised averaging (Wang et al., 2020, "Tackling the objective inconsistency problem").

Clients that make different numbers of steps pull the mean towards those that make more. A client that has gone
w_i - w = -eta G_i a_i, with G_i its gradients and a_i how much each of them counts in the end, is represented by its
mean gradient instead, and the server goes as far as the clients do on average:
    d_i = G_i a_i / ||a_i||_1;      tau_eff = sum_i p_i ||a_i||_1;      w <- w - tau_eff sum_i p_i eta d_i
For tau_i steps of SGD with momentum rho (0: plain, and ||a_i||_1 = tau_i)
    ||a_i||_1 = sum_{k=1}^{tau_i} (1 - rho^k) / (1 - rho)
with p_i a client's share of the examples, as in its authors' code. Where all clients make equally many steps (no
`epochs`), this is federated averaging. clip_norm bounds a client's step as it is averaged, which is that of one of its
iterations. NIID-Bench's code has the same a_i, d_i and tau_eff, but p_i is a party's share of the mini-batches of a
pass, ceil(n_i / batch): the same to within one mini-batch, which tells only for parties of a few examples.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from fedaccord.core.errors import SettingsError
from fedaccord.core.protocols import (
    SCALAR,
    Built,
    ClientPart,
    End,
    Mean,
    Outgoing,
    Part,
    ServerStep,
    Slot,
    Slots,
    Work,
)
from fedaccord.core.records import ClientUpdate, Packages, Params


def length_of(steps: int, momentum: float, nesterov: bool = False) -> float:
    """Return ||a_i||_1 for steps of rate 1 that start without any momentum."""
    # FedNova's code: the sum of plain momentum, also for Nesterov's. HERE: Nesterov's own. WHY: its step g + rho v
    # counts every gradient as if v had gone one step further, so k runs from 2 to tau_i + 1.
    shift = 1 if nesterov else 0
    return sum((1 - momentum ** (k + shift)) / (1 - momentum) for k in range(1, steps + 1))


class Counting(ClientPart):
    """The client side of FedNova, which sends ||a_i||_1 of the steps that it made."""

    # FedNova: a proximal term makes a_i shorter, by (1 - eta mu) per step. HERE: joined with WD it is left out. WHY:
    # parts do not know of each other, and eta mu times the steps is small where the term does not hold a client fast.

    def __init__(self, nesterov: bool):
        self.nesterov = nesterov

    def finish(self, end: End, work: Work) -> Outgoing:
        length = length_of(end.hyper.steps, end.hyper.momentum, self.nesterov)
        return Outgoing(sent={"length": {"value": torch.tensor(length, dtype=torch.float64)}})


class Normalised(ServerStep):
    """The server side of FedNova; buffers (a BatchNorm's statistics) take the plain mean."""

    def transform(self, received: Params, update: ClientUpdate, buffers: frozenset[str]) -> ClientUpdate:
        """Return the update with parameters w + (w_i - w) / ||a_i||_1."""
        length = max(1.0, float(update.sent[f"{FedNova.name}.length"]["value"]))  # an honest one is at least 1
        # it counts as one that did all its steps (`partial`): it has been divided by those that it did
        return replace(update, params=scaled(update.params, received, 1 / length, buffers), done=1.0)

    def apply(self, state: Packages, mean: Mean) -> tuple[Params, Packages]:
        """Move w by tau_eff times the mean of the clients' normalised steps."""
        return scaled(mean.params, mean.received, float(mean.sent["length"]["value"]), mean.buffers), state


def scaled(params: Params, received: Params, factor: float, buffers: frozenset[str]) -> Params:
    return {
        name: received[name] + factor * (value - received[name])
        if value.is_floating_point() and name not in buffers
        else value
        for name, value in params.items()
    }


def check_countable(name: str, built: Built) -> None:
    """Raise SettingsError unless it is known what a client's steps add up to."""
    kept = built.settings["optimizer_state"] == "kept"
    if built.settings["optimizer"] != "sgd" or (kept and built.uses("momentum")):
        raise SettingsError(
            f"{name} knows what a client's steps add up to for optimizer = sgd, with a momentum that starts anew each "
            "round (optimizer_state = fresh)"
        )


class FedNova(Part):
    name = "FedNova"
    about = "each client's step is divided by how many steps it made, so that those who make more do not count more"
    replaces = "what a client's steps add up to"
    slots = Slots(
        up=(Slot("length", SCALAR, most=lambda hyper: length_of(hyper.steps, hyper.momentum, nesterov=True)),)
    )

    def client(self, built: Built) -> ClientPart:
        check_countable(self.name, built)
        return Counting(built.settings["nesterov"])

    def server(self, settings: Mapping[str, Any]) -> ServerStep:
        return Normalised()
