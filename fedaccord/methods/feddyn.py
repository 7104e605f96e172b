"""FedDyn: dynamic regularisation (Acar et al., 2021, FedDyn).

Client k keeps g_k, which estimates the gradient of its loss at the model that it sent last. It minimises
    L_k(theta) - <g_k, theta> + (alpha / 2) ||theta - theta_t||^2,      then   g_k <- g_k - alpha (theta_k - theta_t)
so that at a fixed point every client agrees with the server. The server keeps h and moves on from the mean:
    h <- h - alpha (|P| / m) mean_k (theta_k - theta_t);                theta_{t+1} = mean_k theta_k - h / alpha
The paper solves each client's problem to the end; with few steps a round alpha must be large enough for them to get
near it, or the server's step outruns them.
"""

from collections.abc import Mapping
from typing import Any

import torch

from fedaccord.core.errors import SettingsError
from fedaccord.core.protocols import (
    THE_GRADIENTS,
    Built,
    ClientPart,
    End,
    Mean,
    Outgoing,
    Part,
    ServerStep,
    Slot,
    Slots,
    Step,
    Work,
)
from fedaccord.core.records import Hyper, Packages, Params
from fedaccord.core.settings import above


class Regularised(ClientPart):
    """The client side of FedDyn; the gradients of both new terms need no graph."""

    stacks = True

    def __init__(self, alpha: float):
        self.alpha = alpha

    def corrects(self, hyper: Hyper) -> str:
        return THE_GRADIENTS

    def correct(self, step: Step) -> None:
        """Replace each gradient g by g - g_k + alpha (theta - theta_t)."""
        torch._foreach_sub_(step.gradients, step.kept["g"])
        apart = torch._foreach_sub(step.weights, step.received)
        torch._foreach_add_(step.gradients, apart, alpha=self.alpha)

    def finish(self, end: End, work: Work) -> Outgoing:
        new = {name: g - self.alpha * (end.params[name] - end.received[name]) for name, g in end.kept["g"].items()}
        return Outgoing(kept={"g": new})


class Dynamic(ServerStep):
    """The server side of FedDyn, in which every client counts the same, as printed.

    Only then is h the mean of all g_k, whoever takes part. So what is minimised is the mean of the clients' losses,
    however many examples each has; line 14 weights them.
    """

    equal = True

    def __init__(self, alpha: float):
        self.alpha = alpha

    def apply(self, state: Packages, mean: Mean) -> tuple[Params, Packages]:
        # FedDyn: alpha (1/m) (sum_k theta_k - theta_t), as quoted. HERE: the sum of the differences. WHY: only that is
        # zero where nobody moves; its author's code has it so.
        # h moves as the g_k do, whatever share of the mean step is taken
        moved = self.alpha * mean.accepted / mean.clients / mean.share
        h = {name: h - moved * mean.step(name) for name, h in state["h"].items()}
        return {**mean.params, **{name: mean.params[name] - each / self.alpha for name, each in h.items()}}, {"h": h}


class FedDyn(Part):
    name = "FedDyn"
    about = "each client's loss is bent so that all of them agree where training ends"
    cost = 1.33
    settings = (above(0, "feddyn_alpha", 0.1, "alpha, how strongly FedDyn holds clients near the received model."),)
    slots = Slots(client=(Slot("g"),), server=(Slot("h"),))
    sets_length = True  # the model is the clients' mean less h / alpha: there is no direction to go further along

    def client(self, built: Built) -> ClientPart:
        return Regularised(built.settings["feddyn_alpha"])

    def server(self, settings: Mapping[str, Any]) -> ServerStep:
        if settings["clip_norm"] or settings["dp_noise"] or settings["robust"] != "mean":
            raise SettingsError("FedDyn: h must move by what the clients did: leave out clip_norm, robust and dp_noise")
        return Dynamic(settings["feddyn_alpha"])
