"""The order of flushes and renames, in a real run and in made-up ones."""

import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.chaos.order import Watcher, calls, watch


@pytest.mark.slow
@pytest.mark.anywhere
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_every_commit_of_a_run_is_on_disk_before_the_next(tmp_path):
    outcome = watch(0, tmp_path)
    if outcome.told.startswith("skipped"):
        pytest.skip(outcome.told)
    assert (outcome.tried, outcome.lost) == (4, 0), outcome.told


GOOD = """\
mkdir("/r/run/checkpoints", 0777) = 0
openat(AT_FDCWD</>, "/r/run/rounds.jsonl", O_WRONLY|O_CREAT|O_APPEND|O_CLOEXEC, 0666) = 3</r/run/rounds.jsonl>
fsync(4</r/run>) = 0
write(3</r/run/rounds.jsonl>, ""..., 500) = 500
fsync(3</r/run/rounds.jsonl>) = 0
write(5</r/run/checkpoints/.1.safetensors.9.part>, ""..., 9) = 9
fsync(5</r/run/checkpoints/.1.safetensors.9.part>) = 0
rename("/r/run/checkpoints/.1.safetensors.9.part", "/r/run/checkpoints/1.safetensors") = 0
fsync(5</r/run/checkpoints>) = 0
write(5</r/run/checkpoints/.1.json.9.part>, ""..., 9) = 9
fsync(5</r/run/checkpoints/.1.json.9.part>) = 0
rename("/r/run/checkpoints/.1.json.9.part", "/r/run/checkpoints/1.json") = 0
fsync(5</r/run/checkpoints>) = 0
write(3</elsewhere>, ""..., 500) = 500
""".splitlines()


def seen(lines, tmp_path):
    (tmp_path / "trace").write_text("\n".join(lines))
    watcher = Watcher()
    for call in calls(tmp_path / "trace", Path("/r")):
        watcher.see(*call)
    watcher.commit("the end", watcher.dirty_log())
    return watcher


def test_a_good_order_is_good(tmp_path):
    watcher = seen(GOOD, tmp_path)
    assert (watcher.commits, watcher.faults) == (1, [])


@pytest.mark.parametrize("missing", [number for number, line in enumerate(GOOD) if line.startswith("fsync")])
def test_every_flush_that_is_missing_is_noticed(tmp_path, missing):
    assert seen(GOOD[:missing] + GOOD[missing + 1 :], tmp_path).faults


def test_a_flush_before_the_last_write_does_not_count(tmp_path):
    wrong = [*GOOD[:9], GOOD[10], GOOD[9], *GOOD[11:]]
    assert seen(wrong, tmp_path).faults == ["1.json got its name before it was flushed"]
