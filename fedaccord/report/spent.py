"""The costs of a run up to each of its tests, and its results at a budget, all from its log."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedaccord.core.errors import RunError
from fedaccord.report.tables import first_metric, in_units
from fedaccord.runtime.folder import client_steps, read_rounds, read_settings

ROUNDS, STEPS, BYTES, SECONDS = "rounds", "steps", "bytes", "seconds"
COSTS = {
    ROUNDS: "rounds",
    STEPS: "client steps: mini-batches of all clients together",
    BYTES: "bytes sent down and up",
    SECONDS: "seconds of all rounds by the run's own clock, which other runs beside it slow down",
}
"""The costs of a run, and what each is."""
LAST = 5
"""Tests at the end of a run by whose mean it is judged, and rounds by whose mean loss a schedule is judged."""


@dataclass(frozen=True)
class Measured:
    """One test of a run: what it had spent by then, and what was measured, in the units of a table."""

    spent: Mapping[str, float]
    value: float
    own: float | None = None  # the mean over the clients, each on test data of its own; None: they keep none


@dataclass(frozen=True)
class Reading:
    """The results at a budget of the runs behind one figure: one run, or one of each client alone."""

    values: tuple[float, ...]  # of each run
    last: float  # the mean of its last tests, over all runs
    spent: Mapping[str, float]  # of all runs together; rounds: the most of any
    owns: tuple[float, ...]  # on the clients' own test data, where there is some

    @property
    def value(self) -> float:
        return statistics.fmean(self.values)


def read_tests(run: Path) -> list[Measured]:
    """Return every test in a run's log, with what the run had spent by then."""
    metric, settings = first_metric(run), read_settings(run)
    spent = dict.fromkeys(COSTS, 0.0)
    tests = []
    for line in read_rounds(run):
        spent[ROUNDS] += 1
        spent[STEPS] += client_steps(line, settings.steps)
        spent[BYTES] += line.get("bytes", 0)
        spent[SECONDS] += sum(line["seconds"].values())
        if (value := line["metrics"].get(metric.name)) is not None:
            measured = [entry.get("metrics", {}).get(metric.name) for entry in line["clients"].values()]
            owns = [in_units(each, metric) for each in measured if each is not None]
            tests.append(Measured(dict(spent), in_units(value, metric), statistics.fmean(owns) if owns else None))
    if not tests:
        raise RunError(f"{run}: its {metric.name} was never measured")
    return tests


def total_of(runs: Sequence[Sequence[Measured]], cost: str) -> float:
    """Return what these runs spent together, up to the last test of each; of rounds, the most of any."""
    totals = [tests[-1].spent[cost] for tests in runs]
    return max(totals) if cost == ROUNDS else math.fsum(totals)


def read_at(runs: Sequence[Sequence[Measured]], cost: str, share: float = math.inf) -> Reading | None:
    """Read each run at its last test within this share of all that it spent; None if a run has no such test."""
    within = []
    for tests in runs:
        most = share * tests[-1].spent[cost] * (1 + 1e-9) if tests[-1].spent[cost] else math.inf
        within.append([test for test in tests if test.spent[cost] <= most])
    if not all(within):
        return None
    ends = [tests[-1] for tests in within]
    return Reading(
        tuple(end.value for end in ends),
        statistics.fmean(statistics.fmean(test.value for test in tests[-LAST:]) for tests in within),
        {name: total_of(within, name) for name in COSTS},
        tuple(end.own for end in ends if end.own is not None),
    )


def interval(differences: Sequence[float]) -> tuple[float, float] | None:
    """Return Student's 95 % confidence interval of the mean, or None for fewer than two values, without a spread."""
    from scipy.special import stdtrit  # imported only when needed

    count = len(differences)
    if count < 2:
        return None
    mean = statistics.fmean(differences)
    reach = float(stdtrit(count - 1, 0.975)) * statistics.stdev(differences) / math.sqrt(count)
    return mean - reach, mean + reach
