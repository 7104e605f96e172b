"""The pace: a rate and a number of SGD iterations that follow from what the server sees, without exploring.

Two signals. The server looks for the length of its step (server/stretch.py): where it keeps wanting more than the
clients' mean, their rate is too low; where it keeps wanting less, too high. And the clients' steps have directions:
opposed clients want few iterations, alike ones many. Opposed clients can look alike for a round (when all of them mend
the same overshoot), but alike clients never look opposed, so the smallest cosine so far decides.

A run begins with a run-in, a pass over the clients at a time: the rate doubles until the server wants no more. Then
REINFORCE takes over, and the rate goes on following as far as the clients are alike: with opposed ones the length that
the server wants says more about who was wrong last than about the rate.

The state is a plain JSON value:
    run_in    whether the run-in goes on
    turned    whether the rate has had to stop rising in it
    doubt     what the pass before said against a higher rate; None: nothing
    rounds    how many of it were carried out
    lengths   of this choice's rounds: log2 of the length that the server wanted beyond what opposed clients always want
    earned    by them
    cosine    the smallest mean cosine between two clients' steps in the run-in; None before the first
    told      what was moved after the last round and why, in words
    mu        where that left it
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedaccord.core.records import Observation
from fedaccord.policy.grid import Axis, HyperGrid

OPPOSED, ALIKE = 0.03, 0.12
"""Smallest mean cosines at which clients are taken as opposed and as alike. In the first rounds of twelve problems,
three seeds each: one class a client -0.13 to -0.03, iid 0.12 to 0.65."""
FEW, MANY = 3.0, 32.0
"""SGD iterations of opposed and of alike clients."""
SHORTEST = 4
"""Rounds that a run-in lasts at least, and at least two passes: one says too little about the clients."""
LONGEST = 16
"""Passes that it lasts at most: ten doublings go through the whole grid."""
ROOM = 2.0
"""Opposed clients always want a longer step than their mean: what is beyond a quarter of the server's reach counts."""
RUN_IN, LATER, AWAY = math.log(2), 0.4, math.log(4)
"""How far the rate moves, in its logarithm: in the run-in, later, and away from a rate that blew up in the run-in."""
BACK = 0.35
"""How far it goes back at the end of the run-in, which ends at the highest rate that just did no harm."""
BAD = -0.5
"""A reward from which on a round counts as blown up: its step was halved at least, or the loss rose by half."""

State = dict[str, Any]


@dataclass(frozen=True)
class Pace:
    grid: HyperGrid
    lap: int = 1  # rounds of a pass over the clients
    late: bool = False  # rewards are those of the round before: none is this round's

    def start(self) -> State:
        begin = {"run_in": True, "turned": False, "doubt": None, "rounds": 0}
        return {**begin, "lengths": [], "earned": 0.0, "cosine": None, "told": "", "mu": []}

    def follow(self, pace: State, mu: list[float], seen: Observation, over: bool) -> tuple[State, list[float], bool]:
        """After a round: the state, mu, and whether the choice is given up. `over`: its last round was this one."""
        if not seen.carried_out:
            return {**pace, "told": ""}, mu, False
        pace = self.noticed(pace, seen)
        if not self.late and seen.reward is not None and seen.reward <= BAD:
            away = AWAY if pace["run_in"] else LATER
            pace = {**pace, "turned": True, "doubt": None, "lengths": [], "earned": 0.0}
            return *self.moved(pace, mu, -away, "its last step did harm"), True
        if not over:
            return pace, mu, False
        more, why = self.judged(pace)
        known, pace = bool(pace["lengths"]), {**pace, "lengths": [], "earned": 0.0}
        if pace["run_in"]:
            return *self.running_in(*self.iterations(pace, mu), more, why, known), False
        size = LATER * self.alike(pace) * ((more > 0) - (more < 0))
        return *self.moved(pace, mu, size, why), False

    def judged(self, pace: State) -> tuple[float, str]:
        """What a choice's rounds say of its rate: more than 0 for too low, less for too high; and why."""
        if pace["run_in"] and pace["lengths"] and pace["earned"] < 0:
            return -1.0, "the loss has risen"
        more = trend(pace["lengths"])
        if self.lap > 1 and self.alike(pace) < 0.5:
            more = max(0.0, more)  # each round forgets those who were not in it: shorter steps are wanted at any rate
        return more, f"the server wanted {'longer' if more > 0 else 'shorter'} steps"

    def running_in(self, pace: State, mu: list[float], more: float, why: str, known: bool) -> tuple[State, list[float]]:
        """The rate doubles until two passes speak against that; it halves if they say so; then the run-in is over.

        It is over, too, where there is no rate to move, and where it takes too long, such as at an edge of the grid.
        """
        if more <= 0 and pace["doubt"] is None:
            return {**pace, "doubt": more}, mu  # once may be chance
        size = RUN_IN if more > 0 and not pace["turned"] else 0.0
        if more <= 0:
            if more + pace["doubt"] < 0:
                size, why = -RUN_IN, why if more < 0 else "the pass before spoke against it"
            pace = {**pace, "turned": True}
        pace = {**pace, "doubt": None}
        if size and "lr" in self.grid.names and pace["rounds"] < LONGEST * self.lap:
            return self.moved(pace, mu, size, why)
        if pace["rounds"] < max(SHORTEST, 2 * self.lap):
            return pace, mu
        return self.moved({**pace, "run_in": False}, mu, -BACK * known, "the run-in is over")

    def noticed(self, pace: State, seen: Observation) -> State:
        """With what this round showed of the clients' steps and of the server's."""
        earned = 1 - (1 - pace["earned"]) * (1 - (seen.reward or 0.0))
        pace = {**pace, "told": "", "rounds": pace["rounds"] + pace["run_in"], "earned": earned}
        if pace["run_in"] and seen.cosine is not None:
            pace["cosine"] = seen.cosine if pace["cosine"] is None else min(seen.cosine, pace["cosine"])
        if seen.stretch is not None:
            length = math.log2(seen.stretch.wanted)
            usual = max(0.0, math.log2(seen.stretch.reach) - ROOM)
            pace["lengths"] = [*pace["lengths"], max(0.0, length - usual) if length > 0 else length]
        return pace

    def alike(self, pace: State) -> float:
        """From 0, opposed, to 1, alike; 0 if nothing is known."""
        return 0.0 if pace["cosine"] is None else float(np.interp(pace["cosine"], [OPPOSED, ALIKE], [0.0, 1.0]))

    def iterations(self, pace: State, mu: list[float]) -> tuple[State, list[float]]:
        """mu of the SGD iterations by how far the clients agree; the first pass says too little."""
        if "steps" not in self.grid.names or pace["cosine"] is None or pace["rounds"] <= self.lap:
            return pace, mu
        number = self.grid.names.index("steps")
        axis, here = self.grid.axes[number], mu[number]
        few, many = (place(axis, value) for value in (FEW, MANY))
        there = few + self.alike(pace) * (many - few)
        if abs(there - here) < 1e-9:
            return pace, mu
        agree = "are opposed" if self.alike(pace) < 0.5 else "agree"
        told = f"{'more' if there > here else 'fewer'} SGD iterations, about {axis.value_at(there):.0f}"
        return {**pace, "told": f"{told}: the clients' steps {agree}"}, put(there, number, mu)

    def moved(self, pace: State, mu: list[float], size: float, why: str) -> tuple[State, list[float]]:
        """The rate by this much in its logarithm, within the grid."""
        if size == 0.0 or "lr" not in self.grid.names:
            return pace, mu
        number = self.grid.names.index("lr")
        axis, here = self.grid.axes[number], mu[number]
        there = place(axis, axis.value_at(here) * math.exp(size))
        if abs(there - here) < 1e-9:
            return pace, mu  # at the edge of the grid
        told = f"learning rate {axis.value_at(here):.3g} to {axis.value_at(there):.3g}: {why}"
        return {**pace, "told": "; ".join(filter(None, (pace["told"], told)))}, put(there, number, mu)


def trend(lengths: list[float]) -> float:
    """Their mean if it is beyond their own spread, and half a doubling at least; else 0."""
    if not lengths:
        return 0.0
    mean = float(np.mean(lengths))
    return mean if abs(mean) >= max(0.5, float(np.std(lengths))) else 0.0


def place(axis: Axis, value: float) -> float:
    """The normalised point of a value, or of the end of the axis that is nearest to it."""
    return axis.point_of(min(max(value, axis.values[0]), axis.values[-1]))


def put(there: float, number: int, mu: list[float]) -> list[float]:
    return [there if n == number else z for n, z in enumerate(mu)]
