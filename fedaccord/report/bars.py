"""Shares of the matrix-product peak as bars."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedaccord.errors import SettingsError
from fedaccord.report.curves import COLOURS


def draw(shares: Mapping[str, Any], path: Path) -> None:
    """One group a task, one bar a method and one for the bare loop."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise SettingsError("pictures need the report extra: pip install 'fedaccord[report]'") from None
    names = list(next(iter(shares.values()))["share_of_peak"])
    figure = Figure(figsize=(1.6 + 1.8 * len(shares), 3.2), layout="constrained")
    axes = figure.add_subplot()
    width = 0.8 / len(names)
    for number, (name, colour) in enumerate(zip(names, COLOURS, strict=False)):
        places = [task + (number - (len(names) - 1) / 2) * width for task in range(len(shares))]
        bars = axes.bar(
            places, [entry["share_of_peak"][name] for entry in shares.values()], 0.9 * width, label=name, color=colour
        )
        axes.bar_label(bars, fmt="%.2f", fontsize=7)
    axes.set_xticks(range(len(shares)), list(shares))
    axes.set(ylabel="share of the matrix-product peak", ylim=(0, 1))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)
