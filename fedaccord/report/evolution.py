"""The paper's evolution figure: how the mean of P(h | psi) moved, from run folders alone."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedaccord.core.errors import SettingsError
from fedaccord.report.canvas import colours_of, new_figure, save, tidy
from fedaccord.report.curves import Panels
from fedaccord.report.tuner import label_of
from fedaccord.runtime.folder import read_rounds


def draw(columns: Panels, path: Path) -> None:
    """One column a title, one colour a label, one line a run; one row for each hyper-parameter that is tuned."""
    read = {
        title: {kind: [tuned(run) for run in runs] for kind, runs in curves.items()}
        for title, curves in columns.items()
    }
    every = (line for curves in read.values() for runs in curves.values() for lines in runs for line in lines)
    names = list(dict.fromkeys(name for line in every for name in line["policy"]["mean"]))
    if not names:
        raise SettingsError(f"{path}: none of these runs tuned its hyper-parameters, there is nothing to draw")
    figure = new_figure(4.2 * len(columns), 2.3 * len(names))
    grid = figure.subplots(len(names), len(columns), squeeze=False)
    colours = colours_of(columns)
    for column, (title, logs) in enumerate(read.items()):
        for row, name in enumerate(names):
            axes = grid[row][column]
            for kind, runs in logs.items():
                for number, lines in enumerate(runs):
                    there = [line for line in lines if name in line["policy"]["mean"]]
                    axes.plot(
                        [line["round"] for line in there],
                        [line["policy"]["mean"][name] for line in there],
                        color=colours[kind],
                        linewidth=1.2,
                        label=kind if number == 0 else None,
                    )
            tidy(
                axes,
                title=title if row == 0 else "",
                xlabel="round" if row == len(names) - 1 else "",
                ylabel=label_of(name) if column == 0 else "",
            )
    save(figure, path)


def tuned(run: Path) -> list[Mapping[str, Any]]:
    """The lines of a run's log that have the mean of P(h | psi)."""
    return [line for line in read_rounds(run) if isinstance((line.get("policy") or {}).get("mean"), dict)]
