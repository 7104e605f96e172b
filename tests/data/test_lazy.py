"""Data in the forms in which people have it, Datasets, arrays and tables; and what may be wrong with it."""

import multiprocessing
import random
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset

from fedaccord import federate
from fedaccord.core.errors import DataError, SettingsError, TaskError
from fedaccord.core.files import lock_folder
from fedaccord.core.records import Examples
from fedaccord.data import sets
from fedaccord.data.lazy import LazyExamples
from fedaccord.data.sets import as_examples
from fedaccord.runtime.identity import params_sha256


class Items(Dataset):
    """Counts what is read; optionally fails at one item, or draws at random."""

    def __init__(self, count=40, broken=None, noise=0.0):
        self.count, self.broken, self.noise = count, broken, noise
        self.reads = 0

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        if number == self.broken:
            raise KeyError("no such file")
        self.reads += 1
        x = torch.tensor([number % 2, 1.0, number / self.count])
        drawn = torch.randn(3) + torch.tensor([np.random.rand(), np.random.rand(), random.random()])
        return (x + self.noise * drawn).float(), number % 2


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))


def trained(clients, method="FA", **more):
    fixed = {"steps": 4} if method == "FA" else {}
    common = {"rounds": 3, "batch_size": 8, "engine": "serial"}
    return federate(model(), clients, method=method, **{**common, **fixed, **more})


def pair(items):
    stacked = [items[number] for number in range(len(items))]
    return torch.stack([x for x, _ in stacked]), torch.tensor([y for _, y in stacked])


def read_lines(folder):
    return (folder / "rounds.jsonl").read_text().splitlines()


@pytest.fixture
def nothing_is_small(monkeypatch):
    monkeypatch.setattr(sets, "SMALL_BYTES", 0)


def test_a_small_data_set_is_read_once():
    """One to see how large they are, some twice to see whether it gives the same each time; then all of them."""
    items = Items()
    assert isinstance(as_examples(items, "client 0"), Examples)
    assert items.reads == 1 + 2 * sets.TWICE + 40


def test_a_large_one_is_read_as_it_is_needed(nothing_is_small):
    items = Items(count=10**9)
    lazy = as_examples(items, "client 0")
    assert isinstance(lazy, LazyExamples)
    batch = lazy[torch.tensor([999_999_999, 4])]
    assert batch.targets.tolist() == [1, 0]
    assert items.reads == 1 + 2
    assert len(lazy.part(slice(10, 20)).part(np.array([1, 3]))) == 2
    assert lazy.part(slice(10, 20)).part(np.array([1, 3]))[:].inputs[:, 2].tolist() == pytest.approx([11e-9, 13e-9])


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["serial", "pool"])
@pytest.mark.parametrize("readers", [0, 2])
def test_read_lazily_it_gives_the_bits_of_tensors(nothing_is_small, engine, readers):
    tensors = trained([pair(Items()), pair(Items(60))], engine=engine)
    lazily = trained([Items(), Items(60)], engine=engine, readers=readers)
    assert params_sha256(lazily.state.params) == params_sha256(tensors.state.params)


def test_a_reading_process_holds_no_lock_of_the_run(tmp_path, nothing_is_small):
    """However long it lives after an error or a kill, the run can be gone on with."""
    with lock_folder(tmp_path, "taken"):
        lazy = replace(as_examples(Items(), "client 0"), readers=1)
        batches = lazy.batches(torch.arange(40).view(20, 2), torch.Generator())
        next(batches)
    with lock_folder(tmp_path, "the reading process has it still"):
        assert multiprocessing.active_children()
    batches.close()
    assert not multiprocessing.active_children()


def test_one_that_draws_at_random_is_never_held_and_is_repeatable(tmp_path):
    """Its draws come from the run's seed, by round and client: resumed, it draws what it would have drawn."""
    assert isinstance(as_examples(Items(noise=0.1), "client 0"), LazyExamples)
    whole = trained([Items(noise=0.1)], rounds=4)
    frozen = trained([pair(Items())], rounds=4)
    assert params_sha256(whole.state.params) != params_sha256(frozen.state.params)

    class Stop(Items):
        def __getitem__(self, number):
            if self.reads > 250:  # 4 rounds read 64 each to report and 32 to train, and a few before
                raise KeyboardInterrupt
            return super().__getitem__(number)

    with pytest.raises(KeyboardInterrupt):
        trained([Stop(noise=0.1)], rounds=4, folder=tmp_path / "run")
    assert len(read_lines(tmp_path / "run")) in (1, 2, 3)
    resumed = trained([Items(noise=0.1)], rounds=4, folder=tmp_path / "run")
    assert params_sha256(resumed.state.params) == params_sha256(whole.state.params)


@pytest.mark.parametrize("readers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_data_set_that_fails_is_named_and_the_run_goes_on_once_it_is_mended(tmp_path, nothing_is_small, readers):
    rest = {"method": "FA", "rounds": 20, "entropy_weight": 0.0, "steps": 1, "validation": pair(Items())}
    folder = tmp_path / "run"
    good = trained([Items(), Items()], **rest)
    with pytest.raises(DataError, match="client 1: item 17 cannot be read: KeyError: 'no such file'"):
        trained([Items(), Items(broken=17)], readers=readers, folder=folder, **rest)
    assert len(read_lines(folder)) in range(1, 20)
    again = trained([Items(), Items()], readers=readers, folder=folder, **rest)
    assert params_sha256(again.state.params) == params_sha256(good.state.params)


@pytest.mark.parametrize(
    ("collate", "text"),
    [
        (lambda items: torch.stack([x for x, _ in items]), "client 0: collate gives a Tensor, expected a pair"),
        (
            lambda items: (torch.zeros(3, 3), "targets"),
            "client 0: collate gives a tuple of Tensor, str, expected a pair",
        ),
        (lambda items: (torch.zeros(2, 3), torch.zeros(3)), "client 0: collate gives 2 inputs and 3 targets"),
        (lambda items: items.sort(), "client 0: collate failed: RuntimeError"),
    ],
)
def test_a_collate_function_that_gives_the_wrong_thing_is_told(collate, text):
    with pytest.raises(DataError, match=text):
        trained([Items()], collate=collate)


def test_items_of_several_lengths_need_a_collate_function():
    class Texts(Items):
        def __getitem__(self, number):
            return torch.ones(1 + number % 4, 3), number % 2

    def padded(items):
        longest = max(len(x) for x, _ in items)
        rows = [nn.functional.pad(x, (0, 0, 0, longest - len(x))) for x, _ in items]
        return torch.stack(rows), torch.tensor([y for _, y in items])

    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model()

        def forward(self, x):
            return self.inner(x.mean(1))

    with pytest.raises(DataError, match="not of one shape, so give a collate function"):
        federate(Mean(), [Texts()], rounds=1)
    assert len(federate(Mean(), [Texts()], rounds=1, collate=padded, engine="serial").rounds) == 1


def test_arrays_of_doubles_become_floats():
    x, y = pair(Items())
    doubles = x.double().numpy(), y.numpy()
    assert params_sha256(trained([doubles]).state.params) == params_sha256(trained([(x, y)]).state.params)


def test_tables_will_do_and_a_bad_cell_is_named():
    x, y = pair(Items())
    table = pd.DataFrame(x.numpy(), columns=["side", "one", "place"]).assign(one=True)  # several types in one table
    assert params_sha256(trained([(table, pd.Series(y.numpy()))]).state.params) == params_sha256(
        trained([(x, y)]).state.params
    )
    table.loc[17, "place"] = np.nan
    with pytest.raises(DataError, match="client 0, inputs: example 17, column place is not finite: nan"):
        trained([(table, y)])
    with pytest.raises(DataError, match="client 0, inputs: column 'name' is not numeric"):
        trained([(table.assign(name="x"), y)])


def test_a_number_that_is_not_finite_is_named_wherever_it_is(nothing_is_small):
    x, y = pair(Items())
    x[5, 1] = torch.inf
    with pytest.raises(DataError, match="client 1, inputs: example 5, column 1 is not finite: inf"):
        trained([pair(Items()), (x, y)])
    with pytest.raises(DataError, match="client 0, inputs, b: example 5, column 1 is not finite: inf"):
        trained([({"a": x.new_ones(40, 2), "b": x}, y)])

    class Late(Items):
        def __getitem__(self, number):
            return (x[number], 0) if number == 5 else super().__getitem__(number)

    with pytest.raises(DataError, match="client 0, inputs: example 5, column 1 is not finite: inf"):
        trained([Late()], rounds=20)


def test_a_stream_has_no_numbers_to_ask_for():
    class Stream(IterableDataset):
        def __iter__(self):
            yield torch.zeros(3), 0

    with pytest.raises(DataError, match="a Dataset that has a length and gives its items by number"):
        trained([Stream()])


def test_inputs_of_unequal_length_are_told():
    x, y = pair(Items())
    with pytest.raises(DataError, match="client 0: 30 and 40 inputs but 40 targets"):
        trained([((x, x[:30]), y)])


def test_what_a_data_set_draws_is_the_same_whenever_it_is_measured():
    """Reports of the clients, the server's set and the metrics: two runs have the same log."""
    settings = {"rounds": 3, "test_every": 1, "method": "FA+AH"}
    logs = []
    for _ in range(2):
        torch.rand(3)  # moves the global generator
        made = trained([Items(noise=0.3), Items(60, noise=0.3)], test=Items(noise=0.3), **settings)
        logs.append([(log.loss, log.metrics, log.reward) for log in made.rounds])
    assert logs[0] == logs[1]
    with pytest.raises(SettingsError, match="a Dataset is read for each client by itself"):
        trained([Items(noise=0.3)], engine="stacked")


def test_a_rare_draw_is_seen_too():
    class Rare(Items):
        def __getitem__(self, number):
            x, y = super().__getitem__(number)
            return (-x if torch.rand(()) < 0.2 else x), y

    assert all(isinstance(as_examples(Rare(), "client 0"), LazyExamples) for _ in range(20))


def test_a_shape_that_does_not_fit_is_told_with_its_place():
    good, bad = pair(Items()), (torch.zeros(40, 4), torch.zeros(40, dtype=torch.long))
    with pytest.raises(
        TaskError, match="the server's validation set, examples from 0 on: the model failed: RuntimeError"
    ):
        trained([good], validation=bad)
    with pytest.raises(TaskError, match="the server's test set, examples from 0 on: the model failed: RuntimeError"):
        trained([good], validation=good, test=bad)
    with pytest.raises(DataError, match="client 1 has 4 input columns, client 0 has 3"):
        trained([good, bad], validation=good, entropy_weight=0.0)
