"""Steps of the server's chain that go with any method: clipping, the server's rate, a running mean of the model."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from fedaccord.core.protocols import SCALAR, STATE, Mean, Method, Part, ServerStep, Slot, Slots
from fedaccord.core.records import ClientUpdate, Packages, Params
from fedaccord.core.settings import above, at_least, hyper, setting
from fedaccord.server.privacy import Privacy
from fedaccord.server.robust import Robust
from fedaccord.server.vectors import distance, scale, weights_of


class Clip(ServerStep):
    """w_i <- w_t + min(1, bound / ||w_i - w_t||) (w_i - w_t): no client moves the weights further than the bound."""

    def __init__(self, bound: float):
        self.bound = bound

    def transform(self, received: Params, update: ClientUpdate, buffers: frozenset[str]) -> ClientUpdate:
        weights = weights_of(received, buffers)
        norm = distance(received, update.params, weights)
        if norm <= self.bound:
            return update
        shorter = {
            name: received[name] + (self.bound / norm) * (update.params[name] - received[name]) for name in weights
        }
        return replace(update, params={**update.params, **shorter})


class Clipping(Part):
    name = "clip"
    about = "shortens every client's step to a norm"
    settings = (at_least(0, "clip_norm", 0.0, "Longest step of a client that enters the mean (0: no limit)."),)

    def server(self, settings: Mapping[str, Any]) -> ServerStep | None:
        return Clip(settings["clip_norm"]) if settings["clip_norm"] else None


class Rate(ServerStep):
    """w_{t+1} = w_t + server_lr (w - w_t), w being the model so far; buffers are not extrapolated."""

    def apply(self, state: Packages, mean: Mean) -> tuple[Params, Packages]:
        factor = mean.hyper["server_lr"]
        if factor == 1.0:
            return mean.params, state
        params = {name: value.clone() for name, value in mean.params.items()}
        scale(params, mean.received, factor, mean.buffers)
        return params, state


class ServerRate(Part):
    name = "rate"
    about = "a factor on the server's step"
    settings = (
        hyper(
            above(0, "server_lr", 1.0, "Factor on the server's step towards the clients' mean (1: FedAvg)."),
            axis="0.01..10/7 log",
        ),
    )

    def server(self, settings: Mapping[str, Any]) -> ServerStep:
        return Rate()


SHORT, LONG = "short", "long"
DECAYS = {SHORT: (0.8, 3), LONG: (0.97, 10)}
"""The decay of the two running means, over about the last five and thirty rounds, and how soon it is reached."""


class Average(ServerStep):
    """mean <- decay mean + (1 - decay) w, for both decays. Clients go on from w itself.

    Early on a mean would remember the start, so the decay of round t is at most (1 + t) / (soon + t).
    """

    def init(self, params: Params, zeros: Packages) -> Packages:
        means = {name: {key: value.clone() for key, value in params.items()} for name in DECAYS}
        return {**means, "rounds": zeros["rounds"]}

    def apply(self, state: Packages, mean: Mean) -> tuple[Params, Packages]:
        rounds = float(state["rounds"]["value"]) + 1
        moved = {
            name: towards(state[name], mean.params, 1 - min(decay, (1 + rounds) / (soon + rounds)))
            for name, (decay, soon) in DECAYS.items()
        }
        return mean.params, {**moved, "rounds": {"value": torch.tensor(rounds, dtype=torch.float64)}}

    def means(self, state: Packages) -> Mapping[str, Params]:
        return {name: state[name] for name in DECAYS}


def towards(params: Params, other: Params, weight: float) -> Params:
    """Return params + weight (other - params); tensors that are not floats are copied from `other`."""
    return {
        name: torch.lerp(value, other[name], weight) if value.is_floating_point() else other[name].clone()
        for name, value in params.items()
    }


class RunningMean(Part):
    name = "average"
    about = "keeps two running means of the global model, which may be handed out in its place"
    settings = (
        setting(
            "average",
            True,
            "Keep running means of the model: one is rewarded, and the best is handed out.",
            printed=False,
        ),
    )

    slots = Slots(server=(*(Slot(name, STATE) for name in DECAYS), Slot("rounds", SCALAR)))

    def server(self, settings: Mapping[str, Any]) -> ServerStep:
        return Average()


def with_server_steps(method: Method, settings: Mapping[str, Any]) -> Method:
    """Return the method with the server's own parts added, whose steps the settings turn on."""
    # without the means, a checkpoint has no room for them either
    own = (part for part in PARTS if settings["average"] or not isinstance(part, RunningMean))
    return replace(method, parts=(*method.parts, *own))


PARTS = (Clipping(), Robust(), Privacy(), ServerRate(), RunningMean())
"""The server's own steps, in their order."""
SERVER_SETTINGS = tuple(each for part in PARTS for each in part.settings)
