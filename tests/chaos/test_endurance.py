"""A few rounds of the long run in benchmarks/chaos/endurance.py, and why it does not grow."""

import gc
import sys
import weakref
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.chaos.endurance import endure
from fedaccord import config
from fedaccord.runtime.build import from_task
from fedaccord.runtime.drive import drive
from fedaccord.runtime.folder import RunFolder
from fedaccord.runtime.live import View
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


def test_a_run_with_a_folder_does_not_hold_the_records_of_its_rounds(tmp_path):
    task = find_task("digits")
    settings = config.make(task.defaults("iid"), {"method": "FA", "rounds": 6, "steps": 1, "engine": "serial"})
    records = Records()
    with RunFolder.create(tmp_path / "run", settings) as folder:
        outcome = drive(from_task(task, settings), folder, records)
    assert max(records.alive) <= 2  # this round's, and perhaps the one before
    assert [log.round for log in outcome.rounds] == [1, 2, 3, 4, 5, 6]
