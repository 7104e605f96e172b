"""The label x client picture, which shows how many examples of each class each client holds."""

from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedaccord.report.canvas import new_figure, save

SHOWN = 40
SHADES = (236, 238, 24, 25, 31, 37, 43, 49)


def print_table(counts: np.ndarray, classes: tuple[str, ...], title: str) -> None:
    """Print the counts by client (rows) and class (columns), shaded by size."""
    most = max(1, int(counts.max()))
    table = Table(title=Text(title), title_justify="left", box=None, padding=(0, 1))
    table.add_column("client", justify="right")
    for name in classes:
        table.add_column(Text(name), justify="right")
    table.add_column("all", justify="right", style="bold")
    for client, row in enumerate(counts[:SHOWN].tolist()):
        table.add_row(str(client), *(cell(value, most) for value in row), f"{sum(row):,}")
    if len(counts) > SHOWN:
        table.add_row("...", *[""] * len(classes), "")
    table.add_section()
    table.add_row("all", *(f"{value:,}" for value in counts.sum(axis=0).tolist()), f"{int(counts.sum()):,}")
    console = Console(soft_wrap=True)
    console.print(table)
    sizes = counts.sum(axis=1)
    console.print(
        f"{len(counts):,} clients; examples a client: least {sizes.min():,}, median {int(np.median(sizes)):,}, "
        f"most {sizes.max():,}",
        highlight=False,
    )


def cell(value: int, most: int) -> Text:
    if value == 0:
        return Text("·", style="dim")
    shade = SHADES[min(len(SHADES) - 1, int(value / most * len(SHADES)))]
    return Text(f"{value:,}", style=f"on color({shade})")


def draw(counts: np.ndarray, classes: tuple[str, ...], title: str, path: Path) -> None:
    """Draw one dot for each client and class, whose area is the number of examples."""
    clients, labels = np.nonzero(counts)
    sizes = counts[clients, labels] / counts.max()
    width = float(np.clip(0.32 * len(counts) + 1.5, 5, 16))
    figure = new_figure(width, 0.32 * len(classes) + 1.4)
    axes = figure.add_subplot()
    axes.scatter(clients, labels, s=sizes * 160 * min(1.0, 40 / len(counts)) + 2, color="#2a6f97", linewidths=0)
    axes.set(title=title, xlabel="client", ylabel="class", yticks=range(len(classes)), yticklabels=classes)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlim(-0.7, len(counts) - 0.3)
    axes.set_ylim(-0.7, len(classes) - 0.3)
    axes.spines[["top", "right"]].set_visible(False)
    save(figure, path)
