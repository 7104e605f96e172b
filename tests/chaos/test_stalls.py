"""A federation in which clients drop out, stop and stall. How long its rounds take is measured by `make chaos`."""

import random
from pathlib import Path

import pytest

pytest.importorskip("flwr")
pytestmark = pytest.mark.filterwarnings("ignore")  # flwr's own

from benchmarks.chaos import stalls  # noqa: E402


@pytest.mark.slow
@pytest.mark.anywhere
def test_a_run_ends_although_half_of_its_clients_stall(tmp_path, monkeypatch):
    monkeypatch.setattr(stalls, "CLIENTS", 2)
    monkeypatch.setattr(stalls, "DEADLINE", 2.0)
    outcome = stalls.stalled(0, tmp_path, rounds=3)
    assert "hung" not in outcome.told
    assert "ended with" not in outcome.told
    assert outcome.figures.keys() > {"s between rounds", "updates missing"}  # something was done to them


def test_a_round_beyond_its_deadline_and_grace_counts_as_lost():
    """Rounds 1 and 2 in time; round 3 took too long, and was so long in coming."""
    trouble = stalls.Trouble(None, random.Random(0), Path(), 3, [0.0, 4.5, 14.5])
    lines = [{"seconds": {"train": each}, "refused": []} for each in (4.0, 4.1, 9.9)]
    outcome = stalls.judged(trouble, lines, 0)
    assert outcome.lost == 2
    assert outcome.told == "round 3 took 9.9 s; round 3 was logged 10.0 s after the one before"
    assert "status 1 after 3 of 3" in stalls.judged(trouble, lines, 1).told
    assert stalls.judged(stalls.Trouble(None, random.Random(0), Path(), 1, [0.0]), lines[:1], 0).lost == 0
