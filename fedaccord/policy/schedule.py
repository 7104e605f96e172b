"""Schedules that are fixed before the run: the paper's baselines, and the replay of another run."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fedaccord.core.protocols import Policy, Proposal
from fedaccord.core.records import Hyper, Observation, PolicyState


@dataclass(frozen=True)
class FixedSchedule:
    """Learning rate and SGD iterations, each with its own decay per round; rewards are ignored."""

    first: Hyper
    lr_decay: float = 1.0
    steps_decay: float = 1.0

    @property
    def names(self) -> tuple[str, ...]:
        return ("lr", "steps")

    def start(self) -> PolicyState:
        return {}

    def propose(
        self, state: PolicyState, round: int, cohort: Sequence[int], generator: torch.Generator
    ) -> tuple[Proposal, PolicyState]:
        """Return h_t = (lr * lr_decay^(t-1), steps * steps_decay^(t-1) to the nearest whole number, at least 1)."""
        lr = self.first.lr * self.lr_decay ** (round - 1)
        steps = max(1, int(self.first.steps * self.steps_decay ** (round - 1) + 0.5))
        return Proposal(self.first.but({"lr": lr, "steps": steps})), state

    def learn(self, state: PolicyState, seen: Observation) -> PolicyState:
        return state

    def describe(self, before: PolicyState, after: PolicyState) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class Passes:
    """Another policy, but with `epochs` passes of every client over its own data, and so each with its own steps."""

    other: Policy
    epochs: float
    sizes: Mapping[int, int]  # examples of each client
    decay: float = 1.0  # factor on the epochs after each round

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.other.names, "steps")))

    def start(self) -> PolicyState:
        return self.other.start()

    def propose(
        self, state: PolicyState, round: int, cohort: Sequence[int], generator: torch.Generator
    ) -> tuple[Proposal, PolicyState]:
        """Return the other policy's h_t with each client's own steps; the round as a whole gets their mean."""
        given, state = self.other.propose(state, round, cohort, generator)
        each = {}
        for client in (client for client in cohort if self.sizes[client]):
            own = given.each.get(client, given.hyper)
            each[client] = own.but({"steps": self.steps(self.sizes[client], own.batch_size, round)})
        mean = max(1, int(sum(own.steps for own in each.values()) / max(1, len(each)) + 0.5))
        return Proposal(given.hyper.but({"steps": mean}), each), state

    def steps(self, examples: int, batch_size: int, round: int) -> int:
        """Return ceil(n / batch) * epochs * decay^(t-1) to the nearest whole number, at least 1."""
        return max(1, int(math.ceil(examples / batch_size) * self.epochs * self.decay ** (round - 1) + 0.5))

    def learn(self, state: PolicyState, seen: Observation) -> PolicyState:
        return self.other.learn(state, seen)

    def describe(self, before: PolicyState, after: PolicyState) -> dict[str, Any]:
        return self.other.describe(before, after)


@dataclass(frozen=True)
class Replay(FixedSchedule):
    """The h_t that another run recorded, round by round; a run that goes on longer keeps to the last of them."""

    recorded: tuple[Mapping[str, Any], ...] = ()
    each: tuple[Mapping[int, Mapping[str, Any]], ...] = ()  # round by round, the values of clients that had their own

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.recorded[0])

    def propose(
        self, state: PolicyState, round: int, cohort: Sequence[int], generator: torch.Generator
    ) -> tuple[Proposal, PolicyState]:
        place = min(round, len(self.recorded)) - 1
        each = {client: self.first.but(values) for client, values in self.each[place].items()} if self.each else {}
        return Proposal(self.first.but(self.recorded[place]), each), state
