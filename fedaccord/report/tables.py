"""Tables of a test metric from run folders alone: Markdown, CSV, LaTeX."""

import csv
import io
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedaccord.core.errors import RunError
from fedaccord.report.grid import in_latex
from fedaccord.runtime.folder import MetricNote, read_metrics, read_rounds

ACCURACY = MetricNote("accuracy", percent=True)
"""The metric that a table shows unless it says otherwise."""

Figure = tuple[float, float | None]
"""Mean and standard deviation (None: a single run)."""


@dataclass(frozen=True)
class Row:
    label: str
    found: Mapping[str, tuple[float, ...]]  # column -> the last values of its runs, by seed
    paper: Mapping[str, Figure] | None = None
    difference: bool = False  # whether a line below says by how much ours is above the paper's
    better: frozenset[str] | None = None  # columns that are marked in our line; None: the best one


@dataclass(frozen=True)
class Table:
    heading: str
    columns: tuple[str, ...]
    rows: Sequence[Row]
    marked: bool = True  # whether the best of a line is marked
    metric: MetricNote = ACCURACY
    yardsticks: tuple[str, ...] = ()  # columns that do not count as candidates for the best


def metric_of(runs: Iterable[Path]) -> MetricNote:
    """Return the metric by which the runs of one table are judged, their first; accuracy if there is no run yet."""
    found = {run: first_metric(run) for run in runs}
    first = next(iter(found.values()), ACCURACY)
    for run, metric in found.items():
        if metric != first:
            raise RunError(f"{run}: is judged by {metric.name}, the others by {first.name}: that is not one table")
    return first


def first_metric(run: Path) -> MetricNote:
    """Return the metric by which a run is judged."""
    metrics = read_metrics(run)
    if not metrics:
        raise RunError(f"{run}: it has no test metric to be compared by; give its task test data")
    return metrics[0]


def last_value(run: Path) -> float:
    """Return the first metric in the last round that was tested, in the units of a table."""
    metric = first_metric(run)
    values = [value for line in read_rounds(run) if (value := line["metrics"].get(metric.name)) is not None]
    if not values:
        raise RunError(f"{run}: its {metric.name} was never measured")
    return in_units(values[-1], metric)


def in_units(value: float, metric: MetricNote) -> float:
    """Return a metric's value in the units of a table: in percent if it is shown as a percentage."""
    return 100 * value if metric.percent else value


def title_of(metric: MetricNote) -> str:
    """Return the metric's name in a heading, such as 'test accuracy in %' or 'test rmse (less is better)'."""
    return f"test {metric.name}{' in %' if metric.percent else ''}{'' if metric.higher else ' (less is better)'}"


def figure_of(values: Sequence[float]) -> Figure:
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def written(figure: Figure, sign: str, metric: MetricNote, printed: bool = False) -> str:
    """Return a figure as text; `printed`: with the paper's own digits, which it rounds as it likes."""
    mean, deviation = figure
    if printed:
        spread = "" if deviation is None else f" {sign} {deviation:g}"
        return max(f"{mean:.1f}", f"{mean:g}", key=len) + spread
    spread = "" if deviation is None else f" {sign} {format(deviation, '.2f' if metric.percent else '.2g')}"
    return written_mean(mean, metric) + spread


def written_mean(mean: float, metric: MetricNote) -> str:
    """Return a percentage with one decimal place, and anything else, whose size nobody knows, with four digits."""
    return format(mean, ".1f" if metric.percent else ".4g")


def lines_of(table: Table, sign: str, strong: str) -> list[list[str]]:
    """Return the cells as text: for each row our line and, if there is one, the paper's below, with the best marked."""
    lines = []
    beside, metric = with_paper(table), table.metric
    for row in table.rows:
        ours: dict[str, Figure] = {name: figure_of(values) for name, values in row.found.items() if values}
        both: list[tuple[str, Mapping[str, Figure]]] = [("ours", ours)]
        if row.paper is not None:
            both.append(("paper", row.paper))
        for number, (who, figures) in enumerate(both):
            rivals = figures.keys() - set(table.yardsticks)
            rounded = {name: float(written_mean(figures[name][0], metric)) for name in rivals}
            best = (max if metric.higher else min)(rounded.values(), default=None)
            cells = []
            for name in table.columns:
                text = written(figures[name], sign, metric, who == "paper") if name in figures else "–"
                marked = name in rivals and rounded[name] == best and len(rivals) > 1
                if who == "ours" and row.better is not None:
                    marked = name in row.better
                cells.append(strong.format(text) if table.marked and marked else text)
            label = row.label if number == 0 else ""
            lines.append([label, *([who] if beside else []), *cells])
        if row.difference and row.paper is not None:
            apart = {name: ours[name][0] - row.paper[name][0] for name in ours.keys() & row.paper.keys()}
            cells = [f"{apart[name]:+.1f}" if name in apart else "–" for name in table.columns]
            lines.append(["", "difference", *cells])
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
        " & ".join([*map(in_latex, line[:labels]), *(text if text == "–" else f"${text}$" for text in line[labels:])])
        for line in body[1:]
    ]
    return "\n".join(
        [
            f"% {table.heading}",
            rf"\begin{{tabular}}{{{'l' * labels}|{'c' * len(table.columns)}}}",
            " & ".join(map(in_latex, head)) + r" \\ \hline",
            *(f"{row} \\\\" for row in rows),
            r"\end{tabular}",
            "",
        ]
    ).replace("–", "--")


def as_csv(table: Table) -> str:
    """Return the table as CSV, one line per cell, with every run's own figure."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", "column", "runs", "mean", "std", plural(table.metric.name), "paper_mean", "paper_std"])
    single, whole = (".2f", ".3f") if table.metric.percent else (".6g", ".6g")
    for row in table.rows:
        for name in table.columns:
            values = row.found.get(name, ())
            mean, deviation = figure_of(values) if values else (None, None)
            numbers = ["" if value is None else format(value, whole) for value in (mean, deviation)]
            paper: Iterable[Any] = row.paper.get(name, ()) if row.paper else ()
            paper = [*("" if value is None else value for value in paper), "", ""][:2]
            each = " ".join(format(value, single) for value in values)
            writer.writerow([row.label, name, len(values), *numbers, each, *paper])
    return text.getvalue()


def plural(name: str) -> str:
    """Return the plural of a metric's name, such as 'accuracies' or 'errors'."""
    return f"{name[:-1]}ies" if name.endswith("y") else f"{name}s"


FORMS = {"md": markdown, "csv": as_csv, "tex": latex}
"""File ending -> the function that writes a table in that form."""
