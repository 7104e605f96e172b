"""The rule of FATHOM: rate and steps follow their hyper-gradients (Kan, 2022, "Federated hypergradient descent").

With Delta_t the clients' mean step, Delta_sm a running mean of those before, and least_i the smallest cosine between
client i's next gradient and the sum of its gradients so far (Eq. 5, 9, 12; Delta_sm as in Algorithm 1)
    H = N = -cos(Delta_t, Delta_sm);                 G = -sum_i p_i least_i
    lr <- lr exp(-gamma_lr H)                        (Eq. 13)
    steps <- steps exp(-gamma_steps (N + G))         (Eq. 14)
So both grow while successive rounds go the same way, the steps also while clients do not turn round on their way.
The state is a plain JSON value: lr and steps, which need not be whole.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fedaccord.core.protocols import Proposal
from fedaccord.core.records import Hyper, Observation, PolicyState


@dataclass(frozen=True)
class Hypergradient:
    first: Hyper  # where the policy begins, and the values that it does not choose
    bounds: Mapping[str, tuple[float, float]]  # of the hyper-parameters that it chooses: lr, steps, or one of them
    cosine: str  # the name of cos(Delta_t, Delta_sm) in Observation.method
    least: str  # the name of the mean of least_i there
    rates: Mapping[str, float]  # gamma_lr and gamma_steps

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.bounds)

    def start(self) -> PolicyState:
        return {name: min(high, max(low, float(self.first[name]))) for name, (low, high) in self.bounds.items()}

    def propose(
        self, state: PolicyState, round: int, cohort: Sequence[int], generator: torch.Generator
    ) -> tuple[Proposal, PolicyState]:
        chosen = {name: int(value + 0.5) if name == "steps" else value for name, value in state.items()}
        return Proposal(self.first.but(chosen)), state

    def learn(self, state: PolicyState, seen: Observation) -> PolicyState:
        """Eq. 13 and 14: move lr and steps; a round in which no update counted leaves them as they are."""
        # FATHOM (Eq. 14): E, passes over a client's own data. HERE: steps, the same for all clients. WHY: the server of
        # a real federation does not know how much data they have; clients of equal size see no difference.
        # FATHOM (Eq. 15): the batch size has a rule of its own. HERE: it stays. WHY: it would change what a step costs.
        cosine, least = seen.method.get(self.cosine), seen.method.get(self.least)
        if cosine is None or least is None or not math.isfinite(cosine + least):
            return state
        gradient = {"lr": -cosine, "steps": -(cosine + least)}
        moved = {name: value * math.exp(-self.rates[name] * gradient[name]) for name, value in state.items()}
        # FATHOM's code: an upper bound. HERE: the ends of the grid. WHY: a rate or length of nothing never comes back.
        return {name: min(high, max(low, moved[name])) for name, (low, high) in self.bounds.items()}

    def describe(self, before: PolicyState, after: PolicyState) -> dict[str, Any]:
        told = (f"{name} {before[name]:.4g} -> {after[name]:.4g}" for name in self.bounds)
        return {"why": ", ".join(told)}
