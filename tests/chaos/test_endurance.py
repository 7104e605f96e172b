"""A few rounds of the long run in benchmarks/chaos/endurance.py, and why it does not grow."""

import gc
import io
import math
import sys
import weakref
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.chaos.endurance import endure
from fedaccord import config
from fedaccord.core.records import RoundLog
from fedaccord.runtime.build import from_task
from fedaccord.runtime.drive import drive
from fedaccord.runtime.folder import RunFolder
from fedaccord.runtime.live import POINTS, LiveView, View, sparkline
from fedaccord.tasks import find_task


@pytest.mark.slow
@pytest.mark.anywhere
def test_descriptors_log_and_checkpoints_stay_bounded(tmp_path):
    """Memory says nothing after so few rounds: the allocator is still warming up."""
    outcome = endure(150, 20, tmp_path)
    faults = [fault for fault in outcome.told.split("; ") if fault and "MiB" not in fault]
    assert outcome.figures.keys() >= {"descriptors", "checkpoint files"}, outcome.told
    assert faults == []


class Records(View):
    """Counts the records of rounds that somebody still holds."""

    def __init__(self):
        self.seen, self.alive = [], []

    def show(self, log):
        self.seen.append(weakref.ref(log))
        del log
        gc.collect()
        self.alive.append(sum(each() is not None for each in self.seen))


def live_view(rounds):
    settings = SimpleNamespace(task="t", method="m", split="iid", fraction=1.0, seed=0, rounds=rounds, patience=0)
    metrics = [SimpleNamespace(name="accuracy", percent=True)]
    experiment = SimpleNamespace(clients=2)
    setup = SimpleNamespace(settings=settings, metrics=metrics, counts=None, classes=(), experiment=experiment)
    return LiveView(setup, Console(file=io.StringIO(), width=120))


def values_of(round):
    """A loss for all rounds but some, and every fifth round a test."""
    measured = {"accuracy": round % 100 / 100, "mae": 1.0 / round} if round % 5 == 1 else {}
    return None if round % 11 == 0 else 2.0 + math.sin(round / 50), measured


def round_log(round):
    loss, measured = values_of(round)
    clients = {str(client): {"examples": 5, "loss": 1.0, "update_norm": 0.1} for client in range(2)}
    return RoundLog(round, {"lr": 0.1}, [0, 1], [], loss, measured, None, {}, None, clients)


def test_names_of_a_users_own_are_no_markup():
    view = live_view(3)
    view.setup.settings.task = "cats[/data]"
    view.setup.counts, view.setup.classes = np.array([[0, 3], [2, 0]]), ("[unk]", "[bold]")
    view.show(replace(round_log(1), metrics={"[red]": 0.5}))
    view.live.console.print(view.picture())
    shown = view.live.console.file.getvalue()
    assert all(name in shown for name in ("cats[/data]", "only [unk]", "only [bold]", "test [red]"))


@pytest.mark.parametrize("resumed", [0, 200])
@pytest.mark.parametrize("rounds", [1, 7, 400])
def test_the_picture_of_a_short_run_has_all_values(rounds, resumed):
    view, logs = live_view(rounds), [round_log(round) for round in range(1, rounds + 1)]
    view.begin(logs[:resumed])
    for log in logs[resumed:]:
        view.show(log)
    view.end()
    assert view.shown == len(logs[resumed:])  # the pace goes by the rounds of this stretch
    said = io.StringIO()
    Console(file=said, width=160).print(view.picture())
    every = [values_of(round) for round in range(1, rounds + 1)]
    losses = [loss for loss, _ in every if loss is not None]
    for name, ends in (("accuracy", (0.0, 1.0)), ("mae", (None, None))):
        tested = [measured[name] for _, measured in every if measured]
        assert f"test {name}" in said.getvalue()
        assert sparkline(tested, *ends) in said.getvalue()
    assert sparkline(losses) in said.getvalue()
    assert f"{losses[-1]:.3f}" in said.getvalue()


def test_the_picture_of_a_long_run_does_not_grow():
    view, alive = live_view(10_000), []
    for round in range(1, 10_001):
        log = round_log(round)
        alive.append(weakref.ref(log))
        view.show(log)
    del log
    assert sum(each() is not None for each in alive) == 1
    for curve in (view.losses, *view.tested.values()):
        assert POINTS / 2 <= len(curve.values()) <= POINTS + 1
    assert view.losses.values()[-1] == values_of(10_000)[0]
    ends = min(view.losses.values()), max(view.losses.values())
    assert ends == pytest.approx((1.0, 3.0), abs=1e-2)  # the sine's


def test_a_run_with_a_folder_does_not_hold_the_records_of_its_rounds(tmp_path):
    task = find_task("digits")
    settings = config.make(task.defaults("iid"), {"method": "FA", "rounds": 6, "steps": 1, "engine": "serial"})
    records = Records()
    with RunFolder.create(tmp_path / "run", settings) as folder:
        outcome = drive(from_task(task, settings), folder, records)
    assert max(records.alive) <= 2  # this round's, and perhaps the one before
    assert [log.round for log in outcome.rounds] == [1, 2, 3, 4, 5, 6]
