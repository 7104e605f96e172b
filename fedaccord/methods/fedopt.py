"""FedAvgM, FedAdam and FedYogi: an optimizer at the server (Hsu et al., 2019; Reddi et al., 2021, Algorithm 2).

With d_t = mean - w_t, what federated averaging would add to the model:
    FedAvgM   v <- beta v + d_t;                                        w <- w + v
    FedAdam   m <- beta_1 m + (1 - beta_1) d_t;   v <- beta_2 v + (1 - beta_2) d_t^2
    FedYogi   the same m;                         v <- v - (1 - beta_2) d_t^2 sign(v - d_t^2)
              w <- w + eta m / (sqrt(v) + tau)    for both
The mean is by examples, as in the experiments of Reddi et al.; their Algorithm 2 writes the plain one. Buffers (a
BatchNorm's statistics) take the clients' mean as it is. `server_lr` scales the step of FedAvgM as it does FA's.
"""

from collections.abc import Mapping
from typing import Any

import torch

from fedaccord.core.protocols import Mean, Part, ServerStep, Slot, Slots
from fedaccord.core.records import Packages, Params
from fedaccord.core.settings import above, below_one


class Momentum(ServerStep):
    def __init__(self, beta: float):
        self.beta = beta

    def apply(self, state: Packages, mean: Mean) -> tuple[Params, Packages]:
        velocity = {name: self.beta * v + mean.step(name) for name, v in state["v"].items()}
        return {**mean.params, **{name: mean.received[name] + v for name, v in velocity.items()}}, {"v": velocity}


class Adaptive(ServerStep):
    """The server step of FedAdam, or of FedYogi if `yogi`, without bias correction, as in Algorithm 2."""

    def __init__(self, rate: float, beta1: float, beta2: float, tau: float, yogi: bool):
        self.rate, self.beta1, self.beta2, self.tau, self.yogi = rate, beta1, beta2, tau, yogi

    def init(self, params: Params, zeros: Packages) -> Packages:
        """Begin with v_0 = tau^2, so that the first steps are not out of proportion (Reddi et al.: v_{-1} >= tau^2)."""
        return {"m": zeros["m"], "v": {name: v + self.tau**2 for name, v in zeros["v"].items()}}

    def apply(self, state: Packages, mean: Mean) -> tuple[Params, Packages]:
        params, m, v = dict(mean.params), {}, {}
        for name in state["m"]:
            step = mean.step(name)
            square = step.square()
            m[name] = self.beta1 * state["m"][name] + (1 - self.beta1) * step
            old = state["v"][name]
            if self.yogi:
                v[name] = old - (1 - self.beta2) * square * torch.sign(old - square)
            else:
                v[name] = self.beta2 * old + (1 - self.beta2) * square
            params[name] = mean.received[name] + self.rate * m[name] / (v[name].sqrt() + self.tau)
        return params, {"m": m, "v": v}


OPTIMIZER = "the server's optimizer"


class FedAvgM(Part):
    name = "FedAvgM"
    about = "federated averaging with momentum at the server"
    settings = (below_one("server_momentum", 0.9, "Momentum of the server's step."),)
    slots = Slots(server=(Slot("v"),))
    replaces = OPTIMIZER
    # v keeps every step, so one that a search has stretched goes on in all later rounds. Digits, one class per client,
    # 60 rounds: 93 %, with AH and its search 56 %, with AH and no search 89 %. FedAdam, which divides by the root of
    # its v, does better with the search.
    sets_length = True

    def server(self, settings: Mapping[str, Any]) -> ServerStep:
        return Momentum(settings["server_momentum"])


ADAPTIVE = (
    above(0, "adaptive_lr", 0.01, "eta, the length of the server's adaptive step."),
    below_one("adaptive_beta1", 0.9, "beta_1 of the server's adaptive step."),
    below_one("adaptive_beta2", 0.99, "beta_2 of the server's adaptive step."),
    above(0, "adaptive_tau", 1e-3, "tau, which bounds how much a small second moment lengthens a step."),
)


class FedAdam(Part):
    name = "FedAdam"
    about = "Adam at the server"
    settings = ADAPTIVE
    slots = Slots(server=(Slot("m"), Slot("v")))
    replaces = OPTIMIZER
    yogi = False

    def server(self, settings: Mapping[str, Any]) -> ServerStep:
        rate, beta1, beta2, tau = (settings[each.name] for each in ADAPTIVE)
        return Adaptive(rate, beta1, beta2, tau, self.yogi)


class FedYogi(FedAdam):
    name = "FedYogi"
    about = "Yogi at the server: Adam whose second moment changes by small steps only"
    yogi = True
