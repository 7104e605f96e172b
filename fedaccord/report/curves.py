"""Pictures of test metrics and loss against rounds, from run folders alone."""

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedaccord.core.errors import SettingsError
from fedaccord.report.canvas import COLOURS, Panels, draw_grid, new_figure, save, tidy
from fedaccord.report.tables import ACCURACY, in_units
from fedaccord.runtime.folder import MetricNote, read_metrics, read_rounds

POINTS = 200
LOSS = "loss"


def draw(panels: Panels, path: Path, rows: Sequence[str] = ()) -> None:
    """Draw one column for each title and one curve for each label: the mean of its runs, in a band from least to most.

    `rows` are names of metrics, or LOSS for L_t; if empty, all metrics of the runs and then L_t are drawn.
    """
    fields = fields_of(panels, rows)
    draw_grid(panels, [(axis_label(field), partial(plot, field)) for field in fields], path, 0.6 + 2.6 * len(fields), 1)


def plot(field: MetricNote | None, axes: Any, runs: Sequence[Path], label: str, color: str) -> None:
    rounds, values = measured(runs, field)
    axes.plot(rounds, values.mean(axis=0), color=color, label=label, linewidth=1.6)
    if len(runs) > 1:
        axes.fill_between(rounds, values.min(axis=0), values.max(axis=0), color=color, alpha=0.18, linewidth=0)


def fields_of(panels: Panels, rows: Sequence[str]) -> list[MetricNote | None]:
    """Return what each row of the picture shows: a metric, or None for L_t."""
    every = [run for curves in panels.values() for runs in curves.values() for run in runs]
    notes = dict.fromkeys(note for run in every for note in read_metrics(run))
    by_name = {note.name: note for note in notes}
    for name in rows:
        if name != LOSS and name not in by_name:
            there = ", ".join([*by_name, LOSS])
            raise SettingsError(f"no curve of {name}: what these runs measured is {there}")
    return [None if name == LOSS else by_name[name] for name in rows] or [*notes, None]


def axis_label(field: MetricNote | None) -> str:
    return "loss $L_t$" if field is None else f"test {field.name}{', %' if field.percent else ''}"


def measured(runs: Sequence[Path], field: MetricNote | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the rounds in which all runs know the figure, and its values in the units of the plot, (runs, rounds).

    There are at most 200 rounds.
    """
    found = [
        {line["round"]: value for line in read_rounds(run) if (value := value_of(line, field)) is not None}
        for run in runs
    ]
    shared = sorted(set.intersection(*(set(each) for each in found)))
    shared = shared[:: max(1, -(-len(shared) // POINTS))][:-1] + shared[-1:]  # no eye sees more, and files stay small
    return np.array(shared), np.array([[each[round] for round in shared] for each in found])


def value_of(line: Mapping[str, Any], field: MetricNote | None) -> float | None:
    """Return a round's loss or metric in the units in which it is shown, or None if the round has none."""
    value: float | None = line["loss"] if field is None else line["metrics"].get(field.name)
    return value if value is None or field is None else in_units(value, field)


def draw_sweep(
    title: str,
    xlabel: str,
    curves: Mapping[str, Mapping[float, Sequence[float]]],
    path: Path,
    metric: MetricNote = ACCURACY,
) -> None:
    """Draw a metric, as it is shown in tables, against a setting: one curve for each label, one dot for each run."""
    figure = new_figure(5.0, 3.4)
    axes = figure.subplots()
    for colour, (label, points) in zip(itertools.cycle(COLOURS), curves.items(), strict=False):
        axes.plot(list(points), [float(np.mean(values)) for values in points.values()], color=colour, label=label)
        for place, values in points.items():
            axes.plot([place] * len(values), values, "o", color=colour, markersize=4)
    axes.set_xscale("log")
    ticks = sorted({place for points in curves.values() for place in points})
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    tidy(axes, title=title, xlabel=xlabel, ylabel=axis_label(metric))
    save(figure, path)
