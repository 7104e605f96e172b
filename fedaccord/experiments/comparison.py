"""Comparison of a study's methods at an equal budget of rounds, client steps, bytes or seconds, with what each spent.

No run is repeated: each is read at the last test at which it had spent no more than the budget. The budget is what the
cheapest method spent, or what the user names. At equal rounds, which all runs of a row have, each run is read at its
end. Nothing is selected here: a table shows the last test, and the model that a run hands out was chosen on the
server's set.
"""

import math
import operator
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedaccord.experiments import study as studies
from fedaccord.experiments.study import Cell, Row, Study
from fedaccord.experiments.yardsticks import PLAIN, YARDSTICKS, name_of
from fedaccord.report import tables
from fedaccord.report.grid import Grid
from fedaccord.report.spent import (
    BYTES,
    COSTS,
    ROUNDS,
    SECONDS,
    STEPS,
    Measured,
    Reading,
    interval,
    read_at,
    read_tests,
)
from fedaccord.report.spent import total_of as total
from fedaccord.runtime.folder import MetricNote

Runs = Sequence[Sequence[Measured]]
"""The runs behind one figure."""


@dataclass(frozen=True)
class Line:
    """A row of the study, read at its budget."""

    row: Row
    readings: Mapping[str, Mapping[int, Reading]]  # column -> seed -> what its runs were worth
    budgets: Sequence[float] = ()  # of each seed; empty: each run is read at its end
    whose: Sequence[str] = ()  # the methods that spent the least; empty: the user named the budget


def read_line(row: Row, runs: Mapping[str, Mapping[int, Runs]], equal: str, named: float | None) -> Line:
    """Read a row's runs at the budget that the user named or, seed by seed, at the least that a method spent.

    `runs`: column -> seed -> the finished runs.
    """
    readings: dict[str, dict[int, Reading]] = {column: {} for column in runs}
    budgets, whose = [], []
    for seed in range(row.seeds):
        here = {column: seeds[seed] for column, seeds in runs.items() if seed in seeds}
        spent = {column: total(each, equal) for column, each in here.items() if column not in YARDSTICKS}
        budget = named
        if named is None and equal != ROUNDS and spent:
            whose.append(min(spent, key=lambda name: spent[name]))
            budget = spent[whose[-1]]
        if budget is not None:
            budgets.append(budget)
        for column, each in here.items():
            if found := read_at(each, equal, share_of(column, each, equal, budget, max(spent.values(), default=0.0))):
                readings[column][seed] = found
    return Line(row, readings, budgets, list(dict.fromkeys(whose)))


def share_of(column: str, runs: Runs, equal: str, budget: float | None, most: float) -> float:
    """Return the share of these runs that the budget pays for; `most`: what the dearest method spent.

    Clients that are alone are all cut at the same share. A yardstick sends nothing, so bytes do not limit it; and its
    rounds are not the federation's, so it is cut at the same share of its rounds as the federation of its own.
    """
    if budget is None or (column in YARDSTICKS and equal == BYTES):
        return math.inf
    spent = most if column in YARDSTICKS and equal == ROUNDS else total(runs, equal)
    return budget / spent if spent else math.inf


def compare(
    study: Study,
    folder: Path,
    equal: str = ROUNDS,
    budget: float | None = None,
    as_published: bool = False,
    chance: float | None = None,
) -> tuple[tables.Table, Grid]:
    """Return the table of last values, and a grid that also shows what each method spent, from the finished runs.

    `chance`: what a run that diverged counts as, in the units of the table; None: it is left out.

    `as_published`: the table has the means of the last five tests, with the paper's figures below, and marks what is
    better than FA beyond chance; the grid's differences are between these means too.
    """
    figure = operator.attrgetter("last" if as_published else "value")
    over = studies.finished if chance is None else studies.ended
    groups = studies.complete(study, folder, over)
    tests = {cell.name: read_tests(folder / cell.name) for cells in groups.values() for cell in cells}
    lost = [cell for cells in groups.values() for cell in cells if not studies.finished(cell, folder)]
    if chance is not None:
        tests |= {cell.name: [replace(test, value=chance) for test in tests[cell.name]] for cell in lost}
    lines = []
    for number, row in enumerate(study.rows):
        runs = {
            name_of(method): {
                seed: [tests[cell.name] for cell in groups[number, name_of(method), seed]]
                for seed in range(row.seeds)
                if (number, name_of(method), seed) in groups
            }
            for method in row.methods
        }
        lines.append(read_line(row, runs, equal, budget))

    def value(row: int, column: str, seed: int) -> float | None:
        found = lines[row].readings.get(column, {}).get(seed)
        return None if found is None else float(figure(found))

    table = studies.table_of(study, folder, with_paper=as_published, value=value, over=over)
    if lost:
        table = replace(table, heading=f"{table.heading}. Diverged, and counted as chance: {named(lost)}")
    if as_published:
        rows = [replace(row, better=better(line, table.metric)) for row, line in zip(table.rows, lines, strict=True)]
        table = replace(table, rows=rows)
    spent_by = grid_of(table, lines, equal, figure)
    cut = any(line.budgets for line in lines)
    return (replace(table, heading=f"{table.heading}, read at equal {equal}") if cut else table), spent_by


def named(cells: Sequence[Cell]) -> str:
    """Return a list of runs in words: the method of each, its row and its seed."""
    return ", ".join(f"{name_of(cell.method)} ({studies.label(cell.row)}, seed {cell.seed})" for cell in cells)


def better(line: Line, metric: MetricNote) -> frozenset[str]:
    """Return the columns that are better than FA with the same seeds by more than chance."""
    plain, found = line.readings.get(PLAIN, {}), set()
    for column, seeds in line.readings.items():
        sign = 1 if metric.higher else -1
        bounds = interval([sign * (each.last - plain[seed].last) for seed, each in seeds.items() if seed in plain])
        if bounds is not None and bounds[0] > 0:
            found.add(column)
    return frozenset(found)


def grid_of(table: tables.Table, lines: Sequence[Line], equal: str, figure: Callable[[Reading], float]) -> Grid:
    """Return a grid with a line for each row and method: its values, its difference to FA, and what it spent.

    Where clients have test data of their own, the result on that has a column too.
    """
    metric = table.metric
    readings = [found for line in lines for seeds in line.readings.values() for found in seeds.values()]
    own = any(found.owns for found in readings)
    head = ["", "method", "last", "last five", "to FA (95 %)", *COSTS, *(["own test data"] if own else [])]
    body = []
    for line in lines:
        for column in table.columns:
            seeds = line.readings.get(column, {})
            if not seeds:
                continue
            found = list(seeds.values())
            cells = [
                tables.written(tables.figure_of([each.value for each in found]), "±", metric),
                tables.written(tables.figure_of([each.last for each in found]), "±", metric),
                against(seeds, {} if column == PLAIN else line.readings.get(PLAIN, {}), metric, figure),
                *spent(column, found),
            ]
            body.append([studies.label(line.row), column, *cells, *([own_data(found, metric)] if own else [])])
    notes = [note for line in lines for note in (budget_note(line, equal), *spread_notes(line, metric)) if note]
    return Grid(f"{table.heading}; held equal: {COSTS[equal]}", head, body, notes)


def against(
    seeds: Mapping[int, Reading], plain: Mapping[int, Reading], metric: MetricNote, figure: Callable[[Reading], float]
) -> str:
    """Return the mean difference to FA with the same seeds, and its confidence interval, as text."""
    return difference([figure(found) - figure(plain[seed]) for seed, found in seeds.items() if seed in plain], metric)


def difference(apart: Sequence[float], metric: MetricNote) -> str:
    """Return the mean of some differences and its confidence interval as text, with a dash for what is not known."""
    if not apart:
        return "–"
    shown = "+.1f" if metric.percent else "+.3g"
    bounds = interval(apart)
    inside = "–" if bounds is None else " to ".join(format(bound, shown) for bound in bounds)
    return f"{format(statistics.fmean(apart), shown)} ({inside})"


def spent(column: str, found: Sequence[Reading]) -> list[str]:
    """Return each cost as text, a mean over the seeds; a yardstick has a dash for bytes, because it sends nothing."""
    means = {cost: statistics.fmean(each.spent[cost] for each in found) for cost in COSTS}
    said = {ROUNDS: f"{means[ROUNDS]:,.0f}", STEPS: f"{means[STEPS]:,.0f}", SECONDS: f"{means[SECONDS]:,.1f}"}
    said[BYTES] = "–" if column in YARDSTICKS else f"{means[BYTES]:,.0f}"
    return [said[cost] for cost in COSTS]


def own_data(found: Sequence[Reading], metric: MetricNote) -> str:
    """Return the mean over clients and seeds on the clients' own test data as text, or a dash if they have none."""
    owns = [value for each in found for value in each.owns]
    return tables.written_mean(statistics.fmean(owns), metric) if owns else "–"


def budget_note(line: Line, equal: str) -> str:
    """Return a sentence on the budget at which every run of a row was read, and why; empty without a budget."""
    if not line.budgets:
        return ""
    ends = " to ".join(f"{end:,.{0 if end >= 100 else 1}f}" for end in sorted({min(line.budgets), max(line.budgets)}))
    why = f"what {' or '.join(line.whose)} spent, the least with that seed" if line.whose else "as named"
    return f"{studies.label(line.row)}: every run is read at its last test within {ends} {equal}, {why}."


def spread_notes(line: Line, metric: MetricNote) -> list[str]:
    """Return sentences on how much clients that are alone differ, in the mean over the seeds."""
    notes = []
    for column, seeds in line.readings.items():
        several = [found for found in seeds.values() if len(found.values) > 1]
        for where, sets in (
            ("the test set", [found.values for found in several]),
            ("test data of their own", [found.owns for found in several if len(found.owns) > 1]),
        ):
            if sets:
                mean, spread, least, most = (
                    statistics.fmean(map(of, sets)) for of in (statistics.fmean, statistics.stdev, min, max)
                )
                said = tables.written((mean, spread), "±", metric)
                ends = " to ".join(tables.written_mean(end, metric) for end in (least, most))
                notes.append(
                    f"{studies.label(line.row)}, {column}: {said} over {len(sets[0])} clients on {where}, from {ends}."
                )
    return notes
