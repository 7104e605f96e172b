"""FATHOM: rate and steps by hyper-gradients (Kan, 2022, Algorithm 1). The rule itself is in policy/hypergradient.py.

Each client sends a single number, how far its gradients turn round on its way. The server keeps a running mean of its
steps, Delta_sm <- alpha Delta_sm + (1 - alpha) Delta_t, and the cosine between the newest step and the mean before it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedaccord.core.errors import SettingsError
from fedaccord.core.params import by_client
from fedaccord.core.protocols import (
    SCALAR,
    THE_GRADIENTS,
    Built,
    ClientPart,
    End,
    Mean,
    Outgoing,
    Part,
    Policy,
    ServerStep,
    Slot,
    Slots,
    Step,
    Work,
)
from fedaccord.core.records import Hyper, Packages, Params
from fedaccord.core.settings import at_least, below_one
from fedaccord.policy.grid import HyperGrid
from fedaccord.policy.hypergradient import Hypergradient


class Turning(ClientPart):
    """Eq. 12: the smallest cosine between a gradient and the way so far, x_0 - x_k; 1 if there is only one step."""

    stacks = True

    # FATHOM (Eq. 12): a factor eta. HERE: none, as in its code. WHY: what is normalised must not depend on the rate.
    # FATHOM's code: the way after the step, with the newest gradient in it. HERE: before it, as printed. WHY: every
    # gradient agrees with itself.
    def corrects(self, hyper: Hyper) -> str:
        return THE_GRADIENTS  # which it only reads

    def correct(self, step: Step) -> None:
        way = torch._foreach_sub(step.received, step.weights)
        along, size = dots(way, step.gradients, step.stacked), dots(way, way, step.stacked)
        size = size * dots(step.gradients, step.gradients, step.stacked)
        cosine = torch.where(size > 0, along / size.sqrt(), torch.ones_like(size))
        step.memory["least"] = torch.minimum(step.memory.get("least", torch.ones_like(cosine)), cosine)

    def finish(self, end: End, work: Work) -> Outgoing:
        return Outgoing(sent={"least": {"value": end.memory["least"][end.place].double().clamp(-1, 1).cpu()}})


def dots(one: Sequence[Tensor], other: Sequence[Tensor], stacked: bool) -> Tensor:
    """Return the inner product over all tensors, for each client of a stack, (clients,), or for a single one, (1,)."""
    products = [a * b for a, b in zip(one, other, strict=True)]
    return torch.stack([(by_client(each) if stacked else each.reshape(1, -1)).sum(1) for each in products]).sum(0)


class Smoothed(ServerStep):
    """The server side of FATHOM: the running mean of its steps, and the cosine of the newest step with it."""

    def __init__(self, alpha: float):
        self.alpha = alpha

    def apply(self, state: Packages, mean: Mean) -> tuple[Params, Packages]:
        before, steps = state["smooth"], {name: mean.step(name) for name in state["smooth"]}
        along, one, other = (
            torch.stack([(a[name].double() * b[name].double()).sum() for name in before]).sum().cpu()
            for a, b in ((steps, before), (steps, steps), (before, before))
        )
        cosine = along / (one * other).sqrt() if one * other > 0 else torch.zeros((), dtype=torch.float64)
        smooth = {name: self.alpha * before[name] + (1 - self.alpha) * steps[name] for name in before}
        return mean.params, {"smooth": smooth, "cosine": {"value": cosine}}


class Fathom(Part):
    name = "FATHOM"
    about = "rate and steps grow while successive steps of the server agree, and shrink when they turn round"
    cost = 1.51
    settings = (
        at_least(0, "fathom_lr", 0.01, "gamma_eta, how fast FATHOM moves the rate."),
        at_least(0, "fathom_steps", 0.01, "gamma_E, how fast FATHOM moves the number of steps."),
        below_one("fathom_alpha", 0.5, "alpha, how much of earlier rounds FATHOM's mean step remembers."),
    )
    slots = Slots(up=(Slot("least", SCALAR, most=lambda hyper: 1.0),), server=(Slot("smooth"), Slot("cosine", SCALAR)))

    def client(self, built: Built) -> ClientPart:
        return Turning()

    def server(self, settings: Mapping[str, Any]) -> ServerStep:
        return Smoothed(settings["fathom_alpha"])

    def tunes(self, settings: Mapping[str, Any]) -> tuple[str, ...]:
        return HyperGrid.parse(settings["grid"]).names

    def begins(self, settings: Mapping[str, Any]) -> bool:
        return not settings["start"]

    def policy(self, first: Hyper, settings: Mapping[str, Any]) -> Policy:
        """Return a policy that stays within the grid and begins at `start`, or at what task and settings say."""
        grid = HyperGrid.parse(settings["grid"])
        rates = {"lr": settings["fathom_lr"], "steps": settings["fathom_steps"]}
        if others := [name for name in grid.names if name not in rates]:
            raise SettingsError(f"grid: FATHOM has a rule for lr and steps, and none for {', '.join(others)}")
        if place := grid.place(settings["start"]):
            begin = {axis.name: axis.value_at(z) for axis, z in zip(grid.axes, place, strict=True)}
            first = first.but({name: round(v) if name == "steps" else v for name, v in begin.items()})
        bounds = {axis.name: (axis.values[0], axis.values[-1]) for axis in grid.axes}
        return Hypergradient(first, bounds, f"{self.name}.cosine", f"{self.name}.least", rates)
