"""One kill in the midst of a commit for each engine; three hundred are in benchmarks/chaos/kills.py."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.chaos import kills
from benchmarks.chaos.events import Events
from benchmarks.chaos.runs import ENGINES, run, undisturbed


@pytest.mark.slow
@pytest.mark.anywhere
@pytest.mark.parametrize("number", range(len(ENGINES)), ids=ENGINES)
def test_killed_in_the_midst_of_a_commit_it_goes_on_to_the_undisturbed_bits(tmp_path, number):
    outcome = kills.kill(number, tmp_path, kills.in_a_write, midst=True)
    if not outcome.tried and os.geteuid() != 0:  # it may not wake up at once; test_cli.py needs no clock
        pytest.skip(outcome.told)
    assert (outcome.tried, outcome.lost) == (1, 0), outcome.told


@pytest.mark.slow
@pytest.mark.anywhere
def test_what_is_lost_is_told(tmp_path):
    """The judge itself: other bits, a committed line that changed, a checkpoint that lags behind."""
    calm = undisturbed("serial")
    folder = tmp_path / "run"
    assert run(folder, "serial").hashes == calm.hashes
    whole = kills.left(folder)
    assert (whole.lines, whole.round, whole.half) == (kills.ROUNDS, kills.ROUNDS, False)
    assert kills.judge(folder, whole, calm.hashes) == ""
    assert "instead of" in kills.judge(folder, whole, ("", ""))
    changed = kills.Left(b"x" + whole.log[1:], whole.round, whole.committed, False)
    assert "as they were" in kills.judge(folder, changed, calm.hashes)
    assert "newest checkpoint" in kills.judge(
        folder, kills.Left(whole.log, whole.round - 2, whole.committed, True), calm.hashes
    )


def test_files_are_heard_of_as_they_are_made_and_renamed(tmp_path):
    with Events([tmp_path]) as events:
        (tmp_path / "a").write_bytes(b"1")
        (tmp_path / "a").rename(tmp_path / "b")
        (tmp_path / "b").unlink()
        assert list(events.within(0)) == ["a", "a", "b", "b"]  # made, written to, renamed, deleted
