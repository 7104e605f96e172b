"""Helpers that all matplotlib pictures share."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedaccord.core.errors import SettingsError

COLOURS = ("#444444", "#2a6f97", "#c1121f", "#588157", "#bc6c25", "#7b2cbf")

Panels = Mapping[str, Mapping[str, Sequence[Path]]]
"""Title -> label of a curve -> the runs (seeds) that it is made of."""


def new_figure(width: float, height: float) -> Any:
    """Return a new matplotlib figure of this size in inches."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise SettingsError("pictures need the report extra: pip install 'fedaccord[report]'") from None
    matplotlib.rcParams["svg.hashsalt"] = "fedaccord"  # so that equal pictures are equal files
    return Figure(figsize=(width, height), layout="constrained")


def colours_of(panels: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Return each label's colour, the same in all panels; if there are more labels than colours, they share them."""
    labels = dict.fromkeys(label for panel in panels.values() for label in panel)
    return dict(zip(labels, itertools.cycle(COLOURS), strict=False))


def draw_grid(
    panels: Panels, rows: Sequence[tuple[str, Callable[..., None]]], path: Path, height: float, legends: int
) -> None:
    """Draw one column for each title, and one row for each label of a y axis with the function that draws its curves.

    The first `legends` rows have a legend.
    """
    figure = new_figure(4.2 * len(panels), height)
    grid = figure.subplots(len(rows), len(panels), squeeze=False)
    colours = colours_of(panels)
    for row, (ylabel, plot) in enumerate(rows):
        for column, (title, curves) in enumerate(panels.items()):
            axes = grid[row][column]
            for label, runs in curves.items():
                plot(axes, runs, label=label, color=colours[label])
            names = {"title": title if row == 0 else "", "ylabel": ylabel if column == 0 else ""}
            tidy(axes, row < legends, **names, xlabel="round" if row == len(rows) - 1 else "")
    save(figure, path)


def tidy(axes: Any, legend: bool = True, **labels: str) -> None:
    axes.set(**labels)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if legend and axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8)


def save(figure: Any, path: Path) -> None:
    """Write a figure in the format of the path's ending; a path without one becomes two files, .svg and .png."""
    for target in [path] if path.suffix else [path.with_suffix(".svg"), path.with_suffix(".png")]:
        dated = {"metadata": {"Date": None}} if target.suffix == ".svg" else {}
        try:
            figure.savefig(target, dpi=150, **dated)
        except (OSError, ValueError) as error:
            raise SettingsError(f"{target}: cannot be written: {error}") from None
