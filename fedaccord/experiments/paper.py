"""The paper's tables and figures, as studies with one of two budgets:

cpu     few rounds, with the tuner as it used to be: a cell takes minutes to an hour on two cores
paper   as long as we believe the paper trained (it does not say), with the default tuner: see experiments/long.py
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedaccord import config
from fedaccord.core.files import make_folder, write_durably
from fedaccord.experiments import comparison, long, runner
from fedaccord.experiments import study as studies
from fedaccord.experiments.study import Row, Study
from fedaccord.methods.registry import find
from fedaccord.report import curves, evolution, grid, paper, speed, tables
from fedaccord.report import spent as costs

ROWS = (("iid", 1.0), ("non-iid", 1.0), ("iid", 0.5), ("non-iid", 0.5))
NO_WD = ("FA", "FA+RM+AH", "FA+RM", "FA+AH")
FIXED = ("FA", "FA+WD", "FA+RM")
# how the runs in results/ were made: as printed, but with the cohort's weights, guards, and the clients' own yardstick
BEFORE = {
    **config.printed(find("FA+RM+AH")), "weighting": "cohort", "guards": True, "yardstick": "objective",
}  # fmt: skip
OFTEN = {"test_every": 5, "checkpoint_every": 5, **BEFORE}
SELDOM = {"test_every": 20, "checkpoint_every": 50, **BEFORE}
GRIDS = {
    "mnist": {"grid": "lr = 0.05..0.5/9 log; steps = 5..45/9"},
    "cifar10": {"grid": "lr = 0.02..0.5/9 log; steps = 4..40/9 log"},
    "kws": {"grid": "lr = 0.02..0.5/9 log; steps = 3..30/9 log"},
}

# fixed schedules, one for each split: the best of the searches below (CIFAR-10, non-iid: by the loss)
MNIST = {
    "iid": {"rounds": 800, "steps": 20, "lr": 0.3, "lr_decay": 0.996, **SELDOM, **GRIDS["mnist"]},
    "non-iid": {"rounds": 800, "steps": 5, "lr": 0.3, "lr_decay": 0.996, **SELDOM, **GRIDS["mnist"]},
}
CIFAR10 = {
    "iid": {"rounds": 20, "steps": 20, "lr": 0.2, "lr_decay": 0.99, **OFTEN, **GRIDS["cifar10"]},
    "non-iid": {"rounds": 30, "steps": 20, "lr": 0.05, "lr_decay": 0.99, **OFTEN, **GRIDS["cifar10"]},
}
HALF = {"steps": 20, "lr_decay": 0.99, "width": 32, **OFTEN, "rm_batch": 16, **GRIDS["kws"]}
KWS = {"iid": {"rounds": 60, "lr": 0.2, **HALF}, "non-iid": {"rounds": 45, "lr": 0.05, **HALF}}
SLOWER = {"FA": {"lr": 0.02}, "FA+WD": {"lr": 0.02}}  # on one-class clients: what suits RM is too fast for them

Tuned = Mapping[str, Mapping[str, Any]]
NOTHING: Tuned = {}


def on_two_cores(settings: Mapping[str, Mapping[str, Any]], tuned: Tuned = NOTHING) -> tuple[Row, ...]:
    """Return the rows of a convolutional network's table that two cores can do; with C = 0.5 they get more rounds."""
    more = {**settings["non-iid"], "rounds": settings["non-iid"]["rounds"] * 4 // 3}
    return (
        Row("iid", 1.0, ("FA", "FA+RM+AH"), 1, settings["iid"]),
        Row("non-iid", 1.0, paper.METHODS, 1, settings["non-iid"], tuned),
        Row("non-iid", 0.5, NO_WD, 1, more, tuned),
    )


def whole(settings: Mapping[str, Mapping[str, Any]]) -> tuple[Row, ...]:
    return tuple(Row(split, C, paper.METHODS, 3, settings[split]) for split, C in ROWS)


def schedules(
    split: str, fraction: float, methods: tuple[str, ...], found: Sequence[tuple[int, float, float]], **also: Any
) -> tuple[Row, ...]:
    """Return a row for each fixed schedule (steps, rate, decay) that was tried."""
    return tuple(
        Row(
            split,
            fraction,
            methods,
            1,
            {"steps": steps, "lr": lr, "lr_decay": decay, **also},
            tag=f"-{steps}x{lr}x{decay}",
        )
        for steps, lr, decay in found
    )


def local_work(total: int, steps: Sequence[int], seeds: int, lr: float, **also: Any) -> tuple[Row, ...]:
    """Return rows with the same number of local steps in all, in ever fewer and longer rounds."""
    fixed = {"lr": lr, "lr_decay": 1.0, **also}
    return tuple(
        Row("non-iid", 1.0, FIXED, seeds, {"steps": n, "rounds": total // n, **fixed}, tag=f"-steps{n}") for n in steps
    )


FAR = "the paper's runs are far longer"
TABLES = {
    "mnist": Study("mnist", whole(MNIST), "MNIST: test accuracy in %, SEEDS, 800 rounds for every method"),
    "cifar10": Study(
        "cifar10",
        on_two_cores(CIFAR10),
        "CIFAR-10, cpu budget: test accuracy in %, SEEDS, 30 rounds (C=0.5: 40, iid: 20), fixed schedules 20 steps; "
        f"{FAR}",
    ),
    "kws": Study(
        "kws",
        on_two_cores(KWS, SLOWER),
        "Keywords, cpu budget, half width, matching on 16 examples of a batch: test accuracy in %, SEEDS, 45 rounds "
        f"(C=0.5: 60, iid: 60), fixed schedules 20 steps; {FAR}",
    ),
}
RATES = [(20, 0.05, 0.99), (20, 0.1, 0.99), (20, 0.2, 0.99)]
SEARCHES = {
    "search-mnist": Study(
        "mnist",
        schedules("iid", 1.0, ("FA", "FA+WD"), [(20, 0.3, 0.996), (20, 0.3, 0.994)], rounds=800, **SELDOM)
        + schedules("iid", 1.0, ("FA",), [(45, 0.3, 0.994), (45, 0.2, 0.996)], rounds=800, **SELDOM)
        + schedules("iid", 0.5, ("FA",), [(20, 0.3, 0.996), (20, 0.3, 0.994)], rounds=800, **SELDOM)
        + schedules("non-iid", 1.0, ("FA", "FA+WD"), [(5, 0.3, 0.996), (5, 0.3, 0.9975)], rounds=800, **SELDOM)
        + schedules("non-iid", 1.0, ("FA",), [(5, 0.2, 0.9975), (8, 0.2, 0.996)], rounds=800, **SELDOM)
        + schedules(
            "non-iid",
            0.5,
            ("FA",),
            [(5, 0.3, 0.996), (5, 0.3, 0.9975), (5, 0.2, 0.9975), (8, 0.2, 0.996)],
            rounds=800,
            **SELDOM,
        ),
        "MNIST, fixed schedules tried (steps x rate x decay a round), 800 rounds, seed 0",
    ),
    "search-cifar10": Study(
        "cifar10",
        schedules("iid", 1.0, ("FA",), RATES, rounds=10, **OFTEN)
        + schedules("non-iid", 1.0, ("FA",), RATES, rounds=10, **OFTEN),
        "CIFAR-10, fixed schedules tried (steps x rate x decay a round), 10 rounds, seed 0",
    ),
    "search-kws": Study(
        "kws",
        schedules("iid", 1.0, ("FA",), [*RATES, (20, 0.4, 0.99)], rounds=12, width=32, **OFTEN)
        + schedules("non-iid", 1.0, ("FA", "FA+RM"), [(20, 0.02, 0.99), *RATES[:2]], rounds=12, width=32, **OFTEN)
        + schedules("non-iid", 1.0, ("FA",), RATES[2:], rounds=12, width=32, **OFTEN),
        "Keywords, half width, fixed schedules tried (steps x rate x decay a round), 12 rounds, seed 0",
    ),
}
STEPS = {
    "steps-mnist": Study(
        "mnist",
        local_work(2000, (5, 20, 80, 200), 3, 0.1, **SELDOM),
        "MNIST, non-iid, C=1.0: test accuracy in % after 2,000 local steps of rate 0.1, by steps a round, SEEDS",
    ),
    "steps-cifar10": Study(
        "cifar10",
        local_work(300, (5, 20, 60), 1, 0.05, **OFTEN),
        "CIFAR-10, non-iid, C=1.0: test accuracy in % after 300 local steps of rate 0.05, by steps a round, SEEDS",
    ),
}
EVERY = {**TABLES, **SEARCHES, **STEPS}
PARTS = ("mnist", "cifar10", "kws", "search", "steps", "overhead", "evolution", "choices")
TASKS = {"mnist": "MNIST", "cifar10": "CIFAR-10", "kws": "keywords"}

Say = Callable[[str], None]


class Reproduction:
    """The paper's tables and figures, made in tables/ and figures/ from the runs in `folder`, a folder for each study.

    `wanted`: the runs of the long tables that may be begun; a table has all that are there.
    """

    def __init__(
        self,
        folder: Path,
        budget: str,
        run: bool,
        lanes: int | None,
        device: str,
        say: Say,
        wanted: long.Wanted = long.ALL,
    ):
        self.folder, self.may_run, self.say, self.wanted = folder, run, say, wanted
        self.lanes = lanes or (None if device == "cpu" else 1)  # runs share a GPU badly
        self.device = device
        self.failures: list[str] = []  # a sentence for each run that failed; the tables have all others
        self.long = long.LINES.keys() if budget == "paper" else ()
        self.lab = long.lab_in(folder / "tuner")

    def home(self, name: str) -> Path:
        return self.folder / (f"paper-{name}" if name in self.long else name)

    def study(self, name: str) -> Study:
        return long.study_of(name, self.lab) if name in self.long else EVERY[name]

    def part(self, name: str) -> None:
        if name in TABLES:
            self.table(name)
            self.curves(name)
        elif name == "search":
            for search in SEARCHES:
                self.table(search)
        elif name == "steps":
            for sweep in STEPS:
                self.table(sweep)
                self.sweep(sweep)
        elif name == "overhead":
            self.overhead()
        elif name == "choices":
            for task in self.long:
                self.choices(task)
        else:
            self.evolution()

    def complete(self, name: str, cells: Sequence[studies.Cell]) -> None:
        """Run the given cells that are missing, if runs are allowed."""
        if self.may_run:
            placed = [replace(cell, settings=replace(cell.settings, device=self.device)) for cell in cells]
            self.failures += runner.run_rest(placed, self.home(name), self.lanes)

    def table(self, name: str) -> None:
        if name in self.long:
            self.long_table(name)
            return
        self.complete(name, list(studies.cells(EVERY[name])))
        self.publish(name, studies.table_of(EVERY[name], self.home(name), with_paper=name in TABLES))

    def long_table(self, name: str) -> None:
        """Search for the schedules in the lab first; then write the table, and what each method spent."""
        if self.may_run:
            self.search(name)
        study = self.study(name)
        self.complete(name, self.wanted.of(study))
        table, _ = comparison.compare(study, self.home(name), as_published=True)
        self.publish(name, table)
        for equal in (costs.ROUNDS, costs.STEPS):
            _, spent = comparison.compare(study, self.home(name), equal, as_published=True)
            studies.write_tables(spent, self.folder / "tables" / f"{self.home(name).name}-{equal}", grid.FORMS)

    def choices(self, name: str) -> None:
        """Write what other choices than the default are worth; the runs are beside those of the long table."""
        if self.may_run:
            self.search(name, long.CHOICES[name])
        study = long.choices_of(name, self.lab)
        self.complete(name, self.wanted.of(study))
        found = long.worth(study, self.home(name))
        studies.write_tables(found, self.folder / "tables" / f"{self.home(name).name}-choices", grid.FORMS)
        self.say(grid.markdown(found))

    def search(self, name: str, choices: long.Choices | None = None) -> None:
        """Find the schedules that the wanted runs of a long table need, or only those of the row of `choices`."""
        lines = [line for line in self.wanted.lines(name) if choices is None or line.name == choices.row]
        parts = self.wanted.parts(paper.METHODS if choices is None else choices.methods)
        work = long.searching([line.problem for line in lines], self.lab.folder, parts)
        self.failures += work.run(self.lanes, self.say)
        work.record()

    def publish(self, name: str, table: tables.Table) -> None:
        files = studies.write_tables(table, self.folder / "tables" / self.home(name).name)
        self.say(tables.markdown(table))
        self.say(f"written: {', '.join(map(str, files))}\n")

    def picture(self, name: str) -> Path:
        path = self.folder / "figures" / name
        make_folder(path.parent)
        self.say(f"written: {path}.svg, {path}.png\n")
        return path

    def there(self, name: str) -> list[studies.Cell]:
        """Return the finished runs of a study."""
        return [cell for cell in studies.cells(self.study(name)) if studies.finished(cell, self.home(name))]

    def curves(self, name: str) -> None:
        """Draw accuracy and loss: a panel for each row, a curve for each method, a band over the seeds."""
        panels: dict[str, dict[str, list[Path]]] = {}
        for cell in self.there(name):
            panel = panels.setdefault(f"{TASKS[name]}, {studies.label(cell.row)}", {})
            panel.setdefault(cell.method, []).append(self.home(name) / cell.name)
        if panels:
            curves.draw(panels, self.picture(f"{self.home(name).name}-curves"), ("accuracy", "loss"))

    def sweep(self, name: str) -> None:
        found: dict[str, dict[float, list[float]]] = {}
        for cell in self.there(name):
            accuracy = tables.last_value(self.home(name) / cell.name)
            found.setdefault(cell.method, {}).setdefault(cell.settings.steps, []).append(accuracy)
        if found:
            title = EVERY[name].heading.split(":")[0]
            curves.draw_sweep(title, "local steps a round", found, self.picture(name))

    def evolution(self) -> None:
        """Draw how the tuner's choice evolves with FA+RM+AH at C = 1.0, in a column for each task."""

        def shown(cell: studies.Cell) -> bool:
            return cell.method == "FA+RM+AH" and cell.row.fraction == 1.0

        columns: dict[str, dict[str, list[Path]]] = {}
        for name, title in TASKS.items():
            cells = self.wanted.of(self.study(name)) if name in self.long else list(studies.cells(EVERY[name]))
            self.complete(name, list(filter(shown, cells)))
            for cell in filter(shown, self.there(name)):
                columns.setdefault(title, {}).setdefault(cell.row.split, []).append(self.home(name) / cell.name)
        if columns:
            evolution.draw(columns, self.picture("paper-evolution" if self.long else "evolution"))

    def overhead(self) -> None:
        """Write the run-time table, as ratios to FA; measure what is missing first, if runs are allowed."""
        from fedaccord.experiments import bench

        found = {}
        for task, trials in TRIALS.items():
            file = self.folder / "bench" / f"methods-{task}.json"
            if not file.exists() and self.may_run:
                self.say(f"{task}: 30 mini-batches with each method, {trials} times")
                make_folder(file.parent)
                measured = bench.run(["methods"], [task], trials, None, self.say)
                write_durably(file, (json.dumps(measured, indent=1) + "\n").encode())
            if file.exists():
                entry = json.loads(file.read_text())
                found[f"{task}, {entry['repeats']} trials"] = entry["methods"][task]
        text = "Time of 30 mini-batches of one client, with AH also of all that a round's tuning as printed costs the "
        text += "server, as a ratio to FA: ours on one core (the paper's on its GPU)\n\n"
        text += "\n".join(speed.overhead_lines(found)) + "\n"
        file = self.folder / "tables" / "overhead.md"
        make_folder(file.parent)
        write_durably(file, text.encode())
        self.say(f"{text}\nwritten: {file}\n")


TRIALS = {"mnist": 200, "cifar10": 10, "kws": 5}
