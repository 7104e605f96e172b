"""FedExP: the server's step by extrapolation (Jhunjhunwala et al., 2023).

With D_i = w_i - w_t, p_i a client's share of the examples and D = sum_i p_i D_i, the server goes
    eta_g = max(1, sum_i p_i ||D_i||^2 / (2 (||D||^2 + epsilon)))
times as far as that mean: the more the clients' steps cancel each other, the further. The paper writes it for M clients
of equal size, p_i = 1 / M; its code weights both sums, as here, so that the fraction never is below a half. It tests
the mean of the last two models; here the model itself is tested, or the running mean that `average` keeps.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch

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
    trained_weights,
)
from fedaccord.core.records import Packages, Params
from fedaccord.core.settings import at_least


class Measuring(ClientPart):
    """The client's side: how far it went, squared."""

    def __init__(self, weights: list[str]):
        self.weights = weights

    def finish(self, end: End, work: Work) -> Outgoing:
        lengths = [(end.params[name] - end.received[name]).double().norm() for name in self.weights]
        return Outgoing(sent={"square": {"value": torch.stack(lengths).square().sum().cpu()}})


class Extrapolated(ServerStep):
    def __init__(self, epsilon: float):
        self.epsilon = epsilon

    def apply(self, state: Packages, mean: Mean) -> tuple[Params, Packages]:
        # FedExP's code: M epsilon, less in every round with the square of the rate's decay. HERE: epsilon, as printed.
        # WHY: what the server may do must not depend on how many clients came.
        moved = {n: mean.step(n) for n, w in mean.params.items() if n not in mean.buffers and w.is_floating_point()}
        square = math.fsum(float(each.double().square().sum()) for each in moved.values())
        own = float(mean.sent["square"]["value"])
        eta = max(1.0, own / (2 * (square + self.epsilon))) if square + self.epsilon else 1.0
        return {**mean.params, **{name: mean.received[name] + eta * each for name, each in moved.items()}}, state


class FedExP(Part):
    name = "FedExP"
    about = "the server goes the further along the clients' mean step the more their steps cancel"
    settings = (at_least(0, "fedexp_epsilon", 1e-3, "epsilon, which bounds FedExP's step where the mean is short."),)
    slots = Slots(up=(Slot("square", SCALAR),))
    sets_length = True

    def client(self, built: Built) -> ClientPart:
        there = built.travel.names if built.travel is not None else None
        return Measuring([name for name in trained_weights(built.model) if there is None or name in there])

    def server(self, settings: Mapping[str, Any]) -> ServerStep:
        return Extrapolated(settings["fedexp_epsilon"])
