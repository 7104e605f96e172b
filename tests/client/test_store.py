"""What clients keep between rounds: generations, crash, damage, where it may be found."""

import errno
import os
import stat

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedaccord.client.store import ClientStore, fits_in_memory, open_store
from fedaccord.core.errors import RunError
from fedaccord.core.packages import flatten


def kept(value):
    return {
        "RM.theta": {"f.0.layer.weight": torch.full((3,), float(value)), "f.0.layer.bias": torch.tensor([value / 3])},
        "SCAFFOLD.c_i": {"w": torch.tensor(float(value))},
    }


def same(a, b):
    a, b = flatten(a), flatten(b)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture(params=[True, False], ids=["memory", "disk"])
def store(request, tmp_path):
    made = ClientStore(tmp_path / "private", in_memory=request.param)
    yield made
    made.close()


def test_the_generation_that_is_asked_for_is_the_one_that_comes(store):
    assert store.get(4, 0) == {}
    store.put(4, 1, kept(1), since=0)
    store.put(4, 3, kept(3), since=1)
    assert same(store.get(4, 3), kept(3))
    assert same(store.get(4, 1), kept(1))  # round 3 may not count
    with pytest.raises(RunError, match="what client 5 kept in round 3 is not here any more"):
        store.get(5, 3)


def test_a_refused_round_leaves_no_trace(store, tmp_path):
    """Round 2 did not count, so round 3 goes on from round 1; the same after a restart."""
    store.put(0, 1, kept(1), since=0)
    store.save()
    store.put(0, 2, kept(2), since=1)
    store.save()
    store.put(0, 3, kept(3), since=1)
    store.save()
    assert same(store.get(0, 1), kept(1))
    reopened = ClientStore(tmp_path / "private", store.in_memory)
    reopened.expect({0: 3})
    assert same(reopened.get(0, 3), kept(3))
    assert same(reopened.get(0, 1), kept(1))


def test_a_model_that_is_known_to_be_bad_a_round_late_takes_two_rounds_back(store):
    """Rounds 1 to 3 went on from each other; in round 3 the clients said that round 2's model was bad."""
    for round in (1, 2, 3):
        store.put(0, round, kept(round), since=round - 1)
    assert same(store.get(0, 1), kept(1))
    store.put(0, 4, kept(4), since=1)
    assert same(store.get(0, 4), kept(4))


def test_a_repeated_round_takes_the_place_of_what_it_made_before(store, tmp_path):
    """Round 3 was saved but its checkpoint never committed: it is done again, from round 1."""
    store.put(0, 1, kept(1), since=0)
    store.save()
    store.put(0, 3, kept(3), since=1)
    store.save()
    reopened = ClientStore(tmp_path / "private", store.in_memory)
    assert same(reopened.get(0, 1), kept(1))
    reopened.put(0, 3, kept(33), since=1)
    reopened.save()
    assert same(ClientStore(tmp_path / "private", True).get(0, 3), kept(33))


def files(store):
    return {path: path.read_bytes() for path in store.folder.rglob("*") if path.is_file()}


def test_an_older_round_that_is_done_once_more_leaves_newer_ones(tmp_path):
    store = ClientStore(tmp_path, in_memory=False)
    for round in (1, 2, 3):
        store.put(0, round, kept(round), since=round - 1)
    before = files(store)
    store.put(0, 2, kept(2), since=1)
    assert files(store) == before
    assert same(store.get(0, 3), kept(3))


def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch):
    def full(*given, **more):
        raise OSError(errno.ENOSPC, "No space left on device")

    store = ClientStore(tmp_path, in_memory=False)
    for round in (1, 2, 3):
        store.put(0, round, kept(round), since=round - 1)
    before = files(store)
    monkeypatch.setattr("fedaccord.core.files.os.fsync", full)
    for round in (2, 3):
        with pytest.raises(RunError, match="No space left"):
            store.put(0, round, kept(33), since=round - 1)
    assert files(store) == before


@pytest.mark.parametrize("value", range(34, 42))
def test_a_crash_between_writing_and_removing_leaves_whole_files_until_the_round_is_done_again(
    tmp_path, monkeypatch, value
):
    """The names go by checksums, so with some of these values the new file is the first, with others the last."""

    def crash(path):
        raise KeyboardInterrupt

    store = ClientStore(tmp_path, in_memory=False)
    store.put(0, 1, kept(1), since=0)
    store.put(0, 2, kept(33), since=1)
    with monkeypatch.context() as patch:
        patch.setattr("fedaccord.client.store.remove", crash)
        with pytest.raises(KeyboardInterrupt):
            store.put(0, 2, kept(value), since=1)
    assert [number for number, _ in store.generations(0)] == [1, 2, 2]
    assert any(same(store.get(0, 2), kept(each)) for each in (33, value))
    assert same(store.get(0, 1), kept(1))  # what the round goes on from
    store.put(0, 2, kept(value), since=1)
    assert [number for number, _ in store.generations(0)] == [1, 2]
    assert same(store.get(0, 2), kept(value))


def test_after_a_resume_rounds_that_are_done_again_take_the_place_of_stale_ones(store, tmp_path):
    """Rounds 2 to 4 were done and lost with the server; client 0 now misses round 3, so nobody asks for that again."""
    store.put(0, 1, kept(1), since=0)
    for round in (2, 3, 4):
        store.put(0, round, kept(round), since=round - 1)
        store.save()
    reopened = ClientStore(tmp_path / "private", store.in_memory)
    reopened.expect({0: 1})
    reopened.put(0, 2, kept(22), since=1)
    reopened.save()
    reopened.put(0, 4, kept(44), since=2)
    reopened.save()
    on_disk = ClientStore(tmp_path / "private", in_memory=True)
    for at in (reopened, on_disk):
        assert same(at.get(0, 2), kept(22))
        assert same(at.get(0, 4), kept(44))
    reopened.prune({0: 4})
    assert [number for number, _ in on_disk.generations(0)] == [4]


def test_files_of_other_names_are_nobody_s_business(tmp_path):
    store = ClientStore(tmp_path, in_memory=False)
    store.put(0, 999_999, kept(1), since=0)
    others = (
        "notes.safetensors",
        "000001.safetensors",
        "000001-0123456789abcdef (copy).safetensors",
        "x-y.safetensors",
    )
    for name in others:
        (tmp_path / "0" / name).write_text("mine")
    store.put(0, 1_000_000, kept(2), since=999_999)
    assert [number for number, _ in store.generations(0)] == [999_999, 1_000_000]
    with pytest.raises(RunError, match="is not here any more"):
        store.get(0, 1)
    store.prune({0: 1_000_000})
    assert {path.name for path in (tmp_path / "0").iterdir()} >= set(others)
    assert same(store.get(0, 1_000_000), kept(2))


def test_a_checkpoint_that_names_what_is_gone_is_an_error(store):
    store.put(0, 1, kept(1), since=0)
    store.save()
    with pytest.raises(RunError, match="what client 0 kept in round 2 is missing"):
        store.expect({0: 2})


def test_files_are_private_and_whole(store, tmp_path):
    store.put(7, 2, kept(2), since=0)
    store.save()
    files = list((tmp_path / "private" / "7").iterdir())
    assert len(files) == 1
    assert stat.S_IMODE(files[0].stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "private" / "7").stat().st_mode) == 0o700


def test_pruning_keeps_what_the_oldest_checkpoint_goes_on_from(store, tmp_path):
    for round, since in ((1, 0), (2, 1), (5, 2), (6, 5)):
        store.put(0, round, kept(round), since)
        store.save()
    store.prune({0: 2, 9: 4})
    on_disk = ClientStore(tmp_path / "private", in_memory=True)
    assert [generation for generation, _ in on_disk.generations(0)] == [2, 5, 6]
    assert same(on_disk.get(0, 2), kept(2))


def test_a_damaged_file_is_an_error_that_names_it(tmp_path):
    store = ClientStore(tmp_path, in_memory=False)
    store.put(0, 1, kept(1), since=0)
    path = next((tmp_path / "0").iterdir())
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(RunError, match=path.name):
        store.get(0, 1)


def test_without_a_folder_disk_means_a_temporary_one_that_goes_away():
    store = ClientStore(None, in_memory=False)
    store.put(0, 1, kept(1), since=0)
    assert same(store.get(0, 1), kept(1))
    assert store.folder.exists()
    store.close()
    assert not store.folder.exists()


@pytest.mark.parametrize(("memory", "fits"), [(480, True), (479, False)])
def test_what_would_not_fit_in_a_quarter_of_the_memory_goes_to_disk(tmp_path, monkeypatch, memory, fits):
    """Two clients keep five floats each, in three generations: 2 * 3 * 20 bytes, a quarter of 480."""
    monkeypatch.setattr(os, "sysconf", lambda name: {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": memory}[name])
    like = {"slot": {"w": torch.zeros(5)}}
    assert fits_in_memory(2, 20) == fits
    assert open_store(tmp_path, "auto", 2, like).in_memory == fits
    assert open_store(tmp_path, "memory", 2, like).in_memory
    assert not open_store(tmp_path, "disk", 2, like).in_memory


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["counts", "refused", "back"]), st.booleans())))
def test_memory_and_disk_agree_whatever_counts_and_whenever_it_is_saved(tmp_path_factory, actions):
    """Each action is a round of one client: (client, what becomes of it, whether a checkpoint follows).

    back: the model that it trained from was bad, so the server goes on from the one before that, as the guard does
    where losses are known a round late.
    """
    stores = [ClientStore(tmp_path_factory.mktemp("s"), in_memory) for in_memory in (True, False)]
    accepted, previous = {}, {}
    for round, (client, fate, save) in enumerate(actions, 1):
        for store in stores:
            store.put(client, round, kept(round), accepted.get(client, 0))
        if fate == "counts":
            accepted, previous = {**accepted, client: round}, accepted
        elif fate == "back":
            accepted = previous
        for client, generation in accepted.items():
            for store in stores:
                assert same(store.get(client, generation), kept(generation))
        if save:
            needed = {each: min(last, previous.get(each, last)) for each, last in accepted.items()}
            for store in stores:
                store.save()
                store.prune(needed)
