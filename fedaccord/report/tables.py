"""Tables of test accuracy from run folders alone: Markdown, CSV, LaTeX."""

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedaccord.runtime.folder import read_rounds

Figure = tuple[float, float | None]
"""Mean and standard deviation (None: a single run)."""


@dataclass(frozen=True)
class Row:
    label: str
    found: Mapping[str, tuple[float, ...]]  # column -> the accuracies of its runs in percent, by seed
    paper: Mapping[str, tuple[float, float]] | None = None


@dataclass(frozen=True)
class Table:
    heading: str
    columns: tuple[str, ...]
    rows: Sequence[Row]
    marked: bool = True  # whether the best of a line is marked


def last_accuracy(run: Path) -> float:
    """In percent, of the last round that was tested."""
    return [100 * line["accuracy"] for line in read_rounds(run) if line["accuracy"] is not None][-1]


def figure_of(values: Sequence[float]) -> Figure:
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def written(figure: Figure, sign: str, printed: bool = False) -> str:
    """`printed`: as the paper has it, which rounds as it likes."""
    mean, deviation = figure
    if printed:
        return f"{max(f'{mean:.1f}', f'{mean:g}', key=len)} {sign} {deviation:g}"
    return f"{mean:.1f}" if deviation is None else f"{mean:.1f} {sign} {deviation:.2f}"


def lines_of(table: Table, sign: str, strong: str) -> list[list[str]]:
    """Cells as text: for each row ours and, where there is one, the paper's below; the best of a line marked."""
    lines = []
    beside = with_paper(table)
    for row in table.rows:
        ours: dict[str, Figure] = {name: figure_of(values) for name, values in row.found.items() if values}
        both: list[tuple[str, Mapping[str, Figure]]] = [("ours", ours)]
        if row.paper is not None:
            both.append(("paper", row.paper))
        for number, (who, figures) in enumerate(both):
            best = max((round(mean, 1) for mean, _ in figures.values()), default=None)
            cells = []
            for name in table.columns:
                text = written(figures[name], sign, who == "paper") if name in figures else "–"
                marked = table.marked and name in figures and round(figures[name][0], 1) == best and len(figures) > 1
                cells.append(strong.format(text) if marked else text)
            label = row.label if number == 0 else ""
            lines.append([label, *([who] if beside else []), *cells])
    return lines


def head_of(table: Table) -> list[str]:
    return ["", *([""] if with_paper(table) else []), *table.columns]


def with_paper(table: Table) -> bool:
    return any(row.paper is not None for row in table.rows)


def markdown(table: Table) -> str:
    head = head_of(table)
    lines = [head, ["---"] * len(head), *lines_of(table, "±", "**{}**")]
    return f"{table.heading}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def latex(table: Table) -> str:
    head = head_of(table)
    body = [head, *lines_of(table, r"\pm", r"\mathbf{{{}}}")]
    labels = len(head) - len(table.columns)
    rows = [
        " & ".join([*line[:labels], *(text if text == "–" else f"${text}$" for text in line[labels:])])
        for line in body[1:]
    ]
    return "\n".join(
        [
            f"% {table.heading}",
            rf"\begin{{tabular}}{{{'l' * labels}|{'c' * len(table.columns)}}}",
            " & ".join(head) + r" \\ \hline",
            *(f"{row} \\\\" for row in rows),
            r"\end{tabular}",
            "",
        ]
    ).replace("–", "--")


def as_csv(table: Table) -> str:
    """One line a cell, with every run's own figure."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", "column", "runs", "mean", "std", "accuracies", "paper_mean", "paper_std"])
    for row in table.rows:
        for name in table.columns:
            values = row.found.get(name, ())
            mean, deviation = figure_of(values) if values else (None, None)
            numbers = ["" if value is None else f"{value:.3f}" for value in (mean, deviation)]
            paper = row.paper.get(name, ("", "")) if row.paper else ("", "")
            each = " ".join(f"{value:.2f}" for value in values)
            writer.writerow([row.label, name, len(values), *numbers, each, *paper])
    return text.getvalue()


FORMS = {"md": markdown, "csv": as_csv, "tex": latex}
"""Ending of the file -> how it is written."""
