"""Accuracy and loss against rounds, from run folders alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedaccord.errors import SettingsError
from fedaccord.runs import read_rounds

COLOURS = ("#444444", "#2a6f97", "#c1121f", "#588157", "#bc6c25", "#7b2cbf")


def draw(panels: Mapping[str, Mapping[str, Sequence[Path]]], path: Path) -> None:
    """One panel a title, one curve a label: test accuracy, mean over its runs, with a band from least to most."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise SettingsError("pictures need the report extra: pip install 'fedaccord[report]'") from None
    figure = Figure(figsize=(4.2 * len(panels), 3.2), layout="constrained")
    for number, (title, curves) in enumerate(panels.items(), 1):
        axes = figure.add_subplot(1, len(panels), number)
        for colour, (label, runs) in zip(COLOURS, curves.items(), strict=False):
            rounds, accuracy = tested(runs)
            axes.plot(rounds, accuracy.mean(axis=0), color=colour, label=label, linewidth=1.6)
            if len(runs) > 1:
                axes.fill_between(
                    rounds, accuracy.min(axis=0), accuracy.max(axis=0), color=colour, alpha=0.18, linewidth=0
                )
        axes.set(title=title, xlabel="round", ylabel="test accuracy, %" if number == 1 else "")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


def tested(runs: Sequence[Path]) -> tuple[np.ndarray, np.ndarray]:
    """The rounds in which the runs were tested, and their accuracies in percent, (runs, rounds)."""
    found = [
        {line["round"]: 100 * line["accuracy"] for line in read_rounds(run) if line["accuracy"] is not None}
        for run in runs
    ]
    shared = sorted(set.intersection(*(set(each) for each in found)))
    return np.array(shared), np.array([[each[round] for round in shared] for each in found])
