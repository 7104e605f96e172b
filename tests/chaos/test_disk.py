"""A disk that is full or read-only: one line, and the run goes on afterwards. More are in benchmarks/chaos/disk.py."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.chaos import disk
from benchmarks.chaos.runs import Ended, run
from fedaccord import config
from fedaccord.core.errors import RunError
from fedaccord.core.records import RoundLog
from fedaccord.runtime.build import from_task
from fedaccord.runtime.drive import drive
from fedaccord.runtime.folder import CSV, ROUNDS, RunFolder
from fedaccord.tasks import find_task

SETTINGS = {"method": "FA", "rounds": 2, "steps": 1, "engine": "serial"}


@pytest.mark.slow
@pytest.mark.anywhere
@pytest.mark.parametrize("attempt", [disk.full, disk.read_only])
def test_it_is_told_in_one_line_and_the_run_goes_on(tmp_path, attempt):
    outcome = attempt(1, tmp_path)
    if outcome.told.startswith("skipped"):
        pytest.skip(outcome.told)
    assert (outcome.tried, outcome.lost) == (1, 0), outcome.told


def simulation():
    task = find_task("digits")
    return from_task(task, config.make(task.defaults("iid"), SETTINGS))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("file", [CSV, ROUNDS])
def test_a_line_that_does_not_fit_is_told_once(tmp_path, file):
    """/dev/full takes nothing; what was not written must not be tried again, and fail again, when it is closed."""
    sim = simulation()
    RunFolder.create(tmp_path / "run", sim.settings).close()
    (tmp_path / "run" / file).unlink(missing_ok=True)
    (tmp_path / "run" / file).symlink_to("/dev/full")
    with pytest.raises(RunError, match=f"{file}: cannot be written: No space left on device; make room"):
        write(sim, tmp_path / "run", file)


def write(sim, path, file):
    """Have a line written to this file, and the folder closed."""
    with RunFolder(path) as folder:
        if file == ROUNDS:
            folder.append(RoundLog(1, {}, [], [], None, {}, None, {}, None, {}))
        else:
            drive(sim, folder, None)


def test_what_a_killed_process_was_writing_goes_when_the_folder_is_opened(tmp_path):
    sim = simulation()
    RunFolder.create(tmp_path / "run", sim.settings).close()
    (tmp_path / "run" / "private" / "3").mkdir(parents=True)
    places = [tmp_path / "run" / name for name in ("", "checkpoints", "private/3")]
    for place in places:
        (place / ".000001.json.123.part").write_bytes(b"half")
    RunFolder(tmp_path / "run").close()
    assert not list((tmp_path / "run").rglob(".*.part"))


@pytest.mark.slow
@pytest.mark.anywhere
def test_what_is_wrong_is_told(tmp_path):
    """The judge itself: a traceback, another exit code, a line that does not say where."""
    folder = tmp_path / "run"
    assert run(folder, "serial").code == 0
    line = f"fedaccord: {folder}: cannot be written: No space left on device"
    reason = "No space left on device"
    assert disk.judge(Ended(2, "", line), reason, folder, "serial") == ""
    for wrong in (Ended(1, "", line), Ended(2, "", ""), Ended(2, "", f"{line}\n{line}"), Ended(2, "", reason)):
        assert disk.judge(wrong, reason, folder, "serial")
