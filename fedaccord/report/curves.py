"""Accuracy and loss against rounds, from run folders alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedaccord.report.canvas import COLOURS, colours_of, new_figure, save, tidy
from fedaccord.runtime.folder import read_rounds

Panels = Mapping[str, Mapping[str, Sequence[Path]]]
"""Title -> label of a curve -> the runs (seeds) that it is made of."""

POINTS = 200
ROWS = {"accuracy": "test accuracy, %", "loss": "loss $L_t$"}


def draw(panels: Panels, path: Path, rows: Sequence[str] = ("accuracy",)) -> None:
    """One column a title, one curve a label: mean over its runs, with a band from least to most."""
    figure = new_figure(4.2 * len(panels), 0.6 + 2.6 * len(rows))
    grid = figure.subplots(len(rows), len(panels), squeeze=False)
    colours = colours_of(panels)
    for row, field in enumerate(rows):
        for column, (title, curves) in enumerate(panels.items()):
            axes = grid[row][column]
            for label, runs in curves.items():
                colour = colours[label]
                rounds, values = measured(runs, field)
                axes.plot(rounds, values.mean(axis=0), color=colour, label=label, linewidth=1.6)
                if len(runs) > 1:
                    axes.fill_between(
                        rounds, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.18, linewidth=0
                    )
            tidy(
                axes,
                legend=row == 0,
                title=title if row == 0 else "",
                xlabel="round" if row == len(rows) - 1 else "",
                ylabel=ROWS[field] if column == 0 else "",
            )
    save(figure, path)


def measured(runs: Sequence[Path], field: str) -> tuple[np.ndarray, np.ndarray]:
    """Rounds in which all runs know the figure, at most 200, and its values, (runs, rounds); accuracy in percent."""
    scale = 100 if field == "accuracy" else 1
    found = [
        {line["round"]: scale * line[field] for line in read_rounds(run) if line[field] is not None} for run in runs
    ]
    shared = sorted(set.intersection(*(set(each) for each in found)))
    shared = shared[:: max(1, -(-len(shared) // POINTS))][:-1] + shared[-1:]  # no eye sees more, and files stay small
    return np.array(shared), np.array([[each[round] for round in shared] for each in found])


def draw_sweep(title: str, xlabel: str, curves: Mapping[str, Mapping[float, Sequence[float]]], path: Path) -> None:
    """Accuracy in percent against a setting: one curve a label, a dot a run."""
    figure = new_figure(5.0, 3.4)
    axes = figure.subplots()
    for colour, (label, points) in zip(COLOURS, curves.items(), strict=False):
        axes.plot(list(points), [float(np.mean(values)) for values in points.values()], color=colour, label=label)
        for place, values in points.items():
            axes.plot([place] * len(values), values, "o", color=colour, markersize=4)
    axes.set_xscale("log")
    ticks = sorted({place for points in curves.values() for place in points})
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    tidy(axes, title=title, xlabel=xlabel, ylabel="test accuracy, %")
    save(figure, path)
