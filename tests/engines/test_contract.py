"""One suite for every engine: they all give the answer of a plain loop over `client.train`."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedaccord.client.objective import Plain
from fedaccord.client.training import Site, train
from fedaccord.data.prepare import as_stored
from fedaccord.engines.serial import SerialEngine
from fedaccord.records import ClientData, Hyper, Order
from fedaccord.runs import params_sha256

ENGINES = [SerialEngine]


@pytest.fixture(params=ENGINES)
def engine_and_site(request):
    g = torch.Generator().manual_seed(0)
    clients = [
        ClientData(torch.randn(n, 4, generator=g), torch.randint(0, 3, (n,), generator=g)) for n in (3, 50, 0, 17)
    ]
    site = Site(
        nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)), Plain(), clients, as_stored, cross_entropy, seed=9
    )
    engine = request.param(site)
    yield engine, site
    engine.close()


def order(site, round=1, cohort=(0, 1, 3)):
    params = {name: value.clone() for name, value in site.model.state_dict().items()}
    return Order(round, cohort, params, Hyper(lr=0.1, steps=4, batch_size=8))


def test_the_updates_are_those_of_a_plain_loop_in_client_order(engine_and_site):
    engine, site = engine_and_site
    work = order(site)
    updates = list(engine.train(work))
    assert [update.client for update in updates] == [0, 1, 3]
    for update in updates:
        own, _ = train(site, copy.deepcopy(site.model), work, update.client)
        assert params_sha256(update.params) == params_sha256(own.params)
        assert (update.examples, update.loss) == (own.examples, own.loss)


def test_a_client_without_data_never_trains(engine_and_site):
    engine, site = engine_and_site
    assert [update.client for update in engine.train(order(site, cohort=(1, 2, 3)))] == [1, 3]


def test_rounds_do_not_leak_into_each_other(engine_and_site):
    engine, site = engine_and_site
    first = [params_sha256(update.params) for update in engine.train(order(site))]
    list(engine.train(order(site, round=2)))
    assert [params_sha256(update.params) for update in engine.train(order(site))] == first
