"""The field: every method on problems of the lab, as published, with matching, with the tuner, with both.

As published means: its own settings as its paper has them (the defaults of its file), and the schedule that the task
has for anybody who names none. Nothing is searched, so what is missed is what a user misses.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedaccord import config
from fedaccord.experiments import lab, runner
from fedaccord.experiments.lab import Problem
from fedaccord.experiments.study import Cell, finished
from fedaccord.methods.registry import PARTS, find
from fedaccord.report.field import Entry

FOLDER = Path("results/field")
PROBLEMS = ("mnist-iid-C1", "mnist-one-C0.5", "fashion-dir", "digits-one", "kws16-one-C1", "cifar16-one-C1")
"""Of the lab's: alike clients, uneven ones and opposed ones; all of them in a round, and some."""
VARIANTS = ("", "+RM", "+AH", "+RM+AH")
BESIDE = ("RM", "AH")
"""Parts that are variants of the others here, not methods of their own."""
METHODS = tuple(f"FA+{name}" if name == "WD" else name for name in PARTS if name not in BESIDE)


def sensible(method: str) -> tuple[str, ...]:
    """The variants of a method: one that chooses hyper-parameters itself cannot have a tuner beside it."""
    tuned = find(method).tunes(config.make({"method": method}).values())
    return tuple(variant for variant in VARIANTS if not (tuned and "AH" in variant))


@dataclass(frozen=True)
class Field:
    """Which runs are wanted, and what the finished ones say. `folder` holds a folder for each problem."""

    folder: Path
    problems: Sequence[Problem]
    methods: Sequence[str]
    seeds: Sequence[int]

    def cells(self) -> Iterator[tuple[Problem, str, str, Cell]]:
        """Every run, with its problem, method and variant; by seeds first, so that a table is there early."""
        for seed in self.seeds:
            for problem in self.problems:
                for method in self.methods:
                    for variant in sensible(method):
                        name = method + variant
                        yield problem, method, variant, lab.make_cell(problem, name, "run", seed, name, {})

    def run(self, lanes: int | None, say: Callable[[str], None]) -> list[str]:
        """Run or resume what is missing and say which problems lack data; returns one sentence per failed run."""
        here = lab.with_data(self.problems, say, self.over)
        return runner.run_missing([cell for problem, *_, cell in self.cells() if problem in here], self.folder, lanes)

    def over(self, problem: Problem) -> bool:
        """Whether nothing is left to run for a problem."""
        return all(finished(cell, self.folder) for which, *_, cell in self.cells() if which == problem)

    def entries(self) -> Iterator[Entry]:
        """What each finished run came to."""
        for problem, method, variant, cell in self.cells():
            if finished(cell, self.folder):
                trace = lab.read_trace(self.folder / cell.name)
                chance = 100 / problem.classes
                yield Entry(problem.name, method, variant, cell.seed, lab.tested(trace), trace.steps, chance)
