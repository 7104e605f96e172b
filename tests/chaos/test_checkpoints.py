"""A few damaged checkpoints; two thousand are in benchmarks/chaos/checkpoints.py."""

import json
import random
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.chaos import checkpoints
from fedaccord.runtime.checkpoints import read_checkpoint, sealed


@pytest.mark.slow
@pytest.mark.anywhere
@pytest.mark.parametrize("damage", [checkpoints.truncated, checkpoints.flipped])
def test_damage_is_noticed_and_the_checkpoint_before_is_used(tmp_path, damage):
    outcome = checkpoints.batch(0, tmp_path, damage)
    assert (outcome.tried, outcome.lost) == (checkpoints.BATCH, 0), outcome.told


def test_one_bit_or_the_end_is_missing():
    draw = random.Random(0)
    data = bytes(range(50))
    changed = checkpoints.flipped(data, draw)
    assert sum((a ^ b).bit_count() for a, b in zip(data, changed, strict=True)) == 1
    cut = checkpoints.truncated(data, draw)
    assert len(cut) < len(data)
    assert data.startswith(cut)


@pytest.mark.slow
@pytest.mark.anywhere
def test_a_manifest_is_damaged_although_its_values_are_as_they_were(tmp_path):
    """0.0001 is written 0.0001 and 0.00001 1e-05; with another bit in the e, 1E-05, which is the same number."""
    kept = checkpoints.good()
    for name, data in kept.files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    manifest = tmp_path / checkpoints.newest(".json")

    whole = sealed({**json.loads(manifest.read_bytes())["body"], "loss": 1e-05})
    manifest.write_bytes(whole)
    assert read_checkpoint(manifest) is not None
    assert whole.count(b"1e-05") == 1
    manifest.write_bytes(whole.replace(b"1e-05", b"1E-05"))
    assert read_checkpoint(manifest) is None
