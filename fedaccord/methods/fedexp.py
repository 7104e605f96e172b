"""FedExP: the server's step by extrapolation (Jhunjhunwala et al., 2023, Algorithm 1).

With D_i = w_i - w_t, p_i a client's share of the examples and D = sum_i p_i D_i, the server goes
    eta_g = max(1, sum_i p_i ||D_i||^2 / (2 (||D||^2 + epsilon)))
times as far as that mean: the more the clients' steps cancel each other, the further. The paper writes it for M clients
of equal size, p_i = 1 / M; its code weights both sums, as here, so that the fraction never is below a half. It tests
the mean of the last two models; here the model itself is tested, or the running mean that `average` keeps. D_i is what
enters the mean, clipped if the settings say so, and eta_g is the same whatever share of the mean a guard tries.
"""

from collections.abc import Mapping
from typing import Any

from fedaccord.core.errors import SettingsError
from fedaccord.core.protocols import Mean, Part, ServerStep
from fedaccord.core.records import Packages, Params
from fedaccord.core.settings import at_least


class Extrapolated(ServerStep):
    def __init__(self, epsilon: float):
        self.epsilon = epsilon

    def apply(self, state: Packages, mean: Mean) -> tuple[Params, Packages]:
        # FedExP's code: M epsilon, less in every round with the square of the rate's decay. HERE: epsilon, as printed.
        # WHY: what the server may do must not depend on how many clients came.
        short = 2 * (mean.norm * mean.norm + self.epsilon)
        eta = max(1.0, mean.square / short) if short else 1.0
        moved = {n: mean.step(n) for n, w in mean.params.items() if n not in mean.buffers and w.is_floating_point()}
        return {**mean.params, **{name: mean.received[name] + eta * each for name, each in moved.items()}}, state


class FedExP(Part):
    name = "FedExP"
    about = "the server goes the further along the clients' mean step the more their steps cancel"
    settings = (at_least(0, "fedexp_epsilon", 1e-3, "epsilon, which bounds FedExP's step where the mean is short."),)
    sets_length = True

    def server(self, settings: Mapping[str, Any]) -> ServerStep:
        if settings["dp_noise"]:  # eta would tell of the clients' norms, which have no noise
            raise SettingsError("FedExP: the length of its step goes by the clients' own norms: leave out dp_noise")
        return Extrapolated(settings["fedexp_epsilon"])
