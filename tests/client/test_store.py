"""theta_i between rounds: generations, crash, damage, where it may be found."""

import stat

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedaccord.client.store import PrivateStore, fits_in_memory
from fedaccord.core.errors import RunError


def theta(value):
    return {"f.0.layer.weight": torch.full((3,), float(value)), "f.0.layer.bias": torch.tensor([value / 3])}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture(params=[True, False], ids=["memory", "disk"])
def store(request, tmp_path):
    made = PrivateStore(tmp_path / "private", in_memory=request.param)
    yield made
    made.close()


def test_a_round_reads_the_newest_generation_from_before_it(store):
    assert store.get(4, round=1) is None
    store.put(4, 1, theta(1))
    store.put(4, 3, theta(3))
    assert same(store.get(4, 4), theta(3))
    assert store.get(5, 4) is None


def test_a_repeated_round_starts_from_what_it_started_from(store, tmp_path):
    """Round 3 was saved but its checkpoint never committed: it must read round 1 again."""
    store.put(0, 1, theta(1))
    store.save()
    store.put(0, 3, theta(3))
    store.save()
    reopened = PrivateStore(tmp_path / "private", store.in_memory)
    assert same(reopened.get(0, 3), theta(1))
    reopened.put(0, 3, theta(33))
    reopened.save()
    assert same(PrivateStore(tmp_path / "private", True).get(0, 4), theta(33))


def test_files_are_private_and_whole(store, tmp_path):
    store.put(7, 2, theta(2))
    store.save()
    files = list((tmp_path / "private" / "7").iterdir())
    assert len(files) == 1
    assert stat.S_IMODE(files[0].stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "private" / "7").stat().st_mode) == 0o700


def test_pruning_keeps_what_any_kept_checkpoint_needs(store, tmp_path):
    for round in (1, 2, 5, 6):
        store.put(0, round, theta(round))
        store.save()
    store.prune(committed=4)  # checkpoints of rounds 4 and later are kept: a round 5 must still find round 2
    on_disk = PrivateStore(tmp_path / "private", in_memory=True)
    assert [generation for generation, _ in on_disk.generations(0)] == [2, 5, 6]
    assert same(on_disk.get(0, 5), theta(2))


def test_a_damaged_file_is_an_error_that_names_it(tmp_path):
    store = PrivateStore(tmp_path, in_memory=False)
    store.put(0, 1, theta(1))
    path = next((tmp_path / "0").iterdir())
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(RunError, match=path.name):
        store.get(0, 2)


def test_without_a_folder_disk_means_a_temporary_one_that_goes_away():
    store = PrivateStore(None, in_memory=False)
    store.put(0, 1, theta(1))
    assert same(store.get(0, 2), theta(1))
    assert store.folder.exists()
    store.close()
    assert not store.folder.exists()


def test_what_would_not_fit_goes_to_disk():
    assert fits_in_memory(10, 17_000_000)
    assert not fits_in_memory(10**6, 17_000_000)


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=12), st.integers(1, 4))
def test_memory_and_disk_agree_whatever_the_order_of_puts_and_saves(tmp_path_factory, actions, keep):
    stores = [PrivateStore(tmp_path_factory.mktemp("s"), in_memory) for in_memory in (True, False)]
    for round, (client, save) in enumerate(actions, 1):
        for store in stores:
            store.put(client, round, theta(round))
            if save:
                store.save()
                store.prune(round - keep)
    for client in range(4):
        a, b = (store.get(client, len(actions) + 1) for store in stores)
        assert (a is None and b is None) or same(a, b)
