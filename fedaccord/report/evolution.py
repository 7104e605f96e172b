"""The paper's evolution figure: how the mean of P(h | psi) moved, from run folders alone."""

from pathlib import Path

from fedaccord.report.canvas import colours_of, new_figure, save, tidy
from fedaccord.report.curves import Panels
from fedaccord.runtime.folder import read_rounds

ROWS = {"lr": "learning rate", "steps": "SGD iterations"}


def draw(columns: Panels, path: Path) -> None:
    """One column a title, one colour a label, one line a run; the rate in the first row, the iterations below."""
    figure = new_figure(4.2 * len(columns), 4.6)
    grid = figure.subplots(2, len(columns), squeeze=False)
    colours = colours_of(columns)
    for column, (title, curves) in enumerate(columns.items()):
        logs = {kind: [list(read_rounds(run)) for run in runs] for kind, runs in curves.items()}
        for row, (name, label) in enumerate(ROWS.items()):
            axes = grid[row][column]
            for kind, runs in logs.items():
                for number, lines in enumerate(runs):
                    axes.plot(
                        [line["round"] for line in lines],
                        [line["policy"]["mean"][name] for line in lines],
                        color=colours[kind],
                        linewidth=1.2,
                        label=kind if number == 0 else None,
                    )
            tidy(
                axes,
                title=title if row == 0 else "",
                xlabel="round" if row else "",
                ylabel=label if column == 0 else "",
            )
    save(figure, path)
