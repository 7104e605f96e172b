"""A client's end by itself: what it carries out, what it keeps, and what it refuses."""

import hashlib
import shutil
from dataclasses import replace

import pytest
import torch
from flower_helpers import private_files, settings_for
from helpers import hyper

from fedaccord.core.packages import encode
from fedaccord.core.params import read_params
from fedaccord.core.records import Order, Refusal
from fedaccord.flower.node import Limits, Member
from fedaccord.flower.wire import order_record, read_update
from fedaccord.runtime.build import site_of
from fedaccord.runtime.federation import federation_settings
from fedaccord.runtime.identity import experiment_of
from fedaccord.runtime.parts import parts_of
from fedaccord.tasks import find_task

pytestmark = pytest.mark.filterwarnings("ignore")  # flwr's own

ORDER = Order(1, (1,), {"w": torch.zeros(2)}, hyper())


@pytest.fixture
def member(tmp_path):
    parts = parts_of(find_task("digits"), settings_for(method="FA+RM"))
    settings = federation_settings(parts.settings)
    site = site_of(replace(parts, settings=settings))
    limits = Limits(max_steps=20, min_lr=0.01, max_lr=0.5)
    made = Member(1, site, tmp_path, experiment_of(settings), limits)
    made.params = {name: value.clone() for name, value in parts.model.state_dict().items()}
    return made


def order_for(member, round=1, needed=0, since=None, experiment=None, params=None, **values):
    """As a message gives it; a round goes on from the one before it unless `since` is another."""
    values = hyper(0.1, 3, rm_weight=1e-2).but(values)
    since = {1: round - 1 if since is None else since}
    order = Order(round, (1,), params or member.params, values, since=since)
    return dict(order_record(order, experiment or member.experiment, {1: needed}))


def test_a_repeated_round_starts_from_the_theta_of_before_it(member, tmp_path):
    first = member.answer(order_for(member, 1))
    second = member.answer(order_for(member, 2, needed=1))
    after = private_files(tmp_path)
    assert member.answer(order_for(member, 2, needed=1)) == second
    assert private_files(tmp_path) == after
    assert [name[:6] for name in after["1"]] == ["000001", "000002"]
    member.answer(order_for(member, 3, needed=2))
    assert [name[:6] for name in private_files(tmp_path)["1"]] == ["000002", "000003"]
    assert first != second


def test_a_round_that_did_not_count_leaves_no_trace(member, tmp_path):
    """Round 2 was refused or rolled back: round 3 goes on from round 1, as if round 2 had never been."""
    member.answer(order_for(member, 1))
    straight = member.answer(order_for(member, 3, since=1))
    member.answer(order_for(member, 2))
    assert member.answer(order_for(member, 3, since=1)) == straight
    assert member.answer(order_for(member, 3, since=2)) != straight


def test_what_the_client_does_not_have_any_more_is_a_reason(member):
    assert "kept in round 4 is not here any more" in member.answer(order_for(member, 5))["why"]


def test_what_an_earlier_run_left_is_not_taken_for_this_ones(member, tmp_path):
    """The same experiment once more, with the same folder, at another rate; the client misses its third round."""

    def again():
        rounds = ((1, 0), (2, 1), (4, 2), (5, 4))
        return [member.answer(order_for(member, round, since=since, lr=0.2)) for round, since in rounds]

    alone = again()
    shutil.rmtree(tmp_path / member.experiment)
    for round in (1, 2, 3, 4, 5, 6):
        member.answer(order_for(member, round))
    assert again() == alone
    assert "params" in alone[-1]
    member.answer(order_for(member, 7, since=5, needed=5))
    assert [name[:6] for name in private_files(tmp_path)["1"]] == ["000005", "000006", "000007"]


def test_a_damaged_theta_is_a_reason_not_a_crash(member, tmp_path):
    member.answer(order_for(member, 1))
    (file,) = tmp_path.rglob("*.safetensors")
    file.write_bytes(b"junk")
    assert "damaged" in member.answer(order_for(member, 2))["why"]


BAD_ORDERS = [
    ({"steps": 21}, "steps = 21: I do 1 to 20"),
    ({"steps": 0}, "steps = 0"),
    ({"lr": 0.6}, "lr = 0.6: I take 0.01 to 0.5"),
    ({"lr": float("nan")}, "lr = nan is not a number"),
    ({"lr": 1e-9}, "lr = 1e-09"),
    ({"rm_weight": float("inf")}, "rm_weight = inf is not a number"),
    ({"rm_weight": -0.5}, "rm_weight = -0.5: expected 0 or more"),
    ({"momentum": -1.0}, "momentum = -1"),
    ({"batch_size": 10**6}, "batch_size = 1000000"),
    ({"experiment": "another"}, "another experiment"),
    ({"params": "fewer"}, "names differ from those of my model"),
    ({"params": "shape"}, "has shape"),
    ({"params": "nan"}, "not finite"),
]


@pytest.mark.parametrize(("changes", "why"), BAD_ORDERS)
def test_a_client_refuses_what_is_outside_its_limits(member, tmp_path, changes, why):
    member.answer(order_for(member, 1))
    before = private_files(tmp_path)
    if kind := changes.get("params"):
        params = {name: value.clone() for name, value in member.params.items()}
        name = next(iter(params))
        if kind == "fewer":
            del params[name]
        else:
            params[name] = params[name][:1] if kind == "shape" else params[name] * float("nan")
        changes = {"params": params}
    reply = member.answer(order_for(member, 2, **changes))
    assert set(reply) == {"why"}
    assert why in reply["why"]
    assert private_files(tmp_path) == before
    assert read_update(1, ORDER, reply) == Refusal(1, f"the client said no: {reply['why']}")


@pytest.mark.parametrize("drop", ["version", "round", "since", "needed", "params", "hyper", "experiment"])
def test_a_message_that_lacks_something_is_refused(member, drop):
    record = order_for(member)
    del record[drop]
    assert set(member.answer(record)) == {"why"}


def test_a_message_of_another_kind_is_refused(member):
    for name, value in (
        ("hyper", [0.1]),
        ("hyper", '{"lr": 0.1, "steps": 2.5, "batch_size": 8, "momentum": 0.0}'),
        ("hyper", '{"lr": 0.1}'),
        ("hyper", '{"lr": [1], "steps": 2, "batch_size": 8, "momentum": 0.0}'),
        ("hyper", "x"),
        ("down", b"junk"),
        ("version", 1),
        ("since", 7),
        ("params", b"junk"),
        ("round", 0),
        ("round", "2"),
    ):
        record = order_for(member)
        record[name] = value
        assert set(member.answer(record)) == {"why"}, name


def test_what_is_frozen_is_taken_once_from_the_server_and_kept_on_disk(tmp_path):
    """The node's own start of the frozen layer is another than the server's: what counts is the server's."""

    def made(folder, start):
        parts = parts_of(find_task("digits"), settings_for(method="FA", travels="trainable"))
        parts.model[1].requires_grad_(False).weight.fill_(start)
        settings = federation_settings(parts.settings)
        site = site_of(replace(parts, settings=settings))
        return Member(1, site, folder, experiment_of(settings), Limits()), parts.model

    right, model = made(tmp_path / "right", 0.01)
    wrong, _ = made(tmp_path / "wrong", 0.7)
    fixed = encode(read_params(model, {"1.weight", "1.bias"}))
    params = read_params(model, right.site.travel.names)
    assert set(params) == {"3.weight", "3.bias", "5.weight", "5.bias"}
    named = hashlib.sha256(fixed).hexdigest()
    order = {**order_record(Order(1, (1,), params, hyper(0.1, 3)), right.experiment, None), "fixed": named}
    assert "not got the part of the model that is the same everywhere" in wrong.answer(order)["why"]
    once = {**order, "fixed_tensors": fixed}
    assert wrong.answer(once) == right.answer(once)
    assert wrong.answer(order) == right.answer(order)
    again, _ = made(tmp_path / "wrong", 0.3)  # the node is started anew: it has it on its disk
    assert again.answer(order) == right.answer(order)
    other = {**order, "fixed": hashlib.sha256(b"another base").hexdigest()}
    assert "not got the part of the model" in right.answer(other)["why"]  # the server's base is another now
    third, _ = made(tmp_path / "other", 0.3)
    odd = encode({"1.weight": torch.zeros(2, 2), "1.bias": torch.zeros(64)})
    sent = {**order, "fixed": hashlib.sha256(odd).hexdigest(), "fixed_tensors": odd}
    assert "what is fixed in my model" in third.answer(sent)["why"]
    assert "checksum" in third.answer({**once, "fixed": "another"})["why"]
    assert "another experiment" in third.answer({**once, "experiment": "another"})["why"]
    assert not third.fixed.exists()  # what is refused is not kept
    # it has this very base already: what comes with its name must be it all the same
    for junk in (b"junk", odd):
        assert "checksum" in right.answer({**order, "fixed_tensors": junk})["why"]
    assert right.fixed.read_bytes() == fixed
    # a damaged file is as good as none, and what a killed process left half written is gone
    right.fixed.write_bytes(b"junk")
    rest = right.fixed.with_name(".fixed.safetensors.7.part")
    rest.write_bytes(b"")
    damaged, _ = made(tmp_path / "right", 0.3)
    assert "not got the part of the model" in damaged.answer(order)["why"]
    assert damaged.answer(once) == wrong.answer(once)
    assert right.fixed.read_bytes() == fixed
    assert not rest.exists()
