"""The runs of the paper's tables at real length, and the fixed schedules that they need.

A row's schedules come from the lab's search on a problem a quarter as long (an eighth where half of the alike clients
take the schedules of all of them), with the lab's seed and by the loss on the server's set. FA+WD takes FA's schedule;
the search for FA+RM begins at FA's best. Runs with the tuner need none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedaccord import config
from fedaccord.core.errors import SettingsError
from fedaccord.experiments import study as studies
from fedaccord.experiments.comparison import difference
from fedaccord.experiments.lab import HALF, IID, ONE, PROBLEMS, Lab, Problem, problem
from fedaccord.experiments.search import stretched
from fedaccord.experiments.study import Cell, Row, Study
from fedaccord.methods.registry import find
from fedaccord.report import paper, tables
from fedaccord.report.grid import Grid
from fedaccord.report.spent import ROUNDS, read_at, read_tests

LONGER = 4
"""The length of a row, as a multiple of that of its problem."""
SEEDS = 3
NOTHING: Mapping[str, Any] = {}
FIXED = {"FA": "FA", "FA+WD": "FA", "FA+RM": "FA+RM"}
"""Methods with a fixed schedule -> the client part for which it is searched."""


@dataclass(frozen=True)
class Line:
    """A row of a table: a problem of the lab, but longer, and tested every `test_every` rounds."""

    problem: Problem
    test_every: int

    @property
    def name(self) -> str:
        return f"{self.split}-C{self.fraction:g}"

    @property
    def split(self) -> str:
        return str(self.problem.settings["split"])

    @property
    def fraction(self) -> float:
        return float(self.problem.settings.get("fraction", 1.0))

    @property
    def rounds(self) -> int:
        return int(LONGER * self.problem.settings["rounds"])

    def row(self, lab: Lab, tag: str = "", changes: Mapping[str, Any] = NOTHING) -> Row:
        """Return the row with all methods whose schedules are known by now; `tag`: the name of the changes."""
        found = {part: lab.search(self.problem, part) for part in set(FIXED.values())}
        tuned: dict[str, dict[str, Any]] = {}
        for method, part in FIXED.items():
            searched, search = found[part]
            if search.chosen is not None:
                tuned[method] = asdict(stretched(search.chosen, self.rounds / searched.settings["rounds"]))
        methods = tuple(name for name in paper.METHODS if name not in FIXED or name in tuned)
        often = {"rounds": self.rounds, "test_every": self.test_every, "checkpoint_every": self.test_every}
        own = {name: value for name, value in self.problem.settings.items() if name not in ("split", "fraction")}
        return Row(self.split, self.fraction, methods, SEEDS, {**own, **often, **changes}, tuned, tag)


def sharing(problem: Problem) -> Problem:
    """Return the problem with half of the clients in a round, for twice as many rounds.

    It shares the oracle of the given problem: alike clients want the same schedule.
    """
    settings = {**problem.settings, **HALF, "rounds": 2 * problem.settings["rounds"]}
    return replace(problem, name=problem.name.replace("C1", "C0.5"), settings=settings, oracle=problem)


HALF_WIDTH = {"width": 32}
CIFAR10 = problem("cifar10-iid-C1", "cifar10", 20, 0.05, 36, **IID)
KWS = problem("kws32-iid-C1", "kws", 15, 0.2, 36, **IID, **HALF_WIDTH)
LINES = {
    "mnist": tuple(Line(PROBLEMS[f"mnist-{name}"], 20) for name in ("iid-C1", "one-C1", "iid-C0.5", "one-C0.5")),
    "cifar10": (
        Line(CIFAR10, 2),
        Line(problem("cifar10-one-C1", "cifar10", 200, 0.05, 3, **ONE), 20),
        Line(sharing(CIFAR10), 4),
        Line(problem("cifar10-one-C0.5", "cifar10", 400, 0.05, 3, **ONE, **HALF), 40),
    ),
    "kws": (
        Line(KWS, 3),
        Line(problem("kws32-one-C1", "kws", 200, 0.1, 2, **ONE, **HALF_WIDTH), 5),
        Line(sharing(KWS), 6),
        Line(problem("kws32-one-C0.5", "kws", 400, 0.1, 2, **ONE, **HALF, **HALF_WIDTH), 10),
    ),
}
"""Task -> the rows of its table, in the paper's order."""


@dataclass(frozen=True)
class Choices:
    """Changes to the default settings, by name, whose effect on some methods of a row is measured."""

    row: str
    methods: tuple[str, ...]
    changes: Mapping[str, Mapping[str, Any]]


AH = ("FA+RM+AH", "FA+AH")
AS_PRINTED = config.printed(find("FA+RM+AH"))
BY_ADAM = {"psi": "adam", "hyper_lr": 0.01}
ONE_BY_ONE: dict[str, Mapping[str, Any]] = {
    "population": {"weighting": "population"},
    "cross-entropy": {"yardstick": "cross-entropy"},
    "he": {"init": "he"},
    "last-model": {"average": False},
    "random-cohorts": {"cohorts": "random"},
    "ascent": {"psi": "ascent", "hyper_lr": 0.01},
    "adam": BY_ADAM,
    "printed": AS_PRINTED,
}
PAPERS = Choices("non-iid-C1", ("FA", "FA+RM", *AH), {"printed": AS_PRINTED, "printed-adam": {**AS_PRINTED, **BY_ADAM}})
CHOICES = {"mnist": Choices("non-iid-C0.5", AH, ONE_BY_ONE), "cifar10": PAPERS, "kws": PAPERS}

HEADINGS = {
    "mnist": "MNIST, 800 rounds",
    "cifar10": "CIFAR-10, 800 rounds of one-class clients (C=0.5: 1,600), 80 of alike ones (C=0.5: 160)",
    "kws": "Keywords, half width (32 feature maps, and half of the dense layer), 800 rounds of one-class clients "
    "(C=0.5: 1,600), 60 of alike ones (C=0.5: 120)",
}


@dataclass(frozen=True)
class Wanted:
    """A selection of a table's runs; an empty field selects all."""

    rows: Sequence[str] = ()
    methods: Sequence[str] = ()
    seeds: int = SEEDS

    def lines(self, task: str) -> list[Line]:
        names = [line.name for line in LINES[task]]
        for what, given, known in (("rows", self.rows, names), ("methods", self.methods, paper.METHODS)):
            if unknown := [name for name in given if name not in known]:
                raise SettingsError(f"reproduce {task}: --{what} {unknown[0]}: there are {', '.join(known)}")
        if self.seeds > SEEDS:
            raise SettingsError(f"reproduce {task}: --seeds {self.seeds}: these tables have {SEEDS}")
        return [line for line in LINES[task] if not self.rows or line.name in self.rows]

    def parts(self, among: Sequence[str] = paper.METHODS) -> list[str]:
        """Return the client parts whose schedules must be known for the wanted ones among these methods."""
        methods = [name for name in among if not self.methods or name in self.methods]
        return list(dict.fromkeys(part for method, part in FIXED.items() if method in methods))

    def of(self, study: Study) -> list[Cell]:
        """Return the wanted runs of a study, seed by seed; methods are in the order in which they were named."""
        rows = {(line.split, line.fraction) for line in self.lines(study.task)}
        order = list(self.methods or paper.METHODS)
        found = [
            cell
            for cell in studies.cells(study)
            if (cell.row.split, cell.row.fraction) in rows and cell.method in order and cell.seed < self.seeds
        ]
        return sorted(found, key=lambda cell: (cell.seed, order.index(cell.method)))


ALL = Wanted()


def lab_in(folder: Path) -> Lab:
    """Return the lab in which the schedules of all rows are searched."""
    return searching([line.problem for lines in LINES.values() for line in lines], folder, list(FIXED.values()))


def searching(problems: Sequence[Problem], folder: Path, parts: Sequence[str]) -> Lab:
    return Lab(folder, problems, parts, {}, (), search_only=True)


def choices_of(task: str, lab: Lab) -> Study:
    """Return the study of a row with the default settings, as in the task's table, and with each change of CHOICES."""
    chosen = CHOICES[task]
    line = next(line for line in LINES[task] if line.name == chosen.row)
    rows = (line.row(lab), *(line.row(lab, f"-{name}", each) for name, each in chosen.changes.items()))
    named = tuple(replace(row, methods=tuple(each for each in row.methods if each in chosen.methods)) for row in rows)
    return Study(task, named, f"{HEADINGS[task]}: what other choices than the default are worth")


def worth(study: Study, folder: Path) -> Grid:
    """Return a grid of the mean of the last five tests with each choice, and its difference to the default.

    The difference is between runs with the same seeds.
    """
    groups = studies.complete(study, folder)
    found = {place: mean_of_last(folder / cells[0].name) for place, cells in groups.items()}
    body, metric = [], tables.ACCURACY
    for number, row in enumerate(study.rows):
        for method in row.methods:
            seeds = {seed: value for (row_, name, seed), value in found.items() if (row_, name) == (number, method)}
            apart = [value - found[0, method, seed] for seed, value in seeds.items() if (0, method, seed) in found]
            if seeds:
                figure = tables.written(tables.figure_of(list(seeds.values())), "±", metric)
                body.append([studies.label(row), method, figure, "–" if number == 0 else difference(apart, metric)])
    return Grid(study.heading, ["", "method", "last five", "to the default (95 %)"], body)


def mean_of_last(run: Path) -> float:
    found = read_at([read_tests(run)], ROUNDS)
    assert found is not None
    return found.last


def study_of(task: str, lab: Lab) -> Study:
    """Return the study behind a task's table, with all methods whose schedules are known by now."""
    heading = f"{HEADINGS[task]}: test accuracy in %, mean of the last five tests, SEEDS; in bold: better than FA with "
    heading += "the same seeds beyond chance (95 %)"
    return Study(task, tuple(line.row(lab) for line in LINES[task]), heading)
