"""A plain table of words, with a heading and notes: Markdown, CSV, LaTeX."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Grid:
    heading: str
    head: Sequence[str]
    lines: Sequence[Sequence[str]]
    notes: Sequence[str] = ()  # a sentence each, below


def markdown(grid: Grid) -> str:
    rows = [grid.head, ["---"] * len(grid.head), *grid.lines]
    body = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return f"{grid.heading}\n\n{body}" + "".join(f"\n{note}\n" for note in grid.notes)


def as_csv(grid: Grid) -> str:
    """Return the table as CSV for programs, without heading and notes."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([grid.head, *grid.lines])
    return text.getvalue()


def in_latex(text: str) -> str:
    """Return a text as LaTeX prints it: a method of one's own may have any name."""
    for sign in "&%_#$":
        text = text.replace(sign, f"\\{sign}")
    return text.replace("–", "--")


def latex(grid: Grid) -> str:
    rows = [" & ".join(map(in_latex, line)) + r" \\" for line in grid.lines]
    head = " & ".join(map(in_latex, grid.head)) + r" \\ \hline"
    begin = rf"\begin{{tabular}}{{ll{'r' * (len(grid.head) - 2)}}}"
    notes = (f"% {note}" for note in grid.notes)
    return "\n".join([f"% {grid.heading}", begin, head, *rows, r"\end{tabular}", *notes, ""])


FORMS = {"md": markdown, "csv": as_csv, "tex": latex}
"""File ending -> the function that writes a table in that form."""
