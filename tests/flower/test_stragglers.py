"""Who is slow: partial work by its share, and replies that come too late for their round."""

import math
import types

import pytest
import torch
from flower_helpers import Wire, client, settings_for
from helpers import hyper, module_with, server_chain

from fedaccord.client import training
from fedaccord.core.errors import UpdateRefused
from fedaccord.core.observing import mean_cosine, weighted_mean
from fedaccord.core.packages import flatten
from fedaccord.core.records import Accepted, ClientUpdate, Order, Refusal
from fedaccord.flower.server import FlowerEngine
from fedaccord.flower.wire import order_record, read_order, read_update, records_of, update_record
from fedaccord.runtime.build import site_of
from fedaccord.runtime.parts import parts_of
from fedaccord.tasks import find_task

pytestmark = pytest.mark.filterwarnings("ignore")  # flwr's own

TWO = Order(1, (0, 1), {"w": torch.zeros(2)}, hyper(steps=8))


def test_a_late_reply_is_never_counted_in_a_later_round(own_run, clock):
    """Client 1 misses round 1. Its reply to that order is there in round 2, beside no other of its."""
    late = []

    def slow(message):
        if message.metadata.message_type == "query":
            return client(1)(message)
        if records_of(message)["round"] == 1:
            late.append(client(1)(message))
        return None

    wire = Wire({10: client(0), 11: slow})
    pull = wire.pull_messages
    engine = FlowerEngine(wire, "e", 3.0)
    first = list(engine.train(TWO))
    wire.pull_messages = lambda numbers: [*late, *pull(numbers)]
    second = list(engine.train(Order(2, (0, 1), {"w": torch.zeros(2)}, hyper())))
    for answers in (first, second):
        assert isinstance(answers[0], ClientUpdate)
        assert answers[1] == Refusal(1, "no reply in time")


def test_an_order_sent_again_leaves_the_time_that_is_left(own_run, clock):
    """With a deadline of 100 s a client has 80 s at first; after 60 s without an answer 0.8 of the 40 that are left."""
    wire = Wire(
        {10: client(0), 11: lambda message: client(1)(message) if message.metadata.message_type == "query" else None}
    )
    list(FlowerEngine(wire, "e", 100.0, partial=True).train(TWO))
    given = [
        records_of(m)["seconds"]
        for m in wire.pushed
        if m.metadata.dst_node_id == 11 and m.metadata.message_type == "train"
    ]
    assert given == pytest.approx([80.0, 0.8 * 40.0], abs=0.5)


def test_partial_work_counts_by_its_share():
    """Steps of 1 and 3 by clients of 4 and 8 examples, of which the second did a quarter: (4 * 1 + 2 * 3) / 6."""
    start = {"w": torch.zeros(2)}
    chain = server_chain(module_with(start))
    updates = [
        ClientUpdate(0, {"w": torch.ones(2)}, 4, 0.1),
        ClientUpdate(1, {"w": torch.full((2,), 3.0)}, 8, 0.1, done=0.25),
    ]
    result = chain.aggregate(1, chain.start(start), updates, hyper(server_lr=1.0))
    torch.testing.assert_close(result.model.params["w"], torch.full((2,), 10 / 6))
    assert [each.entry().get("done") for each in result.accepted] == [None, 0.25]


def test_partial_work_does_not_make_clients_look_alike():
    """Two orthogonal steps of length 1, of which the second counts a tenth: the mean is (10, 1) / 11."""
    accepted = [Accepted(0, 5, 0.1, 1.0), Accepted(1, 5, 0.1, 1.0, done=0.1)]
    alignment = math.sqrt(101) / 11 / weighted_mean(accepted, lambda each: each.entered)
    assert mean_cosine(alignment, [each.weight * each.entered for each in accepted]) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("done", [0.0, -0.5, 1.5, float("nan"), 1, "half"])
def test_an_impossible_share_is_refused(done):
    start = {"w": torch.zeros(2)}
    chain = server_chain(module_with(start))
    update = ClientUpdate(0, {"w": torch.ones(2)}, 4, 0.1, done=done)
    assert chain.aggregate(1, chain.start(start), [update], hyper(server_lr=1.0)).accepted == []


def test_partial_work_that_nobody_asked_for_counts_as_whole():
    order = Order(1, (4,), {"w": torch.zeros(2)}, hyper(steps=8))
    record = update_record(ClientUpdate(4, order.params, 5, 0.1, round=1, done=0.5))
    assert read_update(4, order, record).done == 1.0
    assert read_update(4, Order(1, (4,), order.params, hyper(steps=8), seconds=3.0), record).done == 0.5


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf"), 5, "5"])
def test_a_client_refuses_an_odd_time(seconds):
    record = {**order_record(TWO, "e", None), "seconds": seconds}
    with pytest.raises(UpdateRefused, match="seconds"):
        read_order(record, 0)
    assert read_order({**record, "seconds": 2.5}, 0).seconds == 2.5


@pytest.mark.parametrize("method", ["FA", "SCAFFOLD"])
def test_a_client_that_stops_in_time_has_done_just_those_steps(method, monkeypatch):
    """A clock that goes on by one second a look: after 3 of 8 steps 2.5 seconds are over. What it sends and keeps is to
    the bit that of a client which was asked for 3 steps: mini-batches are named by round and client."""
    parts = parts_of(find_task("digits"), settings_for(method=method))
    site = site_of(parts)
    ticks = iter(range(1000))
    monkeypatch.setattr(training, "time", types.SimpleNamespace(monotonic=lambda: float(next(ticks))))
    h = hyper(0.1, 8, 16, entropy_min=2.0, entropy_weight=1.0, server_lr=1.0)
    params = {name: value.clone() for name, value in site.model.state_dict().items()}
    down = {name: {n: v.clone() for n, v in t.items()} for name, t in site.method.down.items()}
    order = Order(1, (0,), params, h, down=down)
    part, kept = training.train(site, site.model, Order(1, (0,), params, h, down=down, seconds=2.5), 0, {})
    assert part.done == 3 / 8
    three = Order(1, (0,), params, h.but({"steps": 3}), down=down)
    whole, kept_whole = training.train(site, site.model, three, 0, {})
    assert all(torch.equal(part.params[name], whole.params[name]) for name in params)
    for slot, table in whole.sent.items():
        assert all(torch.equal(part.sent[slot][name], value) for name, value in table.items())
    assert kept.keys() == kept_whole.keys()
    pairs = zip(flatten(kept).values(), flatten(kept_whole).values(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    assert part.loss == whole.loss
    assert training.train(site, site.model, order, 0, {})[0].done == 1.0
