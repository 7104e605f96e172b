"""One suite for every engine: they all give the answer of a plain loop over `client.train`.

To the bit, except where clients are stacked: that sums in another order, so it is compared in float64.
"""

import copy
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import client_side, hyper
from torch import nn
from torch.nn.functional import cross_entropy

from fedaccord.client.optimizers import ClientOptimizer
from fedaccord.client.training import Site, train
from fedaccord.core.errors import EngineError, MatchingError
from fedaccord.core.packages import flatten
from fedaccord.core.protocols import Part
from fedaccord.core.records import Examples, Order
from fedaccord.data.prepare import as_stored
from fedaccord.engines.pool import PoolEngine, portable
from fedaccord.engines.serial import SerialEngine
from fedaccord.engines.stacked import Stacks, one_table
from fedaccord.methods.registry import PARTS, find
from fedaccord.objectives import classification
from fedaccord.runtime.identity import params_sha256

ENGINES = {
    "serial": SerialEngine,
    "pool of 1": lambda site: PoolEngine(site, 1),
    "pool of 2": lambda site: PoolEngine(site, 2),
    "pool of 3": lambda site: PoolEngine(site, 3),
    "stacked": lambda site: SerialEngine(site, Stacks(site)),
    "stacked, 2 workers": lambda site: PoolEngine(site, 2, Stacks(site)),
}
AT_CLIENTS = tuple(
    name for name, part in PARTS.items() if {type(part).client, type(part).prepare} - {Part.client, Part.prepare}
)
"""The other parts are steps of the server or policies: their clients do what FA's do."""
METHODS = ("FA", *AT_CLIENTS, "FA+WD+RM", "FedNTD+RM", "FixedHead+RM")
OWN = {each.name: each.default for part in PARTS.values() for each in part.settings if each.hyper}
HYPER = hyper(0.1, 4, batch_size=8, **OWN | {"entropy_min": 1.0, "entropy_weight": 1.0, "rm_weight": 0.01})


def mlp():
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


def make_site(model=None, method="FA", sizes=(3, 50, 0, 17, 17, 20), shape=(4,), engine=""):
    """Six clients: one with fewer examples than a batch, one with none. In float64 for an engine that stacks them."""
    g = torch.Generator().manual_seed(0)
    dtype = torch.float64 if "stacked" in engine else torch.float32
    model = (model or mlp()).to(dtype)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=g) * 0.3)
    clients = [
        Examples(torch.randn(n, *shape, generator=g).to(dtype), torch.randint(0, 3, (n,), generator=g)) for n in sizes
    ]
    side = client_side(model, clients[1].inputs[:2], method)
    return Site(model, side, clients, as_stored, classification, cross_entropy, seed=9)


def order(site, round=1, cohort=(0, 1, 2, 3, 5), **more):
    """What the method sends down is made up: a tenth everywhere."""
    params = {name: value.clone() for name, value in site.model.state_dict().items()}
    down = {slot: {n: torch.full_like(v, 0.1) for n, v in like.items()} for slot, like in site.method.down.items()}
    return Order(round, cohort, params, HYPER, **{"down": down, **more})


def assert_same(engine_name, update, own):
    """To the bit; in stacks, as near as another order of the sums allows.

    Weights are of the order of 1, a sum has 50 terms at most, each rounded by 2^-53, and 12 steps (theta_i's, over
    three rounds) at most double an error each: 50 * 2^-53 * 2^12 = 2e-11. The loss is a float32 sum of four steps, all
    positive: 4 * 2^-24 = 2.4e-7 of it.
    """
    assert (update.client, update.examples) == (own.client, own.examples)
    if "stacked" in engine_name:
        assert update.loss == pytest.approx(own.loss, rel=1e-6)
        for name, value in own.params.items():
            assert value.dtype == torch.float64
            torch.testing.assert_close(update.params[name], value, rtol=0, atol=1e-10)
        for name, value in flatten(own.sent).items():
            torch.testing.assert_close(flatten(update.sent)[name], value, rtol=0, atol=1e-9)  # divided by 4 * 0.1
    else:
        assert update.loss == own.loss
        assert params_sha256(update.params) == params_sha256(own.params)
        assert params_sha256(flatten(update.sent)) == params_sha256(flatten(own.sent))


SLOW = {"stacked": pytest.mark.slow, "stacked, 2 workers": pytest.mark.slow}  # a stack takes a while to get ready


@pytest.fixture(params=[pytest.param(name, marks=SLOW.get(name, ())) for name in ENGINES])
def name(request):
    return request.param


@pytest.fixture
def opened(name):
    """A function that makes an engine of this kind for a site; all are closed at the end."""
    engines = []

    def make(site):
        engines.append(ENGINES[name](site))
        engines[-1].open(None)
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


@pytest.mark.parametrize("method", METHODS)
def test_the_updates_are_those_of_a_plain_loop_in_client_order(name, opened, method):
    """Over three rounds, so that what a client keeps goes from one to the next."""
    site = make_site(method=method, engine=name)
    engine, kept = opened(site), {}
    for round in (1, 2, 3):
        work = order(site, round, since=dict.fromkeys(range(6), round - 1))
        updates = list(engine.train(work))
        assert [update.client for update in updates] == [0, 1, 3, 5]  # client 2 has no data
        for update in updates:
            before = kept.get(update.client, {})
            own, kept[update.client] = train(site, copy.deepcopy(site.model), work, update.client, before)
            assert_same(name, update, own)
            assert bool(kept[update.client]) == any(part.slots.client for part in find(method).parts)


@pytest.mark.parametrize("method", ["FA+RM", "SCAFFOLD"])
def test_momentum_decay_and_clipping_are_those_of_a_plain_loop(name, opened, method):
    site = replace(make_site(method=method, engine=name), optimizer=ClientOptimizer(nesterov=True))
    changed = replace(HYPER, momentum=0.5, weight_decay=0.1, clip_gradient=0.1)
    work = replace(order(site), hyper=changed)
    for update in opened(site).train(work):
        own, _ = train(site, copy.deepcopy(site.model), work, update.client, {})
        assert_same(name, update, own)
        plain, _ = train(site, copy.deepcopy(site.model), replace(work, hyper=HYPER), update.client, {})
        assert params_sha256(plain.params) != params_sha256(own.params)


@pytest.mark.parametrize("method", ["FA+RM", "SCAFFOLD"])
def test_a_round_goes_on_from_the_generation_that_the_order_names(name, opened, method):
    """Round 2 did not count: round 3 goes on from round 1, as if round 2 had never been.

    And in round 4 it is known that round 3's model was bad: round 5 goes on from round 1 once more.
    """
    site = make_site(method=method, engine=name)
    engine, kept = opened(site), {}
    for round, since in ((1, 0), (2, 1), (3, 1), (4, 3), (5, 1)):
        work = order(site, round, since=dict.fromkeys(range(6), since))
        for update in engine.train(work):
            before = kept.get((since, update.client), {})
            own, kept[round, update.client] = train(site, copy.deepcopy(site.model), work, update.client, before)
            assert_same(name, update, own)


class Warmth(nn.Module):
    """A layer with a single number, such as a temperature."""

    def __init__(self):
        super().__init__()
        self.degree = nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        return self.degree * x


@pytest.mark.parametrize("method", [method for method in METHODS if "RM" not in method])
def test_a_parameter_may_be_a_single_number(name, opened, method):
    site = make_site(nn.Sequential(*mlp()[:2], Warmth(), mlp()[2]), method=method, engine=name)
    clipping = {} if method == "DeltaSGD" else {"clip_gradient": 0.1}
    work = replace(order(site), hyper=replace(HYPER, **clipping))
    for update in opened(site).train(work):
        own, _ = train(site, copy.deepcopy(site.model), work, update.client, {})
        assert_same(name, update, own)
        assert update.params["2.degree"] != work.params["2.degree"]


SERIES = torch.randn(121, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
TABLE = SERIES[:120].view(24, 5).clone()
LABELS = torch.arange(24) % 3


@pytest.mark.parametrize(("pairs", "one"), [
    ([(TABLE[k : k + 6], LABELS[k : k + 6]) for k in (0, 6, 18)], True),
    ([(TABLE[k::3], LABELS[k::3]) for k in range(3)], False),
    ([(TABLE[k : k + 6], LABELS[k + 1 : k + 7]) for k in (0, 6, 17)], False),
    ([(TABLE[k : k + 6, 1:], LABELS[k : k + 6]) for k in (0, 6, 18)], False),
    ([(TABLE[k : k + 6].T[:3].T, LABELS[k : k + 6]) for k in (0, 6, 18)], False),
    ([(TABLE[1:7].flip(0), LABELS[1:7].flip(0))] * 2, False),
], ids=["slices", "every third row", "shifted targets", "columns", "other columns", "copies"])  # fmt: skip
def test_clients_train_on_their_own_rows_however_they_were_cut_out_of_a_table(name, opened, pairs, one):
    """Whole successive rows may be read from the table at once; other views must not be taken for such."""
    site = make_site(nn.Linear(pairs[0][0].shape[1], 3), shape=pairs[0][0].shape[1:], engine=name)
    site = replace(site, clients=[Examples(x.to(site.clients[0].inputs.dtype), y) for x, y in pairs], ready=True)
    if "stacked" in name:  # the others have copies in float32
        assert (one_table(site) is not None) == one
    work = order(site, cohort=tuple(range(len(pairs))))
    for update in opened(site).train(work):
        own, _ = train(site, copy.deepcopy(site.model), work, update.client, {})
        assert_same(name, update, own)


class Halves(nn.Module):
    """A layer that changes its inputs in place."""

    def forward(self, x):
        return x.mul_(0.5)


def test_what_looks_back_does_not_change_the_inputs_of_the_step(name, opened):
    """DeltaSGD runs every mini-batch twice; a model that halves it in place must not see a quarter."""
    site = make_site(nn.Sequential(Halves(), nn.Linear(4, 3)), method="DeltaSGD", engine=name)
    apart = replace(site, model=nn.Sequential(nn.Identity(), copy.deepcopy(site.model[1])))
    apart = replace(apart, prepare=lambda inputs, draw: 0.5 * inputs)
    work = order(site)
    for update in opened(site).train(work):
        own, _ = train(apart, copy.deepcopy(apart.model), work, update.client, {})
        assert_same(name, update, own)


def test_clients_may_have_hyper_parameters_of_their_own(name, opened):
    site = make_site(engine=name)
    each = {1: HYPER.but({"lr": 0.03, "steps": 7}), 5: HYPER.but({"entropy_weight": 0.0, "batch_size": 5})}
    for update in opened(site).train(order(site, each=each)):
        own, _ = train(site, copy.deepcopy(site.model), order(site, each=each), update.client, {})
        assert_same(name, update, own)
        other, _ = train(site, copy.deepcopy(site.model), order(site), update.client, {})
        assert (update.client in each) == (params_sha256(own.params) != params_sha256(other.params))


def test_rounds_do_not_leak_into_each_other(opened):
    site = make_site()
    engine = opened(site)
    first = [params_sha256(update.params) for update in engine.train(order(site))]
    list(engine.train(order(site, round=2, cohort=(4, 5))))
    assert [params_sha256(update.params) for update in engine.train(order(site))] == first


def test_the_clients_report_the_losses_they_are_asked_for(name, opened):
    site = make_site()
    before = {key: value + 0.1 for key, value in site.model.state_dict().items()}
    work = order(site, report_loss=True, previous=before)
    for update in opened(site).train(work):
        own, _ = train(site, copy.deepcopy(site.model), work, update.client, {})
        assert (update.received_loss, update.previous_loss) == (own.received_loss, own.previous_loss)
        assert update.previous_loss != update.received_loss


def test_a_round_left_in_the_middle_does_not_disturb_the_next(name, opened):
    site = make_site(engine=name)
    engine = opened(site)
    next(engine.train(order(site)))
    for update in engine.train(order(site, round=2)):
        own, _ = train(site, copy.deepcopy(site.model), order(site, round=2), update.client, {})
        assert_same(name, update, own)


def test_an_empty_cohort_gives_nothing(opened):
    site = make_site()
    assert list(opened(site).train(order(site, cohort=(2,)))) == []


class Refuses(nn.Module):
    """A model that cannot be run."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        if self.training:
            raise MatchingError("not today")
        return self.layer(x)


@pytest.mark.parametrize("engine", [SerialEngine, lambda site: PoolEngine(site, 2)])
def test_what_a_client_raises_reaches_the_caller(engine):
    site = make_site(Refuses())
    made = engine(site)
    made.open(None)
    with pytest.raises(MatchingError, match="not today"):
        list(made.train(order(site)))
    made.close()


class Dies(nn.Module):
    """Kills its process on the batch with the fewest examples, as often as the file says."""

    def __init__(self, file):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.file = file

    def forward(self, x):
        if self.training and len(x) == 3:
            left = int(self.file.read_text())
            self.file.write_text(str(left - 1))
            if left > 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return self.layer(x)


@pytest.mark.parametrize("stacked", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_dead_worker_is_replaced_and_its_clients_are_done_again(tmp_path, workers, stacked):
    file = tmp_path / "deaths"
    file.write_text("2")
    site = make_site(Dies(file), method="FA+WD", engine="stacked" if stacked else "pool")
    engine = PoolEngine(site, workers, Stacks(site) if stacked else None)
    engine.open(None)
    updates = {update.client: update for update in engine.train(order(site))}
    engine.close()
    assert list(updates) == [0, 1, 3, 5]
    assert int(file.read_text()) < 0  # it died twice, then lived
    for client, update in updates.items():
        own, _ = train(site, copy.deepcopy(site.model), order(site), client, {})
        assert_same("stacked" if stacked else "pool", update, own)


def test_a_worker_that_always_dies_is_an_error_with_the_client_and_the_signal(tmp_path):
    file = tmp_path / "deaths"
    file.write_text("99")
    site = make_site(Dies(file))
    engine = PoolEngine(site, 2)
    engine.open(None)
    with pytest.raises(EngineError, match=r"client 0: its worker died 3 times, last by SIGKILL"):
        list(engine.train(order(site)))
    engine.close()


@pytest.mark.slow
def test_the_number_of_workers_does_not_change_a_bit_of_a_stack():
    site = make_site(method="FA+RM", sizes=(20,) * 6)
    found = []
    for make in (lambda: SerialEngine(site, Stacks(site)), lambda: PoolEngine(site, 2, Stacks(site)),
                 lambda: PoolEngine(site, 3, Stacks(site))):  # fmt: skip
        engine = make()
        engine.open(None)
        found.append(
            [params_sha256(update.params) for round in (1, 2) for update in engine.train(order(site, round, since={}))]
        )
        engine.close()
    assert found[0] == found[1] == found[2]


class Unpicklable(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def test_an_exception_that_cannot_travel_sends_its_words():
    assert str(portable(Unpicklable("this", "that"))) == "Unpicklable: this and that"
    assert isinstance(portable(MatchingError("plain")), MatchingError)


def test_no_worker_outlives_the_engine():
    site = make_site()
    engine = PoolEngine(site, 2)
    engine.open(None)
    list(engine.train(order(site)))
    processes = [worker.process for worker in engine.workers]
    engine.close()
    assert len(processes) == 2
    assert not any(process.is_alive() for process in processes)


@pytest.mark.slow
@pytest.mark.anywhere
def test_an_engine_that_nobody_closed_does_not_keep_its_process_from_ending():
    code = """
import sys
sys.path.insert(0, "..")
from test_contract import *
torch.set_num_threads(1)
site = make_site()
engine = PoolEngine(site, 2)
engine.open(None)
print(*[worker.process.pid for _ in engine.train(order(site)) for worker in engine.workers])
"""
    words = [sys.executable, "-c", code]
    ended = subprocess.run(words, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=300, check=True)
    assert ended.stdout
    assert not any(Path("/proc", number).exists() for number in ended.stdout.split())


class Threads(nn.Module):
    """A layer that adds how many threads torch has to a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        self.count.fill_(torch.get_num_threads())
        return x


@pytest.mark.parametrize("engine", ["pool of 1", "pool of 2"])
def test_workers_train_with_the_threads_that_are_asked_for(engine):
    site = replace(make_site(nn.Sequential(Threads(), nn.Linear(4, 3))), threads=2)
    made = ENGINES[engine](site)
    made.open(None)
    try:
        assert {float(update.params["0.count"]) for update in made.train(order(site))} == {2.0}
    finally:
        made.close()
