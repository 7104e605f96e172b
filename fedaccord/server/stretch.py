"""How far the server goes along the clients' mean step: w_t + s (mean - w_t)."""

import math
from collections.abc import Callable, Sequence

from fedaccord.core.algorithm import Aggregated
from fedaccord.core.observing import weighted_mean
from fedaccord.core.records import Snapshot, Stretch

REACH = (2.0, 16.0)
"""Bounds on the longest step of the server, in lengths of the clients' mean step. Between them FedExP's number decides,
which is large where the clients' steps cancel each other: half of their mean square over the square of their mean."""

Losses = Callable[[Snapshot], float | None]
Length = Callable[[int, Aggregated, Losses], tuple[Snapshot, Stretch | None]]
"""(round, the result of line 14, a model's rewarded loss) -> the next model, and how far the server went."""


def searched(shortest: float) -> Length:
    """Return a `Length` that goes by the loss: s is doubled as long as that pays, or else halved, down to `shortest`.

    A half is tried in any case: that it is wanted says something, even where it may not be taken.
    """

    def search(round: int, mean: Aggregated, loss_of: Losses) -> tuple[Snapshot, Stretch]:
        def tried(factor: float) -> tuple[float, Snapshot]:
            model = mean.model if factor == 1.0 else mean.scaled(factor)
            loss = loss_of(model)
            return loss if loss is not None and math.isfinite(loss) else math.inf, model

        longest = reach(mean)
        wanted, (loss, model) = 1.0, tried(1.0)
        for times in (2.0, 0.5):
            while min(shortest, 0.5) <= wanted * times <= longest:
                other, there = tried(wanted * times)
                if other >= loss:
                    break
                wanted, loss, model = wanted * times, other, there
            if wanted != 1.0:
                break
        if wanted < shortest:
            return mean.model, Stretch(1.0, wanted, longest)
        return model, Stretch(wanted, wanted, longest)

    return search


def unmeasured(round: int, mean: Aggregated, loss_of: Losses) -> tuple[Snapshot, Stretch | None]:
    """Take a step of FedExP's length where the clients' steps cancel, or else their mean step, and measure no loss."""
    times = reach(mean)
    if times <= REACH[0]:
        return mean.model, None
    return mean.scaled(times), Stretch(times, times, times)


def recorded(lengths: Sequence[float | None]) -> Length:
    """Return a `Length` that repeats another run's; where that is None or missing, the clients' mean step is taken."""

    def look_up(round: int, mean: Aggregated, loss_of: Losses) -> tuple[Snapshot, Stretch | None]:
        taken = lengths[round - 1] if round <= len(lengths) else None
        if taken is None:
            return mean.model, None
        return mean.model if taken == 1.0 else mean.scaled(taken), Stretch(taken, taken, taken)

    return look_up


def reach(mean: Aggregated) -> float:
    """Return the longest step that the server may take, in lengths of the clients' mean step."""
    square = weighted_mean(mean.accepted, lambda each: each.entered**2)
    least, most = REACH
    return min(most, max(least, square / (2 * mean.step_norm**2))) if mean.step_norm else least
