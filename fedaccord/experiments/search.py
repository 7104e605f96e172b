"""The search for the best fixed schedule of a problem.

It tries a coarse cross first, then goes ever nearer around the best, and runs the best again with other seeds.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

MOST = 16
"""The most schedules that a search may try."""
LONGEST = 108
"""The most iterations of a round that a search tries, more than the tuner's grid has: beyond them it would buy
accuracy with client steps."""
RUNS = 3
"""The number of seeds with which the best is run in the end, as many as a report has."""
NEAR = 2.5
"""The largest ratio, up or down, at which a neighbour encloses the best."""


@dataclass(frozen=True)
class Schedule:
    """A fixed schedule: the learning rate, the iterations, and the factor on each after every round."""

    lr: float
    lr_decay: float
    steps: int
    steps_decay: float = 1.0

    @property
    def name(self) -> str:
        return f"lr{self.lr:g}x{self.lr_decay:g}-steps{self.steps}x{self.steps_decay:g}"


def around(lr: float, steps: int, rounds: int) -> tuple[Schedule, ...]:
    """Return the first schedules of a search: a cross of three rates and three numbers of iterations around a guess.

    The rate falls to a tenth until the last round. The guess itself is tried without that fall too, and with iterations
    that fall to a third as well.
    """
    slower, fewer = (round(end ** (1 / rounds), 4) for end in (1 / 10, 1 / 3))
    return (
        Schedule(lr, slower, steps),
        Schedule(lr, 1.0, steps),
        Schedule(lr, slower, steps, fewer),
        Schedule(rounded(3 * lr), slower, steps),
        Schedule(rounded(lr / 3), slower, steps),
        Schedule(lr, slower, 3 * steps),
        Schedule(lr, slower, max(1, round(steps / 3))),
    )


def beside(found: Schedule) -> tuple[Schedule, ...]:
    """Return the first schedules of a search that begins at another one's best: a cross of twice and half around it."""
    return (
        found,
        replace(found, lr=rounded(2 * found.lr)),
        replace(found, lr=rounded(found.lr / 2)),
        *(replace(found, steps=steps) for steps in (2 * found.steps, found.steps // 2) if 1 <= steps <= LONGEST),
    )


def stretched(found: Schedule, times: float) -> Schedule:
    """Return a schedule with the same fall of rate and iterations, stretched over `times` as many rounds."""
    lr_decay, steps_decay = (round(decay ** (1 / times), 6) for decay in (found.lr_decay, found.steps_decay))
    return replace(found, lr_decay=lr_decay, steps_decay=steps_decay)


def rounded(rate: float) -> float:
    return float(f"{rate:.2g}")


class Trial(NamedTuple):
    """A run of a schedule; `number` counts from the search's first seed."""

    schedule: Schedule
    number: int = 0


Losses = Mapping[Schedule, tuple[float, ...]]
"""The schedules that were tried, with the loss of each run."""


@dataclass(frozen=True)
class Search:
    """The state of the search for an oracle: the losses of each schedule that was tried, and the trials to run next."""

    losses: Losses
    missing: tuple[Trial, ...]

    @property
    def trials(self) -> list[Trial]:
        """All trials that were run, and those to run next."""
        return [*(Trial(each, n) for each, runs in self.losses.items() for n in range(len(runs))), *self.missing]

    @property
    def chosen(self) -> Schedule | None:
        """The schedule with the smallest mean loss, once something was tried and there is nothing left to run."""
        return best_of(self.losses) if self.losses and not self.missing else None

    @property
    def at_edge(self) -> bool:
        """Whether the search ended although the schedules that were tried do not enclose the best."""
        return self.chosen is not None and bool(beyond(self.losses, NEAR))


def search(first: Sequence[Schedule], loss_of: Callable[[Trial], float | None]) -> Search:
    """Try the first schedules, then go on around the best until it is enclosed, with at most MOST schedules in all.

    The best is then run again with other seeds, since a rate at the edge of divergence may be best by luck; if its mean
    loss is no longer the smallest, the search goes on from the schedule that now has the smallest. `loss_of` returns
    None for a trial that was not run yet.
    """
    losses: dict[Schedule, tuple[float, ...]] = {}
    todo = [Trial(each) for each in first]
    while todo:
        found = {trial: loss_of(trial) for trial in todo}
        for trial, loss in found.items():
            if loss is not None:
                losses[trial.schedule] = (*losses.get(trial.schedule, ()), loss)
        if missing := tuple(trial for trial, loss in found.items() if loss is None):
            return Search(losses, missing)
        todo = following(losses)
    return Search(losses, ())


def following(losses: Losses) -> list[Trial]:
    """Return the trials that come next: around the best, first at the edges, then near; in the end the best again."""
    for reach in (math.inf, NEAR):
        nearby = [Trial(each) for each in beyond(losses, reach) if each.steps <= LONGEST]
        if nearby and len(losses) < MOST:
            return nearby[: MOST - len(losses)]
    best = best_of(losses)
    return [Trial(best, len(losses[best]))] if len(losses[best]) < RUNS else []


def beyond(tried: Losses, reach: float) -> list[Schedule]:
    """Return the schedules to try next to the best one, with twice or half its rate or its iterations.

    There is one on every side where nothing was tried within `reach` times as much, with the other number the same.
    """
    best = best_of(tried)
    rates = [each.lr / best.lr for each in tried if each.steps == best.steps]
    steps = [each.steps / best.steps for each in tried if each.lr == best.lr]
    more = min(2 * best.steps, LONGEST) if best.steps < LONGEST else 2 * best.steps
    found = []
    if not any(1 < each <= reach for each in rates):
        found.append(replace(best, lr=rounded(2 * best.lr)))
    if not any(1 / reach <= each < 1 for each in rates):
        found.append(replace(best, lr=rounded(best.lr / 2)))
    if not any(1 < each <= reach for each in steps):
        found.append(replace(best, steps=more))
    if not any(1 / reach <= each < 1 for each in steps) and best.steps > 1:
        found.append(replace(best, steps=best.steps // 2))
    return [each for each in found if each not in tried]


def best_of(losses: Losses) -> Schedule:
    return min(losses, key=lambda each: statistics.fmean(losses[each]))
