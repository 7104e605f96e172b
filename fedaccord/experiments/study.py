"""A study: many runs of one task that belong in one table, each in a folder named by what sets it apart."""

import functools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedaccord import config
from fedaccord.config import Settings
from fedaccord.core.algorithm import out_of_patience
from fedaccord.core.errors import SettingsError
from fedaccord.core.files import make_folder, write_durably
from fedaccord.core.settings import EXPERIMENT, LENGTH, SERVER
from fedaccord.experiments.yardsticks import YARDSTICKS, name_of, runs_of, trained_by
from fedaccord.methods.registry import find
from fedaccord.report import paper, tables
from fedaccord.runtime.attendance import MOST_EMPTY, attendance
from fedaccord.runtime.checkpoints import manifests
from fedaccord.runtime.folder import CHECKPOINTS, ROUNDS, SETTINGS, MetricNote, read_end, read_rounds, read_settings
from fedaccord.runtime.lines import round_of
from fedaccord.tasks import Task, find_task

OPEN: dict[str, tuple[Any, ...]] = {"clients": (10,), "augment": (False,), "entropy_min": (None, 2.0032)}
"""Values that a setting which was left open may have in a run's folder. (Version 0.1 wrote H_min out: 0.87 ln 10.)"""


@dataclass(frozen=True)
class Row:
    """A row of the table, whose methods differ only in their tuned settings; a yardstick is one of the methods."""

    split: str
    fraction: float
    methods: tuple[str, ...]
    seeds: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    tuned: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # method -> settings of its own
    tag: str = ""  # sets the names of runs apart where rows differ in more than split and fraction
    label: str = ""  # the row's name in the table, where split and fraction do not say it
    published: Mapping[str, tables.Figure] | None = None  # method -> somebody else's figures, to stand below ours


@dataclass(frozen=True)
class Study:
    task: str
    rows: tuple[Row, ...]
    heading: str = ""  # the word SEEDS is replaced by how many are behind each figure


@dataclass(frozen=True)
class Cell:
    """One run of a study."""

    name: str
    row: Row
    method: str
    seed: int
    settings: Settings
    weight: float = 1.0  # rough cost of a round against those of other tasks, to estimate the time left


def cells(study: Study) -> Iterator[Cell]:
    """Yield the runs of a study, row by row: all seeds of a row's first method, then those of the next."""
    for row in study.rows:
        columns = [name_of(method) for method in row.methods]
        if twice := [name for name in columns if columns.count(name) > 1]:
            raise SettingsError(f"two of the methods are called {twice[0]}; give one of them another name")
        task = known_task(study.task, row.settings.get("image_size", 0))
        known = {method: config.table(find(trained_by(method))) for method in row.methods}
        for method in row.methods:
            # a method does not get the settings that only other methods of the row know
            others = {name for table in known.values() for name in table} - known[method].keys()
            shared = {name: value for name, value in row.settings.items() if name not in others}
            for seed in range(row.seeds):
                own = {"task": study.task, "split": row.split, "fraction": row.fraction, "seed": seed}
                own["method"] = trained_by(method)
                settings = config.make(task.defaults(row.split), shared, row.tuned.get(method, {}), own)
                name = f"{row.split}-{name_of(method)}-C{row.fraction}{row.tag}-s{seed}"
                for which, each, weight in runs_of(method, settings):
                    yield Cell(name + which, row, method, seed, each, weight)


@functools.cache
def known_task(name: str, image_size: int) -> Task:
    return find_task(name, image_size)


def done(cell: Cell, folder: Path) -> int:
    """Return how many rounds of a run are done; one that stopped early for want of progress counts as complete.

    Raise SettingsError if the run in the folder was another experiment.
    """
    path = folder / cell.name
    if not (path / SETTINGS).is_file():
        return 0
    found = read_settings(path)
    for name in sorted(telling(cell.settings)):
        wanted, has = cell.settings[name], found[name]
        natural = name == "clients" and cell.settings.split == "natural"  # as many clients as the data names
        fits = (wanted,) if wanted is not None else (has,) if natural else OPEN.get(name, (has,))
        if has not in fits:
            raise SettingsError(f"{path}: was run with {name} = {has}, not {fits[0]}; choose another folder for this")
    count, last = read_end(path)
    saved = manifests(path / CHECKPOINTS)
    if saved and int(saved[-1].stem) < count:
        return int(saved[-1].stem)  # it was killed before its last rounds were saved, and will do them again
    early = last is not None and out_of_patience(cell.settings.patience, last["round"], last.get("best"))
    return cell.settings.rounds if early else count


def telling(settings: Settings) -> set[str]:
    """Return the names of the settings that tell one run of a method from another."""
    method = find(settings.method)
    names = {name for name, each in config.brought(method).items() if each.role in (EXPERIMENT, LENGTH, SERVER)}
    tuned = method.tunes(settings.values())
    if not tuned:
        return names - {"grid", "start"}
    if method.begins(settings.values()):
        tuned = set()
    # the loss that is measured uses these, tuned or not
    return names - (tuned - {"entropy_min", "entropy_weight"}) - {"lr_decay", "steps_decay"}


def finished(cell: Cell, folder: Path) -> bool:
    return done(cell, folder) >= cell.settings.rounds


def diverged(cell: Cell, folder: Path) -> bool:
    """Return whether no client's update could be used any more at the end of a run; it would end so each time."""
    path = folder / cell.name
    if not (path / SETTINGS).is_file():
        return False
    _, last = read_end(path)
    if last is None or last.get("clients"):
        return False  # somebody counted in its last round: no need to read the others
    return attendance(round_of(line, path / ROUNDS) for line in read_rounds(path)).empty_rounds >= MOST_EMPTY


def ended(cell: Cell, folder: Path) -> bool:
    """Return whether a run is over: it is finished, or it diverged."""
    return finished(cell, folder) or diverged(cell, folder)


Place = tuple[int, str, int]
"""Number of the row, column and seed: the place of one figure."""


Over = Callable[[Cell, Path], bool]
"""A function that returns whether a run is over, given the folder of its study."""


def complete(study: Study, folder: Path, over: Over = finished) -> dict[Place, list[Cell]]:
    """Return the runs behind each figure, for those figures all of whose runs are over."""
    numbers = {id(row): number for number, row in enumerate(study.rows)}
    groups: dict[Place, list[Cell]] = {}
    for cell in cells(study):
        groups.setdefault((numbers[id(cell.row)], name_of(cell.method), cell.seed), []).append(cell)
    return {place: group for place, group in groups.items() if all(over(cell, folder) for cell in group)}


def table_of(
    study: Study,
    folder: Path,
    with_paper: bool = False,
    value: Callable[..., float | None] | None = None,
    over: Over = finished,
) -> tables.Table:
    """Return the table of the runs in the folder that are over; a cell without any stays empty.

    `value`: (row, column, seed) -> what to show there; None: the last value, or its mean over a figure's runs.
    """
    columns = dict.fromkeys(name_of(method) for row in study.rows for method in row.methods)
    # the paper's methods in its order, then the others, then the yardsticks
    order = list(dict.fromkeys(name for name in (*paper.METHODS, *columns) if name in columns))
    order.sort(key=lambda name: name in YARDSTICKS)
    printed = paper.ACCURACY.get(study.task, {}) if with_paper else {}
    groups = complete(study, folder, over)

    def last(*place: Any) -> float:
        return statistics.fmean(tables.last_value(folder / cell.name) for cell in groups[place])

    figures = {place: figure for place in groups if (figure := (value or last)(*place)) is not None}
    rows = []
    for number, row in enumerate(study.rows):
        found = {
            name: tuple(figure for place, figure in figures.items() if place[:2] == (number, name)) for name in order
        }
        beside = row.published or printed.get((row.split, row.fraction))
        rows.append(tables.Row(label(row), found, beside, difference=row.published is not None))
    metric = tables.metric_of(folder / cell.name for group in groups.values() for cell in group)
    text = (study.heading or heading(study, metric)).replace("SEEDS", seeds_behind(rows))
    marked = not any(row.tag for row in study.rows)
    return tables.Table(text, tuple(order), rows, marked, metric, YARDSTICKS)


def seeds_behind(rows: Sequence[tables.Row]) -> str:
    counts = {len(values) for row in rows for values in row.found.values()} - {0}
    if not counts:
        return "no run yet"
    least, most = min(counts), max(counts)
    return f"{least} to {most} seeds" if least < most else "1 seed" if most == 1 else f"{most} seeds"


def label(row: Row) -> str:
    return (row.label or f"{row.split}, C={row.fraction:g}") + row.tag.replace("-", ", ", 1)


def heading(study: Study, metric: MetricNote) -> str:
    """Return a heading that says what all runs of the study share, except those of the yardsticks."""
    rounds = sorted({cell.settings.rounds for cell in cells(study) if cell.method not in YARDSTICKS})
    return f"{study.task}: {tables.title_of(metric)}, {' or '.join(map(str, rounds))} rounds, SEEDS"


def write_tables(table: Any, stem: Path, forms: Mapping[str, Callable[[Any], str]] = tables.FORMS) -> list[Path]:
    """Write the table in every form, and return the files."""
    make_folder(stem.parent)
    files = []
    for ending, form in forms.items():
        file = stem.with_name(f"{stem.name}.{ending}")
        write_durably(file, form(table).encode())
        files.append(file)
    return files
