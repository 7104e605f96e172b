"""The paper's evolution figure: how the mean of P(h | psi) moved, from run folders alone."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fedaccord.core.errors import SettingsError
from fedaccord.report.canvas import Panels, draw_grid
from fedaccord.report.tuner import label_of
from fedaccord.runtime.folder import read_rounds

Means = Mapping[int, Mapping[str, float]]
"""Round -> hyper-parameter -> its mean."""


def draw(columns: Panels, path: Path) -> None:
    """Draw one column for each title and one row for each tuned hyper-parameter, with one line for each run.

    Runs with the same label have the same colour.
    """
    means = {run: means_of(run) for curves in columns.values() for runs in curves.values() for run in runs}
    names = list(dict.fromkeys(name for by_round in means.values() for mean in by_round.values() for name in mean))
    if not names:
        raise SettingsError(f"{path}: none of these runs tuned its hyper-parameters, there is nothing to draw")
    rows = [(label_of(name), partial(plot, means, name)) for name in names]
    draw_grid(columns, rows, path, 2.3 * len(names), len(names))


def plot(means: Mapping[Path, Means], name: str, axes: Any, runs: Sequence[Path], label: str, color: str) -> None:
    for number, run in enumerate(runs):
        there = {round: mean[name] for round, mean in means[run].items() if name in mean}
        axes.plot(list(there), list(there.values()), color=color, linewidth=1.2, label=None if number else label)


def means_of(run: Path) -> Means:
    """Return the mean of P(h | psi), for the rounds whose log has it."""
    found = {line["round"]: (line.get("policy") or {}).get("mean") for line in read_rounds(run)}
    return {round: mean for round, mean in found.items() if isinstance(mean, dict)}
