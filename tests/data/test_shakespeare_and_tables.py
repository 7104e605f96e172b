"""Shakespeare by role, and the two tables."""

import itertools

import numpy as np
import pytest
import torch

from fedaccord.core.batches import IGNORED
from fedaccord.core.errors import DataError, SettingsError
from fedaccord.data import shakespeare, tabular
from fedaccord.data.partition import Split, partition
from fedaccord.runtime.parts import parts_of
from fedaccord.tasks import PRESETS


def test_a_text_is_cut_into_pieces_that_follow_each_other():
    """162 characters and two ends are 164 tokens: three pieces, of 80, 80 and 3 targets."""
    text = "ab" * 81
    rows, owners = shakespeare.windows([(7, text), (9, "!")])
    assert rows.shape == (4, shakespeare.PLACES + 1)
    assert owners.tolist() == [7, 7, 7, 9]
    data = shakespeare.examples(rows)
    assert data.inputs[0, 0] == shakespeare.BEGIN
    assert (data.targets != IGNORED).sum(1).tolist() == [80, 80, 3, 2]
    assert data.targets[2, 2] == shakespeare.END
    assert torch.equal(data.inputs[1, 1:], data.targets[1, :-1])  # what is read is what was to be foretold
    assert data.inputs[1, 0] == data.targets[0, -1]  # and nothing is lost between two pieces
    letters = [shakespeare.CHARACTERS[number - 3] for number in data.targets[0].tolist()]
    assert "".join(letters) == text[:80]


def test_the_real_roles(real_set):
    """16,068 and 2,356 texts of 715 roles, 2.7 million characters, 78 different ones."""
    real_set(shakespeare.SOURCE)
    data = shakespeare.load()
    assert (len(data.train), len(data.test)) == (38001, 5517)
    assert len(np.unique(data.owner)) == 715
    assert int((data.train.inputs == shakespeare.BEGIN).sum()) == 16068
    assert int((data.test.inputs == shakespeare.BEGIN).sum()) == 2356
    assert int(data.train.inputs.max()) < shakespeare.TOKENS == 81


def test_without_the_file_it_says_where_to_put_it(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("FEDACCORD_DATA", raising=False)
    with pytest.raises(DataError, match="put the files into a folder shakespeare/"):
        shakespeare.load()


@pytest.mark.parametrize(("name", "sizes", "columns"), [("diabetes", (354, 88), 10), ("breast_cancer", (455, 114), 30)])
def test_tables(name, sizes, columns):
    data = getattr(tabular, name)()
    assert (len(data.train), len(data.test)) == sizes
    assert data.train.inputs.shape[1] == columns
    assert data.train.inputs.mean(0).abs().max() < 1e-5
    assert (data.train.inputs.std(0, correction=0) - 1).abs().max() < 1e-4


def test_sorted_clients_hold_one_stretch_of_the_targets_each():
    values = np.random.default_rng(0).normal(size=103)
    owner = partition(Split("sorted", 5), values, np.random.default_rng(1))
    assert np.bincount(owner).tolist() in ([21, 21, 20, 21, 20], [21, 20, 21, 20, 21], [21, 21, 21, 20, 20])
    ends = [(values[owner == client].min(), values[owner == client].max()) for client in range(5)]
    assert all(before[1] < after[0] for before, after in itertools.pairwise(ends))
    parts = parts_of(PRESETS["diabetes"], PRESETS["diabetes"].resolved())
    highest = [float(client.targets.max()) for client in parts.clients]
    assert highest == sorted(highest)


def test_what_cannot_be_sorted_is_told():
    with pytest.raises(SettingsError, match="goes by class, and this data has none; iid, quantity, sorted or natural"):
        parts_of(PRESETS["diabetes"], PRESETS["diabetes"].resolved(split="dirichlet"))
