"""What travels comes back exactly, and what cannot be read is a refusal."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import hyper

from fedaccord.core.records import ClientUpdate, Order, Refusal
from fedaccord.flower.wire import (
    CLASSES,
    IN_AN_ORDER,
    client_record,
    identity_record,
    order_record,
    read_hyper,
    read_identity,
    read_order,
    read_update,
    refusal_record,
    update_record,
)
from fedaccord.runtime.identity import params_sha256

pytestmark = pytest.mark.filterwarnings("ignore")  # flwr's own

ORDER = Order(1, (1,), {"w": torch.zeros(2)}, hyper())


@pytest.mark.parametrize(
    "reply", [{}, {"params": b"junk", "examples": 3, "loss": 0.1}, {"params": b"", "loss": 1.0}, {"examples": 3}]
)
def test_a_reply_that_cannot_be_read_is_a_refusal(reply):
    assert isinstance(read_update(4, ORDER, reply), Refusal)


def test_only_what_differs_from_most_travels_beside_the_order():
    order = Order(5, (0, 1, 2), {}, hyper(0.1, 3), since={0: 4, 1: 2, 2: 4})
    needed = {0: 3, 1: 2, 2: 3}
    shared = order_record(order, "e", needed)
    own = {client: dict(client_record(order, client, needed, shared)) for client in order.cohort}
    assert (shared["since"], shared["needed"]) == (4, 3)
    assert own == {0: {}, 1: {"since": 2, "needed": 2}, 2: {}}
    assert "since" not in order_record(order, "e", None)


def test_an_order_and_an_update_travel_exactly():
    odd = {"a": torch.tensor([0.1, float("nan"), -0.0]), "n": torch.tensor(7), "h": torch.ones(2, dtype=torch.bfloat16)}
    h = hyper(0.1 + 0.2, 3, momentum=0.9, rm_weight=1 / 3, entropy_min=None)
    each = {2: hyper(0.7, 9, rm_weight=0.1)}
    order = Order(3, (2,), odd, h, each, {"SCAFFOLD.c": odd}, {2: 1}, True, odd)
    shared = order_record(order, "e", {2: 1})
    back = read_order({**shared, **client_record(order, 2, {2: 1}, shared)}, 2)
    assert (back.round, back.hyper, back.hyper_of(2), back.report_loss) == (3, h, each[2], True)
    assert back.since == {2: 1}
    for sent, came in ((odd, back.params), (odd, back.previous), (odd, back.down["SCAFFOLD.c"])):
        assert params_sha256(sent) == params_sha256(came)
    update = ClientUpdate(2, odd, 7, 0.1 + 0.2, {"SCAFFOLD.change": odd}, 1 / 3, 2 / 3, round=3)
    answer = read_update(2, order, update_record(update))
    assert params_sha256(answer.sent["SCAFFOLD.change"]) == params_sha256(odd)
    assert replace(answer, params=odd, sent=update.sent) == update
    assert params_sha256(answer.params) == params_sha256(odd)


@pytest.mark.parametrize("labels", ["5", [1, -1], [1.5], [True], [1] * (CLASSES + 1), {"0": 1}, None])
def test_labels_that_cannot_be_counts_are_not_taken(labels):
    assert read_identity({"client": 3, "labels": labels}) == (3, [], 0)


def test_a_node_says_who_it_is_and_its_labels_only_if_it_may():
    assert dict(identity_record(3)) == {"client": 3}
    assert read_identity(identity_record(3, [4, 0, 2], 6)) == (3, [4, 0, 2], 6)
    assert read_identity({"client": "3", "examples": 5.5}) == (None, [], 0)


@pytest.mark.parametrize("said", [{"client": 1}, {"round": 2}, {"client": 4.0}, {"client": True}, {"round": "3"}])
def test_a_reply_of_another_client_or_round_is_a_refusal(said):
    order = replace(ORDER, round=3)
    reply = update_record(ClientUpdate(4, order.params, 5, 0.1, round=3))
    assert isinstance(read_update(4, order, reply), ClientUpdate)
    assert "not this client's" in read_update(4, order, {**reply, **said}).why


def test_the_documentation_names_all_that_travels():
    page = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text()
    told = {way: set(re.findall(r"`(\w+)`", re.search(rf"^\| {way} \|.*$", page, re.M)[0])) for way in ("down", "up")}
    everything = ClientUpdate(2, {}, 7, 0.1, {"slot": {}}, 0.1, 0.1, {"accuracy": 0.5}, round=3, done=0.5)
    assert told["down"] == IN_AN_ORDER.keys()
    assert told["up"] == update_record(everything).keys() | refusal_record("no").keys()
    said = re.search(r"^Once at the start .*$", page, re.M)[0]
    assert set(re.findall(r"`(\w+)`", said)) == identity_record(1, [3], 3).keys()


def test_a_methods_own_whole_number_arrives_as_one():
    hyper = read_hyper('{"lr": 0.1, "steps": 5, "batch_size": 8, "momentum": 0.0, "weight_decay": 0.0, '
                       '"clip_gradient": 0.0, "depth": 3, "weight": 1.0, "open": null}')  # fmt: skip
    assert [type(hyper[name]) for name in ("depth", "weight", "open")] == [int, float, type(None)]
