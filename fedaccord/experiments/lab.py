"""The lab for tuners: by how much does a tuner that nobody tuned miss the best fixed schedule of a search?

Problems are small but real. For each, and for each client part (FA, FA+RM), a recorded search finds the oracle: the
best fixed schedule, chosen by the loss on the server's set with seeds of its own, never by the test set. Candidates
are settings of AH, laid over the problem's. Oracle and candidates then run with the same seeds, and share everything
but the tuner (`paper`: but the whole server side). Which runs are needed follows from the logs alone, so an interrupted
lab is resumed by running it again.
"""

import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedaccord import config
from fedaccord.core.errors import SettingsError
from fedaccord.core.files import make_folder, write_durably
from fedaccord.core.seeds import numpy_generator
from fedaccord.data import catalog
from fedaccord.experiments import runner
from fedaccord.experiments.search import RUNS, Schedule, Search, Trial, around, beside, search
from fedaccord.experiments.study import Cell, Row, diverged, ended, known_task
from fedaccord.methods.registry import find
from fedaccord.policy.grid import HyperGrid
from fedaccord.report.regret import BUDGET, Oracle, Result
from fedaccord.report.spent import LAST
from fedaccord.runtime.folder import client_steps, read_rounds, read_settings

ALONE = {"follow": False, "step_search": False}  # nothing but psi
PRINTED = {name: value for name, value in config.printed(find("FA+AH")).items() if name != "init"}
"""The server side as printed: the tuner, random cohorts, weights n_k / N, the last model, no guards. The
initialisation is the oracle's."""
CANDIDATES: dict[str, Mapping[str, Any]] = {
    "default": {},
    "frozen": {"hyper_lr": 0.0, **ALONE},  # h is always drawn around the middle of the grid
    "walk": {"psi": "walk", **ALONE},  # psi moves at random
    "low": {"start": "lr = 0.001, steps = 1"},  # from the two corners of the grid
    "high": {"start": "lr = 1, steps = 80"},
    "wide": {"grid": config.GRID.replace("0.001..1/25", "0.0001..10/41")},  # ten times wider at each end, as dense
    "no-search": {"step_search": False},
    "no-follow": {"follow": False},
    "adam": {"psi": "adam", "hyper_lr": 0.01},
    "paper": PRINTED,
}
"""Tuners by name: the settings that are laid over a problem's, with AH added to the client part."""

RANDOM = "random"
"""The control: one h, drawn from the grid by the seed, in every round. It is no tuner but a fixed schedule."""

PLAIN = "FA"
PARTS = (PLAIN, "FA+RM")
"""The client parts: what the clients do, both with the oracle and with the candidates."""

SELECTION = 10
"""The first of the seeds with which the oracle is chosen; the runs that are reported have others."""
SEARCHED = range(SELECTION, SELECTION + RUNS)


# --- problems ---


@dataclass(frozen=True)
class Problem:
    """A task with its settings, and the schedules with which the search for its oracle begins."""

    name: str
    task: str
    settings: Mapping[str, Any]
    first: tuple[Schedule, ...]
    oracle: "Problem | None" = None  # the problem whose oracle it shares, if it has no search of its own
    classes: int = 10

    @property
    def data(self) -> str:
        """The name of its data set."""
        return {"kws": "speech_commands"}.get(self.task, self.task)

    @property
    def chance(self) -> float:
        """The accuracy of a guess, in percent."""
        return 100 / self.classes


def problem(name: str, task: str, rounds: int, lr: float, steps: int, **settings: Any) -> Problem:
    """Return a problem whose search begins around this learning rate and this number of iterations.

    It is tested at even intervals: 20 times or more, or after every round if there are fewer.
    """
    every = next(n for n in range(max(1, rounds // 20), 0, -1) if rounds % n == 0)
    often = {"rounds": rounds, "test_every": every, "checkpoint_every": LAST * every}
    return Problem(name, task, {**often, **settings}, around(lr, steps, rounds))


ONE: dict[str, Any] = {"split": "non-iid"}  # one class per client
IID: dict[str, Any] = {"split": "iid"}
DIRICHLET = {"split": "dirichlet", "alpha": 0.1, "clients": 20, "fraction": 0.3}
SPEAKERS = {"split": "natural", "clients": 20, "fraction": 0.3}
HALF = {"fraction": 0.5}
NARROW = {"width": 16, "batch_size": 16}  # a third of the cost of mini-batches of 64

WITH_SERVER = (
    problem("mnist-iid-C1", "mnist", 200, 0.2, 24, **IID),
    problem("mnist-iid-C0.5", "mnist", 200, 0.2, 24, **IID, **HALF),
    problem("mnist-one-C1", "mnist", 200, 0.2, 6, **ONE),
    problem("mnist-one-C0.5", "mnist", 200, 0.2, 6, **ONE, **HALF),
    problem("fashion-dir", "fashion_mnist", 150, 0.1, 12, **DIRICHLET),
    problem("digits-iid", "digits", 100, 0.3, 12, **IID),
    problem("digits-one", "digits", 100, 0.2, 6, **ONE),
    problem("kws16-iid-C1", "kws", 40, 0.1, 36, **IID, **NARROW),
    problem("kws16-one-C1", "kws", 80, 0.05, 3, **ONE, **NARROW),
    problem("kws16-one-C0.5", "kws", 80, 0.05, 3, **ONE, **NARROW, **HALF),
    problem("kws16-natural", "kws", 40, 0.1, 36, **SPEAKERS, **NARROW),
    problem("cifar16-iid-C1", "cifar10", 25, 0.05, 36, **IID, **NARROW),
    problem("cifar16-one-C1", "cifar10", 100, 0.05, 6, **ONE, **NARROW),
    problem("cifar16-one-C0.5", "cifar10", 100, 0.05, 6, **ONE, **NARROW, **HALF),
)


def without_server(given: Problem) -> Problem:
    """Return the problem measured by the clients: without a server's set, its oracle is that of the given problem."""
    return replace(
        given,
        name=f"{given.name}-clients",
        settings={**given.settings, "evaluate": "clients"},
        oracle=given,
    )


PROBLEMS = {each.name: each for each in WITH_SERVER}
PROBLEMS |= {each.name: each for each in map(without_server, (PROBLEMS["mnist-one-C1"], PROBLEMS["kws16-iid-C1"]))}

MILLISECONDS = {"digits": 0.5, "mnist": 0.5, "fashion_mnist": 0.5, "kws": 6.0, "cifar10": 10.0}
"""Rough duration of a client's step on one core, to estimate the time left."""


# --- logs ---


@dataclass(frozen=True)
class Trace:
    """A summary of the log of a run that is over."""

    tests: tuple[tuple[int, float], ...]  # client steps spent by then, test accuracy in %; empty if it diverged
    steps: int  # the iterations of all accepted clients, summed over the rounds
    loss: float  # mean over the last rounds; infinite if one of them had none

    def accuracy(self, budget: float = math.inf) -> float | None:
        """Return the mean of the last tests within a budget of client steps, or None if there is none."""
        within = [accuracy for spent, accuracy in self.tests if spent <= budget]
        return statistics.fmean(within[-LAST:]) if within else None


def read_trace(run: Path) -> Trace:
    """Summarise a run's log."""
    fixed = read_settings(run).steps  # for runs in which they are neither scheduled nor tuned
    spent, tests, losses = 0, [], []
    for line in read_rounds(run):
        spent += client_steps(line, fixed)
        losses.append(math.inf if line["loss"] is None else line["loss"])
        if "accuracy" in line["metrics"]:
            tests.append((spent, 100 * line["metrics"]["accuracy"]))
    return Trace(tuple(tests), spent, statistics.fmean(losses[-LAST:]))


# --- runs ---


class Lab:
    """The wanted runs and the results of those that are over; `folder` holds a folder for each problem."""

    def __init__(
        self,
        folder: Path,
        problems: Sequence[Problem],
        parts: Sequence[str],
        candidates: Mapping[str, Mapping[str, Any]],
        seeds: Sequence[int],
        search_only: bool = False,
    ):
        self.folder, self.problems, self.parts, self.seeds = folder, problems, parts, seeds
        self.candidates, self.search_only = candidates, search_only
        self.traces: dict[str, Trace] = {}  # of runs that are over, by name
        for name, settings in candidates.items():
            for each in problems:
                if clash := sorted(settings.keys() & {"task", "method", "seed", *each.settings}):
                    raise SettingsError(f"candidate {name}: {clash[0]} is the problem's, not the tuner's; leave it out")

    def run(self, lanes: int | None, say: Callable[[str], None]) -> list[str]:
        """Run or resume what is missing, say which problems lack data, and return one sentence per failed run."""
        here = with_data(self.problems, say, self.over)
        return runner.run_rest(self.wanted(here), self.folder, lanes, more=lambda: self.wanted(here))

    def over(self, problem: Problem) -> bool:
        """Return whether nothing is left to run for a problem."""
        return all(self.trace(cell) is not None for cell in self.wanted([problem]))

    def wanted(self, problems: Sequence[Problem]) -> list[Cell]:
        """Return all runs known to be needed, finished or not: searches come first, since they decide on more."""
        pairs = [(problem, part) for problem in problems for part in self.parts]
        cells = [cell for pair in pairs for cell in self.searching(*pair)]
        if not self.search_only:
            cells += [cell for pair in pairs for cell in self.reporting(*pair)]
        return list({cell.name: cell for cell in cells}.values())

    def searching(self, problem: Problem, part: str) -> Iterator[Cell]:
        """Yield the runs of the search for a problem's oracle, as far as it got, after those of FA's search."""
        if part != PLAIN:
            yield from self.searching(problem, PLAIN)
        searched, found = self.search(problem, part)
        yield from (trial_cell(searched, part, trial) for trial in found.trials)

    def reporting(self, problem: Problem, part: str) -> Iterator[Cell]:
        """Yield the runs of the oracle, once it is found, and of all candidates."""
        _, found = self.search(problem, part)
        for seed in self.seeds:
            if found.chosen is not None:
                yield fixed_cell(problem, part, found.chosen, seed)
            yield from (self.cell(problem, part, name, seed) for name in self.candidates)

    def cell(self, problem: Problem, part: str, candidate: str, seed: int) -> Cell:
        """Return a candidate's run; that of the control has a fixed schedule."""
        tuned = make_cell(problem, part, candidate, seed, f"{part}+AH", self.candidates[candidate])
        if candidate != RANDOM:
            return tuned
        return make_cell(problem, part, candidate, seed, part, drawn(tuned.settings.grid, problem, seed))

    def search(self, problem: Problem, part: str) -> tuple[Problem, Search]:
        """Return the problem on which a problem's oracle is searched, and how far that search is.

        FA's search begins with the problem's first schedules; the others, whose runs are dearer, begin at FA's best.
        """
        searched = problem.oracle or problem
        first: Sequence[Schedule] = searched.first
        if part != PLAIN:
            plain = self.search(searched, PLAIN)[1].chosen
            first = () if plain is None else beside(plain)

        def loss_of(trial: Trial) -> float | None:
            trace = self.trace(trial_cell(searched, part, trial))
            return None if trace is None else trace.loss

        return searched, search(first, loss_of)

    def trace(self, cell: Cell) -> Trace | None:
        """Return the summary of a run's log, or None if it is not over.

        Raise SettingsError if the run in the folder was another experiment.
        """
        if cell.name not in self.traces:
            if not ended(cell, self.folder):
                return None
            trace = read_trace(self.folder / cell.name)
            lost = diverged(cell, self.folder)
            self.traces[cell.name] = replace(trace, tests=(), loss=math.inf) if lost else trace
        return self.traces[cell.name]

    # --- results ---

    def record(self) -> None:
        """Write how each oracle was chosen, in a file beside the runs of its search."""
        for problem in self.problems:
            for part in self.parts:
                searched, found = self.search(problem, part)
                if not found.losses:
                    continue
                file = self.folder / searched.name / f"{part}-oracle.json"
                make_folder(file.parent)
                about = {
                    "problem": searched.name,
                    "part": part,
                    "by": f"mean loss on the server's set over the last {LAST} rounds, seed {SELECTION}, and of the "
                    f"best over seeds {SELECTION} to {SELECTION + RUNS - 1}; the test accuracies, in %, with seed "
                    f"{SELECTION}, are there to show what that choice is worth",
                    "chosen": None if found.chosen is None else asdict(found.chosen),
                    "at_edge": found.at_edge,
                    "to_try": [{**asdict(each), "seed": SELECTION + number} for each, number in found.missing],
                    "tried": [
                        {
                            **asdict(each),
                            "losses": [loss if math.isfinite(loss) else None for loss in losses],
                            "accuracy": self.selection(searched, part, each),
                        }
                        for each, losses in found.losses.items()
                    ],
                }
                write_durably(file, (json.dumps(about, indent=1) + "\n").encode())

    def oracles(self) -> Iterator[Oracle]:
        """Yield each oracle that was chosen, and how it did with the seeds that are reported."""
        for part in self.parts:
            for problem in self.problems:
                searched, found = self.search(problem, part)
                if found.chosen is None:
                    continue
                runs = [self.trace(fixed_cell(problem, part, found.chosen, seed)) for seed in self.seeds]
                there = [trace for trace in runs if trace is not None]
                yield Oracle(
                    part,
                    problem.name,
                    **asdict(found.chosen),
                    loss=statistics.fmean(found.losses[found.chosen]),
                    tried={each.name: self.selection(searched, part, each) for each in found.losses},
                    chosen=found.chosen.name,
                    at_edge=found.at_edge,
                    accuracies=tuple(tested(trace, problem) for trace in there),
                    client_steps=tuple(trace.steps for trace in there),
                )

    def selection(self, searched: Problem, part: str, schedule: Schedule) -> float:
        """Return the test accuracy of a schedule that the search tried; nothing is chosen by it."""
        trace = self.trace(fixed_cell(searched, part, schedule, SELECTION))
        assert trace is not None
        return tested(trace, searched)

    def results(self) -> Iterator[Result]:
        """Yield each candidate's run beside the oracle's run with the same seed, where both are over."""
        for part in self.parts:
            for problem in self.problems:
                searched, found = self.search(problem, part)
                if found.chosen is None:
                    continue
                best = max(self.selection(searched, part, each) for each in found.losses)
                for seed in self.seeds:
                    oracle = self.trace(fixed_cell(problem, part, found.chosen, seed))
                    if oracle is None:
                        continue
                    for name in self.candidates:
                        own = self.trace(self.cell(problem, part, name, seed))
                        if own is not None:
                            yield compared(part, problem, name, seed, oracle, own, best)


def with_data(
    problems: Sequence[Problem], say: Callable[[str], None], over: Callable[[Problem], bool]
) -> list[Problem]:
    """Return the problems whose data is here, or that are over and need none; say which are left out."""
    here = []
    absent: dict[str, list[str]] = {}
    for each in problems:
        if catalog.where(each.data) == catalog.ABSENT and not over(each):
            absent.setdefault(each.data, []).append(each.name)
        else:
            here.append(each)
    for data, names in absent.items():
        say(f"left out: {', '.join(names)}: {data} is not on this machine; `fedaccord data fetch {data}` gets it")
    return here


def compared(part: str, problem: Problem, candidate: str, seed: int, oracle: Trace, own: Trace, best: float) -> Result:
    """Return a candidate's run beside the oracle's.

    At equal client steps, a run that spent them all before its first test is at chance. `best`: the accuracy of the
    best schedule of the search, with the search's seed.
    """
    equal = own.accuracy(BUDGET * oracle.steps + 1e-6)  # 1.2 is no binary fraction
    return Result(
        part,
        problem.name,
        candidate,
        seed,
        oracle=tested(oracle, problem),
        accuracy=tested(own, problem),
        equal=problem.chance if equal is None else equal,
        client_steps=own.steps,
        oracle_steps=oracle.steps,
        chance=problem.chance,
        best=max(best, tested(oracle, problem)),
    )


def tested(trace: Trace, problem: Problem) -> float:
    """Return the accuracy by which a whole run is judged, or chance if it diverged; its last round is always tested."""
    accuracy = trace.accuracy()
    return problem.chance if accuracy is None else accuracy


def fixed_cell(problem: Problem, part: str, schedule: Schedule, seed: int) -> Cell:
    """Return a run of a fixed schedule; its name says which, so another choice is another run."""
    return make_cell(problem, part, schedule.name, seed, part, asdict(schedule))


def trial_cell(problem: Problem, part: str, trial: Trial) -> Cell:
    """Return a run of the search for an oracle."""
    return fixed_cell(problem, part, trial.schedule, SELECTION + trial.number)


def make_cell(problem: Problem, part: str, what: str, seed: int, method: str, over: Mapping[str, Any]) -> Cell:
    task = known_task(problem.task, 0)
    settings = config.make(
        task.defaults(problem.settings["split"]),
        problem.settings,
        over,
        {"task": problem.task, "method": method, "seed": seed},
    )
    row = Row(settings.split, settings.fraction, (method,))
    weight = MILLISECONDS[problem.task] * (settings.clients or 10)
    return Cell(f"{problem.name}/{part}-{what}-s{seed}", row, method, seed, settings, weight)


def drawn(grid: str, problem: Problem, seed: int) -> dict[str, Any]:
    """Return the settings of a constant h, drawn from the grid by the problem and the seed."""
    axes = HyperGrid.parse(grid)
    draw = numpy_generator(seed, f"a constant h for {problem.name}")
    index = tuple(int(draw.integers(len(axis.values))) for axis in axes.axes)
    return {**axes.choice(index), "lr_decay": 1.0, "steps_decay": 1.0}
