"""The paper's evolution figure: how the mean of P(h | psi) moved, from run folders alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedaccord.errors import SettingsError
from fedaccord.report.curves import COLOURS
from fedaccord.runs import read_rounds

ROWS = {"lr": "learning rate", "steps": "SGD iterations"}


def draw(columns: Mapping[str, Mapping[str, Sequence[Path]]], path: Path) -> None:
    """One column a title, one colour a label, one line a run; the rate in the first row, the iterations below."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise SettingsError("pictures need the report extra: pip install 'fedaccord[report]'") from None
    figure = Figure(figsize=(4.2 * len(columns), 4.6), layout="constrained")
    for column, (title, curves) in enumerate(columns.items(), 1):
        for row, (name, label) in enumerate(ROWS.items()):
            axes = figure.add_subplot(2, len(columns), row * len(columns) + column)
            for colour, (kind, runs) in zip(COLOURS[1:], curves.items(), strict=False):
                for number, run in enumerate(runs):
                    lines = list(read_rounds(run))
                    axes.plot(
                        [line["round"] for line in lines],
                        [line["policy"]["mean"][name] for line in lines],
                        color=colour,
                        linewidth=1.2,
                        label=kind if number == 0 else None,
                    )
            axes.set(
                title=title if row == 0 else "", xlabel="round" if row else "", ylabel=label if column == 1 else ""
            )
            axes.grid(alpha=0.25)
            axes.spines[["top", "right"]].set_visible(False)
            axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)
