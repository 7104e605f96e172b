"""Parallel runs of what a study lacks: one process per core, with one worker each, that can be killed and resumed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from fedaccord.config import to_toml
from fedaccord.core.files import make_folder
from fedaccord.core.processes import die_with, usable_cores
from fedaccord.experiments.study import Cell, diverged, done
from fedaccord.methods.registry import find
from fedaccord.metrics import METRICS
from fedaccord.runtime.drive import stop_request
from fedaccord.runtime.folder import SETTINGS, pack

LINE_SECONDS = 10.0
STANDARD_INPUT = "/dev/stdin"


@dataclass
class Lane:
    """A run of the study, with its newest round and metrics."""

    cell: Cell
    round: int
    metrics: dict[str, float] = field(default_factory=dict)
    going: bool = False


def nothing_more() -> Sequence[Cell]:
    return ()


def run_missing(
    todo: Sequence[Cell],
    folder: Path,
    lanes: int | None = None,
    keep: bool = False,
    more: Callable[[], Sequence[Cell]] = nothing_more,
) -> list[str]:
    """Run or resume every cell that is not finished, and return a sentence for each that failed.

    Ctrl-C lets every run finish its round; what is there stays, and the next call goes on from it. `keep`: keep the
    weights of finished runs too. `more` is called after every run and returns the cells that are wanted by then; those
    that are new are run too, so that the next runs may depend on what was found.
    """
    state: dict[str, int] = {}

    def missing_of(cells: Sequence[Cell]) -> list[Cell]:
        state.update({cell.name: done(cell, folder) for cell in cells})  # complains before any of them starts
        return [cell for cell in cells if state[cell.name] < cell.settings.rounds]

    missing = missing_of(todo)
    if not missing:
        return []
    make_folder(folder)
    view = Overview(todo, state)
    failures: list[str] = []
    children: dict[str, subprocess.Popen[str]] = {}
    with stop_request() as asked, view, ThreadPoolExecutor(lanes or usable_cores()) as pool:

        def carry_out(cell: Cell) -> None:
            if asked.is_set():
                return
            with open_child(cell, folder) as child:
                children[cell.name] = child
                complaint = threading.Thread(target=lambda: said.append(child.stderr.read() if child.stderr else ""))
                said: list[str] = []
                complaint.start()
                if asked.is_set():  # the user may have asked since the check above
                    child.send_signal(signal.SIGTERM)
                for line in child.stdout or ():
                    if entry := a_round(line):
                        view.show(cell, entry)
                complaint.join()
            del children[cell.name]
            if child.returncode == 0:
                if not keep:
                    pack(folder / cell.name)
                view.finish(cell)
                for line in said[0].splitlines():
                    if line.startswith("fedaccord: "):  # a warning: the run went on, but a person should know
                        view.say(cell, f"{cell.name}: {line.removeprefix('fedaccord: ')}")
            elif not asked.is_set():
                last = said[0].strip().splitlines()[-1:] or [f"ended with {child.returncode}"]
                failures.append(f"{cell.name}: {last[0].removeprefix('fedaccord: ')}")
                view.fail(cell, failures[-1])

        def stop_all() -> None:
            for child in list(children.values()):
                child.send_signal(signal.SIGTERM)  # each ends after its round

        waiting = {pool.submit(carry_out, cell) for cell in missing}
        told = False
        try:
            while waiting:
                ended, waiting = wait(waiting, timeout=0.2)
                for future in ended:
                    future.result()
                if asked.is_set():
                    if not told:
                        told = True
                        stop_all()
                elif ended:
                    new = [cell for cell in more() if cell.name not in state]
                    missing = missing_of(new)
                    view.add(new, state)
                    waiting |= {pool.submit(carry_out, cell) for cell in missing}
        except BaseException:
            asked.set()  # otherwise the pool would first run all that is left
            stop_all()
            raise
    if asked.is_set():
        raise KeyboardInterrupt("the same command goes on from here")
    return failures


def run_rest(
    cells: Sequence[Cell],
    folder: Path,
    lanes: int | None,
    more: Callable[[], Sequence[Cell]] = nothing_more,
) -> list[str]:
    """Run or resume every cell that is not over, and return a sentence for each that failed, as run_missing does.

    A run that diverged is over: it is not tried again, and it is no failure.
    """
    known: dict[str, Cell] = {}
    lost: set[str] = set()

    def look(cell: Cell) -> None:
        known[cell.name] = cell
        done(cell, folder)  # complains if it was another experiment
        if diverged(cell, folder):
            lost.add(cell.name)
            pack(folder / cell.name)

    def left(those: Sequence[Cell]) -> list[Cell]:
        for cell in those:
            if cell.name not in known:
                look(cell)
        return [cell for cell in those if cell.name not in lost]

    failures = {
        told.partition(": ")[0]: told for told in run_missing(left(cells), folder, lanes, more=lambda: left(more()))
    }
    for name in failures:
        look(known[name])
    return [told for name, told in failures.items() if name not in lost]


def open_child(cell: Cell, folder: Path) -> "subprocess.Popen[str]":
    """Start or resume a run in a process of its own; a new run reads its settings from standard input."""
    path = folder / cell.name
    if (path / SETTINGS).is_file():
        words, given = ["resume", str(path)], ""
    else:
        words = ["run", cell.settings.task, "--runs", str(folder), "--name", cell.name, "--config", STANDARD_INPUT]
        given = to_toml(replace(cell.settings, workers=1))  # the other runs keep the cores busy
    child = subprocess.Popen(
        [sys.executable, "-m", "fedaccord.cli", *words, "--json"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=partial(die_with, os.getpid()),  # so that a killed study can be resumed at once
    )
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError), child.stdin:  # it died at once; its stderr says why
        child.stdin.write(given)
    return child


def summary(failures: Sequence[str]) -> str:
    """Return one sentence on all failed runs, to follow the full report of each."""
    count = "a run" if len(failures) == 1 else f"{len(failures)} runs"
    return f"{count} failed, see above; the same command tries again"


def a_round(line: str) -> dict[str, Any] | None:
    """Parse a run's line about a round, or return None for anything else, which a user's own task may print."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and {"round", "metrics"} <= entry.keys() else None


class Overview:
    """A view of how far the study and each of its current runs are: bars in a terminal, lines elsewhere."""

    def __init__(self, todo: Sequence[Cell], state: dict[str, int]):
        self.total = self.before = self.spent = 0.0
        self.cells = self.over = 0
        self.lanes: dict[str, Lane] = {}
        self.console = Console()
        self.began = 0.0
        self.last = time.monotonic()
        self.lock = threading.Lock()
        self.add(todo, state)
        self.bars = Progress(
            TextColumn("{task.description}"), BarColumn(30), TextColumn("{task.fields[note]}"), console=self.console
        )
        self.whole = self.bars.add_task("all runs", total=1.0, note="")
        self.shown: dict[str, TaskID] = {}

    def __enter__(self) -> "Overview":
        self.console.print(f"{self.over} of {self.cells} runs are there", highlight=False)
        if self.console.is_terminal:
            self.bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.console.is_terminal:
            self.bars.stop()

    def add(self, todo: Sequence[Cell], state: dict[str, int]) -> None:
        """Add these runs to the totals; `state` says how many rounds of each are done."""
        with self.lock:
            there = sum(price(cell, state[cell.name]) for cell in todo)
            self.total += sum(price(cell, cell.settings.rounds) for cell in todo)
            self.before += there
            self.spent += there
            self.cells += len(todo)
            self.over += sum(state[cell.name] >= cell.settings.rounds for cell in todo)
            self.lanes |= {cell.name: Lane(cell, state[cell.name]) for cell in todo}

    def show(self, cell: Cell, entry: dict[str, Any]) -> None:
        with self.lock:
            lane = self.lanes[cell.name]
            self.spent += price(cell, entry["round"] - lane.round)
            if not lane.going:  # it may have gone back to its checkpoint, and loading is no part of the pace
                lane.going = True
                self.before += price(cell, entry["round"] - lane.round)
                self.began = self.began or time.monotonic()
            lane.round = entry["round"]
            lane.metrics = entry["metrics"] or lane.metrics
            if self.console.is_terminal:
                if cell.name not in self.shown:
                    self.shown[cell.name] = self.bars.add_task(cell.name, total=cell.settings.rounds, note="")
                self.bars.update(self.shown[cell.name], completed=lane.round, note=standing(lane))
                self.bars.update(self.whole, completed=self.spent / self.total, note=self.outlook())
            elif time.monotonic() - self.last > LINE_SECONDS:
                self.last = time.monotonic()
                going = ", ".join(f"{lane.cell.name} {standing(lane)}" for lane in self.under_way())
                print(f"{self.outlook()}: {going}", flush=True)

    def under_way(self) -> list[Lane]:
        return [lane for lane in self.lanes.values() if lane.going]

    def outlook(self) -> str:
        gone = self.spent - self.before
        left = (
            f", about {spoken((time.monotonic() - self.began) / gone * (self.total - self.spent))} left"
            if gone > 0
            else ""
        )
        return f"{self.over}/{self.cells} runs{left}"

    def finish(self, cell: Cell) -> None:
        with self.lock:
            self.over += 1
            self.lanes[cell.name].going = False
            self.say(cell, f"{cell.name}: {standing(self.lanes[cell.name])}")

    def fail(self, cell: Cell, why: str) -> None:
        with self.lock:
            lane = self.lanes[cell.name]
            self.total -= price(cell, cell.settings.rounds - lane.round)
            lane.going = False
            self.say(cell, why)

    def say(self, cell: Cell, text: str) -> None:
        """Print a line that stays, in place of the run's bar."""
        if cell.name in self.shown:
            self.bars.remove_task(self.shown.pop(cell.name))
        self.console.print(text, highlight=False, markup=False)


def price(cell: Cell, rounds: int) -> float:
    """Return the rough cost of a number of rounds, in plain client-steps.

    It is rough, because nobody knows how many steps a tuner will choose, or a pass will take.
    """
    method = find(cell.settings.method)
    steps = 15 if "steps" in method.tunes(cell.settings.values()) else 80 * cell.settings.epochs or cell.settings.steps
    return rounds * cell.settings.fraction * steps * method.cost * cell.weight


def standing(lane: Lane) -> str:
    shares = {name for name, metric in METRICS.items() if metric.percent}
    shown = [f"{100 * v:.2f} %" if name in shares else f"{name} {v:.4g}" for name, v in lane.metrics.items()]
    return ", ".join([f"round {lane.round}/{lane.cell.settings.rounds}", *shown])


def spoken(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
