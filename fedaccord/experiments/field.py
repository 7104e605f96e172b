"""The field: every method on problems of the lab, as published, with matching, with the tuner, and with both.

As published means the method's own settings as in its paper (the defaults of its file), and the task's default
schedule. Nothing is searched, so a method misses the best by as much as it does for a user.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedaccord import config
from fedaccord.core.errors import FedAccordError
from fedaccord.experiments import lab, runner
from fedaccord.experiments.lab import Problem
from fedaccord.experiments.study import Cell, diverged, done, ended
from fedaccord.methods.registry import PARTS, find
from fedaccord.report.field import Entry
from fedaccord.runtime.folder import read_settings

FOLDER = Path("results/field")
PROBLEMS = ("mnist-iid-C1", "mnist-one-C0.5", "fashion-dir", "digits-one", "kws16-one-C1", "cifar16-one-C1")
"""Problems of the lab with alike, uneven and opposed clients, of which all or only some train in a round."""
VARIANTS = ("", "+RM", "+AH", "+RM+AH")
BESIDE = ("RM", "AH")
"""Parts that are joined to the other methods here, and are no methods of their own."""
METHODS = tuple(f"FA+{name}" if name == "WD" else name for name in PARTS if name not in BESIDE)
NOTES = {"FedNova": "FedNova is FA here: in each round all clients make the same number of steps."}
"""Method -> a sentence that one must know to read its row."""
RUN = "run"
"""The word between method and seed in the name of a run's folder."""


def sensible(method: str) -> tuple[str, ...]:
    """Return the variants of a method: one that chooses hyper-parameters itself cannot have a tuner beside it."""
    tuned = find(method).tunes(config.make({"method": method}).values())
    return tuple(variant for variant in VARIANTS if not (tuned and "AH" in variant))


@dataclass(frozen=True)
class Field:
    """The wanted runs and the results of those that are over; `folder` holds a folder for each problem."""

    folder: Path
    problems: Sequence[Problem]
    methods: Sequence[str]
    seeds: Sequence[int]

    def cells(self) -> Iterator[tuple[Problem, str, str, Cell]]:
        """Yield every run with its problem, method and variant, seed by seed, so that a first table is there early."""
        for seed in self.seeds:
            for problem in self.problems:
                for method in self.methods:
                    for variant in sensible(method):
                        name = find(method).name + variant
                        yield problem, method, variant, lab.make_cell(problem, name, RUN, seed, method + variant, {})

    def run(self, lanes: int | None, say: Callable[[str], None]) -> list[str]:
        """Run or resume what is missing, say which problems lack data, and return one sentence per failed run."""
        here = lab.with_data(self.problems, say, self.over)
        return runner.run_rest([cell for problem, *_, cell in self.cells() if problem in here], self.folder, lanes)

    def over(self, problem: Problem) -> bool:
        """Return whether nothing is left to run for a problem."""
        return all(ended(cell, self.folder) for which, *_, cell in self.cells() if which == problem)

    def check(self) -> None:
        """Raise SettingsError if a run in the folder was another experiment."""
        for *_, cell in self.cells():
            done(cell, self.folder)

    def whole(self) -> "Field":
        """Return this field extended by every problem, method and seed that the folder has runs of."""
        problems, methods, seeds = {each.name for each in self.problems}, dict.fromkeys(self.methods), set(self.seeds)
        for run in sorted(self.folder.glob(f"*/*-{RUN}-s*")):
            seed = run.name.rpartition("-s")[2]
            method = method_of(run)
            if method is None or not seed.isdigit() or run.parent.name not in lab.PROBLEMS:
                continue
            problems.add(run.parent.name)
            methods[method] = None
            seeds.add(int(seed))
        there = [each for name, each in lab.PROBLEMS.items() if name in problems]
        return Field(self.folder, there, list(methods), sorted(seeds))

    def entries(self) -> Iterator[Entry]:
        """Yield the result of each run that is over; one that diverged counts as chance."""
        for problem, method, variant, cell in self.cells():
            if not ended(cell, self.folder):
                continue
            trace, lost = lab.read_trace(self.folder / cell.name), diverged(cell, self.folder)
            accuracy = problem.chance if lost else lab.tested(trace, problem)
            found = (accuracy, trace.steps, problem.chance, lost)
            yield Entry(problem.name, find(method).name, variant, cell.seed, *found)


def method_of(run: Path) -> str | None:
    """Return the method of a run's folder without the variant joined to it, or None if it cannot be found any more."""
    with contextlib.suppress(FedAccordError):
        name = read_settings(run).method
        joined = next(variant for variant in reversed(VARIANTS) if name.endswith(variant))
        return name.removesuffix(joined)
    return None
