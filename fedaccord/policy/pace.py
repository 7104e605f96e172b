"""The pace: a learning rate and a number of SGD iterations that follow what the server sees, without exploration.

There are two signals. The server searches for the length of its step (server/stretch.py): where it keeps wanting more
than the clients' mean step, their learning rate is too low; where it keeps wanting less, too high. And the clients'
steps have directions: opposed clients want few iterations, alike ones many. Opposed clients can look alike for a round
(when all of them correct the same overshoot), but alike clients never look opposed for a whole pass, so the pass with
the smallest mean cosine decides. A server without a set of its own cannot search for a length; there, two of its steps
in a row that go the same way call for longer ones.

A run begins with a run-in, judged by one pass over the clients at a time (by one round, once they are known to be
alike): the rate doubles until the server wants no longer steps. It begins in the middle of the grid or at `start`; if
the clients then go too far for the size of the model, or hardly anywhere, the rate is first set so that they go a small
part of it. Then REINFORCE takes over, and the rate keeps following as far as the clients are alike: with opposed ones,
the length that the server wants says more about who was wrong last than about the rate.

The state is a plain JSON value:
    run_in    whether the run-in goes on
    sized     whether the model's norm says anything about how far clients may go; None: no round has shown it yet
    passed    whether a pass of the run-in did no harm: before that, harm is put down to the model's fragile start
    turned    whether the rate has had to stop rising in the run-in
    doubt     what the pass before said against a higher rate; None: nothing
    rounds    how many rounds of the run-in were carried out
    lost      how many rounds in a row most clients have diverged
    taken     the last round in which a model was taken back, where rewards are late
    lengths   for each round of this choice, log2 of the length that the server wanted, beyond what opposed clients
              always want; where it cannot search for one, 1 if its steps could be longer, else 0
    earned    what these rounds have earned together
    cosines   the mean cosine between two clients' steps, for each of the first rounds
    relative  how far the clients went in the last round, as a share of the model's norm; None: not known
    told      what was moved after the last round and why, in words
    mu        mu after these moves
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedaccord.core.observing import FIRST_ROUNDS, PLAUSIBLE
from fedaccord.core.records import Observation
from fedaccord.policy.grid import Axis, HyperGrid

OPPOSED, ALIKE = 0.06, 0.12
"""The cosine up to which clients count as opposed, and the one from which on they count as alike; the smallest
mean of the first passes decides. On fifteen problems, two or three seeds each: one class per client -0.13 to -0.03, ten
of a hundred such clients 0.05 and 0.07, Dirichlet 0.1 0.00 to 0.22, iid 0.12 to 0.65."""
FEW, MANY = 3.0, 64.0
"""SGD iterations for opposed and for alike clients; the nearest values of the grid are used, by default 3 and 80."""
AIM, USUAL = 0.015, 8.0
"""How far the clients are to go in a round, as a share of the model's norm, and in how many iterations, after a first
round that was out of proportion: as on the lab's problems in the middle of the grid."""
NOWHERE, RISE = 0.015, 1e-3
"""A pass in which clients went less far than NOWHERE, and the loss rose by less than RISE, wants a higher rate."""
SHORTEST = 4
"""The least number of rounds in a run-in, which also takes two passes: one says too little about the clients."""
TELLING = 8, 16
"""The most passes, and the most rounds, whose cosines count: later on even alike clients mostly send noise."""
LONGEST = 16
"""The largest number of passes in a run-in: ten doublings go through the whole grid."""
ROOM = 2.0
"""As a power of two: opposed clients always want a step longer than their mean, so only what exceeds a quarter of the
server's reach counts."""
RUN_IN, LATER, AWAY = math.log(2), 0.4, math.log(4)
"""How far the logarithm of the rate moves: in the run-in, later, and away from a rate that blew up in the run-in or at
which most clients diverged (twice as far if they do so again)."""
BACK = 0.35
"""How far the logarithm of the rate goes back at the end of the run-in, which ends at the highest rate that just did no
harm. If the run-in ends at a rate that is too low, after one that was too high, the rate goes half of the way to that
one instead."""
BAD, KILLED = -0.5, -1.0
"""The reward at or below which a round counts as blown up (its step was at least halved, or the loss rose by half), and
the reward of a step of which nothing was left."""
AHEAD, FAR, BLIND = 0.2, 4.0, 3
"""For a server without a set of its own: the cosine between two of its steps above which they could be longer, how many
times the clients' mean step it may have gone for that to count, and the least number of rounds for which a choice of
the run-in is held."""

SOON = 6
"""The rate is too high if a second model is taken back within this many rounds."""
STILL = 1e-4
"""A move of mu by less than this part of the grid is not reported."""

State = dict[str, Any]


@dataclass(frozen=True)
class Pace:
    grid: HyperGrid
    lap: int = 1  # rounds that are judged together: a pass over the clients, or four rounds of a longer one
    late: bool = False  # whether the clients report: rewards are those of the round before, and no length is searched

    def start(self) -> State:
        begin = {"run_in": True, "sized": None, "passed": False, "turned": False, "doubt": None, "rounds": 0}
        return {
            **begin,
            "lost": 0,
            "taken": -SOON,
            "lengths": [],
            "earned": 0.0,
            "cosines": [],
            "relative": None,
            "told": "",
            "mu": [],
        }

    @property
    def span(self) -> int:
        """The rounds of a choice of the run-in: BLIND at least where rewards are late, as the first is not its own."""
        return max(self.lap, BLIND) if self.late else self.lap

    def lasts(self, round: int) -> int:
        """Return for how many rounds a choice of the run-in is held: to the end of the pass that the round is in."""
        return self.span - (round - 1) % self.span

    def follow(self, pace: State, mu: list[float], seen: Observation, over: bool) -> tuple[State, list[float], bool]:
        """Return the state and mu after a round, and whether to give up the choice; `over`: this was its last round."""
        pace = {**self.start(), **pace}  # a checkpoint of an earlier version may lack some keys
        already = pace["lost"] > 0  # the rate came down in the round before
        lost = pace["lost"] + 1 if seen.diverged > 0.5 else 0
        pace = {**pace, "told": "", "lost": lost}
        if lost:
            pace = {**pace, "turned": True, "doubt": None, "lengths": [], "earned": 0.0}
            return *self.moved(pace, mu, -lost * AWAY, "the clients' values were not finite"), True
        far = self.out_of_proportion(seen) if pace["sized"] is None and seen.round <= FIRST_ROUNDS else None
        if far is not None:
            return *self.in_proportion(pace, mu, far), True
        if not seen.carried_out:
            if not self.late or already or seen.reward is None or seen.reward > BAD:
                return pace, mu, False
            # the round before did harm; opposed clients overshoot once in a while, but not twice in a few rounds
            again = 0 < seen.round - pace["taken"] <= SOON
            pace = {**pace, "taken": seen.round}
            return (*self.away(pace, mu), True) if again or seen.reward <= KILLED else (pace, mu, False)
        if pace["sized"] is None:
            pace = {**pace, "sized": seen.relative is not None and PLAUSIBLE[0] <= seen.relative <= PLAUSIBLE[1]}
        known, pace = len(pace["cosines"]), self.noticed(pace, seen)
        if not self.late and seen.reward is not None and seen.reward <= BAD:
            return *self.away(pace, mu), True
        early = not over
        if early and not self.sure(pace):
            return pace, mu, False
        more, why = self.judged(pace)
        if early and more <= 0:
            return pace, mu, False
        searched, pace = bool(pace["lengths"]), {**pace, "passed": True, "lengths": [], "earned": 0.0}
        if len(pace["cosines"]) > max(known, self.lap):  # the first pass says too little
            before = mu
            pace, mu = self.iterations(pace, mu)
            if pace["run_in"] and self.iterates_more(before, mu):
                return pace, mu, early  # what the pass said of the rate held for far fewer iterations
        if pace["run_in"]:
            return *self.running_in(pace, mu, more, why, searched), early
        size = 0.0 if self.late else LATER * self.alike(pace) * ((more > 0) - (more < 0))
        return *self.moved(pace, mu, size, why), False

    def away(self, pace: State, mu: list[float]) -> tuple[State, list[float]]:
        """Lower the learning rate after a step that did harm; return the state and mu."""
        pace = {**pace, "turned": pace["passed"], "doubt": None, "lengths": [], "earned": 0.0}
        if pace["run_in"] and self.alike(pace) == 0.0:
            pace, mu = self.iterations(pace, mu)
        return self.moved(pace, mu, -(AWAY if pace["run_in"] else LATER), "its last step did harm")

    def out_of_proportion(self, seen: Observation) -> float | None:
        """Return how far the clients went if that was out of proportion, otherwise None.

        It was if they went too far and the round was undone for it, or hardly anywhere and the loss did not move.
        """
        if seen.relative is None or "lr" not in self.grid.names:
            return None
        least, most = PLAUSIBLE
        undone = seen.relative > most and not seen.carried_out
        nowhere = seen.relative < least and seen.reward is not None and abs(seen.reward) < RISE
        return seen.relative if undone or nowhere else None

    def in_proportion(self, pace: State, mu: list[float], relative: float) -> tuple[State, list[float]]:
        """Move to USUAL iterations and a rate at which the clients would go as far as AIM; return state and mu."""
        why = f"the clients went {relative:.2g} times as far as the model is from zero"
        if "steps" in self.grid.names:
            number = self.grid.names.index("steps")
            before = self.grid.axes[number].value_at(mu[number])
            pace, mu = self.iterate(pace, mu, USUAL)
            # fewer iterations do not shorten a long way in proportion: it is not straight
            relative *= max(1.0, self.grid.axes[number].value_at(mu[number]) / before)
        return self.moved(pace, mu, math.log(AIM / relative), why)

    def judged(self, pace: State) -> tuple[float, str]:
        """Return a number that is positive if a choice's rate was too low and negative if too high, and the reason."""
        if pace["run_in"] and pace["lengths"] and pace["earned"] > -RISE and self.gone(pace, NOWHERE) < NOWHERE:
            return 1.0, "the clients hardly moved"
        # rewards that come late are those of the last model, whose loss swings
        if pace["run_in"] and pace["lengths"] and pace["earned"] < 0 and not self.late:
            return -1.0, "the loss has risen"
        more = trend(pace["lengths"])
        if self.lap > 1 and self.alike(pace) < 0.5:
            more = max(0.0, more)  # each round forgets those who were not in it: any rate calls for shorter steps
        if self.late:
            return more, "the model goes on as before"
        return more, f"the server wanted {'longer' if more > 0 else 'shorter'} steps"

    def running_in(
        self, pace: State, mu: list[float], more: float, why: str, searched: bool
    ) -> tuple[State, list[float]]:
        """Double the rate until two passes speak against it, halve it if they say so, and then end the run-in.

        Nor is it doubled where the clients would then go too far for the size of the model. The run-in also ends where
        there is no rate to move, and where it takes too long, such as at an edge of the grid. Return the state and mu.
        """
        if more <= 0 and pace["doubt"] is None:
            return {**pace, "doubt": more}, mu  # once may be chance
        before, between = pace["doubt"] or 0.0, more > 0 and pace["turned"]
        far = self.gone(pace, 0.0) > PLAUSIBLE[1] / 2
        size = RUN_IN if more + before > 0 and not far and not pace["turned"] else 0.0
        if more + before <= 0 or far:
            if more <= 0 and more + before < 0:
                size, why = -RUN_IN, why if more < 0 else "the pass before spoke against it"
            pace = {**pace, "turned": True}
        pace = {**pace, "doubt": None}
        if size and "lr" in self.grid.names and pace["rounds"] < LONGEST * self.span:
            return self.moved(pace, mu, size, why)
        if pace["rounds"] < max(SHORTEST, 2 * self.span):
            return pace, mu
        last = RUN_IN / 2 if between and not far else -BACK * searched
        told, pace = pace["told"], {**pace, "run_in": False}
        pace, mu = self.moved(pace, mu, last, "the run-in is over")
        return pace if pace["told"] != told else tell(pace, "it is over"), mu

    def noticed(self, pace: State, seen: Observation) -> State:
        """Return the state with what this round showed of the clients' steps and of the server's."""
        earned = 1 - (1 - pace["earned"]) * (1 - (seen.reward or 0.0))
        pace = {**pace, "rounds": pace["rounds"] + pace["run_in"], "earned": earned}
        pace["relative"] = seen.relative
        passes, rounds = TELLING
        if seen.cosine is not None and len(pace["cosines"]) < min(passes * self.span, rounds):
            pace["cosines"] = [*pace["cosines"], seen.cosine]
        if self.late:
            if seen.turn is not None and (seen.stretch is None or seen.stretch.taken < FAR):
                pace["lengths"] = [*pace["lengths"], float(seen.turn > AHEAD)]
        elif seen.stretch is not None:
            length = math.log2(seen.stretch.wanted)
            usual = max(0.0, math.log2(seen.stretch.reach) - ROOM)
            pace["lengths"] = [*pace["lengths"], max(0.0, length - usual) if length > 0 else length]
        return pace

    def sure(self, pace: State) -> bool:
        """Return whether the last round of the run-in says enough by itself.

        It does if those before have shown the clients to be alike, so that any of them speak for all, and the server
        wanted to go twice as far.
        """
        known = self.lap > 1 and pace["run_in"] and len(pace["cosines"]) >= self.span and self.alike(pace) == 1.0
        return known and not self.late and bool(pace["lengths"]) and pace["lengths"][-1] >= 1.0

    def gone(self, pace: State, unknown: float) -> float:
        """Return how far the clients last went, as a share of the model's norm, or `unknown` if that says nothing."""
        return unknown if not pace["sized"] or pace["relative"] is None else float(pace["relative"])

    def alike(self, pace: State) -> float:
        """Return how alike the clients' steps are, from 0 (opposed) to 1 (alike); 0 if nothing is known."""
        cosines = pace["cosines"]
        if not cosines:
            return 0.0
        passes = [cosines[first : first + self.span] for first in range(0, len(cosines), self.span)]
        whole = [each for each in passes if len(each) == self.span] or passes
        return float(np.interp(min(np.mean(each) for each in whole), [OPPOSED, ALIKE], [0.0, 1.0]))

    def iterations(self, pace: State, mu: list[float]) -> tuple[State, list[float]]:
        """Move mu to as many SGD iterations as the clients' agreement allows; return the state and mu."""
        if "steps" not in self.grid.names or not pace["cosines"]:
            return pace, mu
        alike = self.alike(pace)
        how = "are opposed" if alike == 0.0 else "agree" if alike == 1.0 else "agree in part"
        return self.iterate(pace, mu, FEW * (MANY / FEW) ** alike, f"the clients' steps {how}")

    def iterates_more(self, before: list[float], after: list[float]) -> bool:
        """Return whether the SGD iterations have gone up from one mu to the other."""
        moves = zip(self.grid.names, before, after, strict=True)
        return any(name == "steps" and there > here for name, here, there in moves)

    def iterate(self, pace: State, mu: list[float], count: float, why: str = "") -> tuple[State, list[float]]:
        """Move mu to `count` SGD iterations, within the grid; return the state and mu."""
        number = self.grid.names.index("steps")
        axis, here = self.grid.axes[number], mu[number]
        there = place(axis, count)
        if abs(there - here) < 0.02:
            return pace, mu  # a fraction of the distance between two values of the grid
        before, after = (axis.typed(nearest(axis, z)) for z in (here, there))
        way = "more" if after > before else "fewer" if after < before else "as many"
        told = f"{way} SGD iterations, about {after:g}"
        return tell(pace, f"{told}: {why}" if why else told), put(there, number, mu)

    def moved(self, pace: State, mu: list[float], size: float, why: str) -> tuple[State, list[float]]:
        """Move the logarithm of the learning rate by `size`, within the grid; return the state and mu."""
        if size == 0.0 or "lr" not in self.grid.names:
            return pace, mu
        number = self.grid.names.index("lr")
        axis, here = self.grid.axes[number], mu[number]
        there = place(axis, axis.value_at(here) * math.exp(size))
        if abs(there - here) < 1e-9:
            return pace, mu  # at the edge of the grid
        if abs(there - here) >= STILL:
            told = " to ".join(apart(axis.value_at(here), axis.value_at(there)))
            pace = tell(pace, f"learning rate {told}: {why}")
        return pace, put(there, number, mu)


def trend(lengths: list[float]) -> float:
    """Return the mean of `lengths` if it is at least their standard deviation and half a doubling; otherwise 0."""
    if not lengths:
        return 0.0
    mean = float(np.mean(lengths))
    return mean if abs(mean) >= max(0.5, float(np.std(lengths))) else 0.0


def tell(pace: State, text: str) -> State:
    """Return the state with one more thing to report of this round."""
    return {**pace, "told": "; ".join(filter(None, (pace["told"], text)))}


def apart(one: float, other: float, figures: int = 3) -> tuple[str, str]:
    """Return both values as text, with at least `figures` figures and as many as it takes to tell them apart."""
    pairs = [(written(one, n), written(other, n)) for n in range(figures, 18)]
    return next((pair for pair in pairs if pair[0] != pair[1]), pairs[0])


def written(value: float, figures: int) -> str:
    """Return a value as text with so many figures, never in powers of ten: 0.0092, 4.1, 130."""
    return np.format_float_positional(float(f"{value:.{figures}g}"), trim="-")


def nearest(axis: Axis, z: float) -> int:
    """Return the number of the grid's value that is nearest to a normalised point."""
    return int(np.abs(axis.points - z).argmin())


def place(axis: Axis, value: float) -> float:
    """Return the normalised point of a value, or of the nearest end of the axis if it lies outside."""
    return axis.point_of(min(max(value, axis.values[0]), axis.values[-1]))


def put(there: float, number: int, mu: list[float]) -> list[float]:
    return [there if n == number else z for n, z in enumerate(mu)]
