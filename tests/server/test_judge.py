"""What must not count is refused with its reason, and leaves no other trace: to the bit, and in all later rounds."""

import dataclasses
import json
import math

import pytest
import torch
from helpers import hyper, server_chain
from torch import nn

from fedaccord import config
from fedaccord.core.errors import RunError, SettingsError
from fedaccord.core.records import ClientUpdate, Refusal
from fedaccord.runtime.build import from_task
from fedaccord.runtime.drive import drive
from fedaccord.runtime.identity import log_sha256, params_sha256
from fedaccord.server.judge import FAR
from fedaccord.server.sizes import MAX_EXAMPLES, Sizes, parse_sizes
from fedaccord.tasks import find_task


def chain_and_model(method="FA"):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    chain = server_chain(model, method)
    return chain, chain.start({name: value.clone() for name, value in model.state_dict().items()})


def honest(chain, before, client=0, examples=5):
    """Every weight moves by 0.01; zeros in the method's slots."""
    params = {n: v + 0.01 if v.is_floating_point() else v.clone() for n, v in before.params.items()}
    return ClientUpdate(
        client, params, examples, 0.1, {name: template for name, (_, template) in chain.up.items()}, round=3
    )


def judged(chain, before, *updates, **more):
    return chain.aggregate(3, before, updates, hyper(server_lr=1.0), **more)


def with_value(update, name, value):
    return dataclasses.replace(update, params={**update.params, name: value})


def test_a_step_may_be_long_but_not_absurd():
    """25 weights of the two layers and of BatchNorm's: the limit is 10^6 times their norm, or sqrt(34) = 5.8."""
    chain, before = chain_and_model()
    own = math.sqrt(sum(float(before.params[name].double().square().sum()) for name in chain.weights))
    limit = FAR * max(own, math.sqrt(sum(before.params[name].numel() for name in chain.weights)))
    one = honest(chain, before)
    for factor, refused in ((0.99, 0), (1.01, 1)):
        bias = before.params["2.bias"] + torch.tensor([factor * limit, 0.0])
        result = judged(chain, before, with_value(dataclasses.replace(one, params=before.params), "2.bias", bias))
        assert len(result.refused) == refused
    assert result.refused[0].diverged
    assert "absurd" in result.refused[0].why


ABSURD = {
    "a variance of 1e38": ("1.running_var", torch.full((4,), 1e38)),
    "a counter of 2^62": ("1.num_batches_tracked", torch.tensor(2**62)),
    "the smallest integer": ("1.num_batches_tracked", torch.tensor(-(2**63))),
    "subnormal weights": ("0.weight", torch.full((4, 3), 1e-42)),
    "one infinite statistic": ("1.running_mean", torch.tensor([0.0, math.inf, 0.0, 0.0])),
}


@pytest.mark.parametrize("change", ABSURD.values(), ids=ABSURD.keys())
def test_absurd_values_are_refused(change):
    chain, before = chain_and_model()
    result = judged(chain, before, with_value(honest(chain, before), *change))
    assert [each.client for each in result.refused] == [0]
    assert result.model is before


LIES = [{"loss": 1e31}, {"loss": -1.7e308}, {"received_loss": 1e200}, {"previous_loss": -1e31},
        {"metrics": {"accuracy": 1e300}}]  # fmt: skip


@pytest.mark.parametrize("lie", LIES, ids=str)
def test_losses_and_metrics_of_absurd_size_are_refused(lie):
    """The sum of a few such numbers would be infinite: no line of the log could hold it."""
    chain, before = chain_and_model()
    one = dataclasses.replace(honest(chain, before), **lie)
    result = judged(chain, before, one, honest(chain, before, 1))
    assert [(each.client, "absurd" in each.why) for each in result.refused] == [(0, True)]


@pytest.mark.parametrize(("loss", "weight"), [(1e31, 1.0), (1e31, math.nan), (1e31, 1e20)])
def test_a_training_that_blew_up_has_diverged_whatever_its_loss(loss, weight):
    """The tuner lowers its rate for that."""
    chain, before = chain_and_model()
    one = with_value(honest(chain, before), "2.bias", torch.full((2,), weight))
    (refusal,) = judged(chain, before, dataclasses.replace(one, loss=loss)).refused
    assert refusal.diverged


def test_a_squared_error_of_large_numbers_counts():
    chain, before = chain_and_model()
    assert judged(chain, before, dataclasses.replace(honest(chain, before), loss=1e20, metrics={"mse": 1e20})).accepted


def test_a_loss_that_is_not_finite_is_no_lie():
    chain, before = chain_and_model()
    result = judged(chain, before, dataclasses.replace(honest(chain, before), loss=math.nan, received_loss=math.inf))
    assert result.refused == []


@pytest.mark.parametrize(
    ("method", "slot", "bounds"),
    [("FATHOM", "FATHOM.least", {0: 1.0, 1: 1.0}), ("FedNova", "FedNova.length", {0: 3.25, 1: 1.5})],
)
def test_a_number_is_bounded_by_what_the_client_was_told_to_do(method, slot, bounds):
    """A cosine; and two steps with momentum 0.5, Nesterov's being the longer: 1.5 + 1.75 = 3.25, plain 1 + 1.5.

    Client 1 has one step of its own: 1.5.
    """
    chain, before = chain_and_model(method)
    each = {1: hyper(steps=1, momentum=0.5, server_lr=1.0)}
    for client, bound in bounds.items():
        for value, refused in ((bound, []), (-bound, []), (1.01 * bound, [client]), (-1.01 * bound, [client])):
            sent = {slot: {"value": torch.tensor(value, dtype=torch.float64)}}
            update = dataclasses.replace(honest(chain, before, client), sent=sent)
            told = hyper(steps=2, momentum=0.5, server_lr=1.0)
            result = chain.aggregate(3, before, [update], told, None, None, each)
            assert [refusal.client for refusal in result.refused] == refused, value


def test_unusual_but_possible_values_count():
    """Inputs of a million have a variance of 1e12; a weight that is hardly used may be subnormal."""
    chain, before = chain_and_model()
    update = with_value(honest(chain, before), "1.running_var", torch.full((4,), 1e12))
    update = with_value(update, "2.bias", torch.tensor([0.3, 1e-42]))
    update = with_value(update, "1.num_batches_tracked", torch.tensor(10**9))
    assert judged(chain, before, update).refused == []


@pytest.mark.parametrize("value", [1e15, -1e15, math.nan, math.inf])
@pytest.mark.parametrize("slot", ["SCAFFOLD.change", "SCAFFOLD.size"])
def test_every_slot_of_the_method_is_judged(slot, value):
    """A scalar may be the square of a norm: 1e15 is none, its square is no size of anything."""
    chain, before = chain_and_model("SCAFFOLD")
    update = honest(chain, before)
    scalar = slot.endswith("size")
    wrong = value**2 if scalar else value
    bad = {**update.sent, slot: {name: torch.full_like(each, wrong) for name, each in update.sent[slot].items()}}
    result = judged(chain, before, dataclasses.replace(update, sent=bad))
    assert len(result.refused) == 1
    assert judged(chain, before, update).refused == []


def test_numbers_whose_squares_are_beyond_a_float_are_refused_without_an_error():
    model = nn.Linear(2, 1, dtype=torch.float64)
    for method in ("FA", "SCAFFOLD"):
        chain = server_chain(model, method)
        before = chain.start({name: value.clone() for name, value in model.state_dict().items()})
        good = honest(chain, before)
        bad = [with_value(good, "bias", torch.tensor([value], dtype=torch.float64)) for value in (1e200, -1.7e308)]
        if chain.up:
            sent = {**good.sent, "SCAFFOLD.size": {"value": torch.tensor(1e200, dtype=torch.float64)}}
            bad.append(dataclasses.replace(good, sent=sent))
        result = judged(chain, before, *(dataclasses.replace(each, client=n) for n, each in enumerate(bad)))
        assert len(result.refused) == len(bad)


def test_who_may_send_what_and_when():
    chain, before = chain_and_model()
    one, two = honest(chain, before), honest(chain, before, client=4)
    strange = dataclasses.replace(one, client=2)
    late = dataclasses.replace(one, client=5, round=2)
    result = judged(chain, before, one, strange, two, two, one, late, cohort=(0, 4, 5))
    assert [each.client for each in result.accepted] == [0, 4]
    assert [(each.client, each.why) for each in result.refused] == [
        (2, "client 2 was not asked in this round"),
        (4, "a second update in the same round"),
        (0, "a second update in the same round"),
        (5, "it is of round 2, and this is round 3"),
    ]
    alone = judged(chain, before, one, two, cohort=(0, 4, 5))
    assert params_sha256(alone.model.params) == params_sha256(result.model.params)
    assert judged(chain, before, dataclasses.replace(one, client=10)).refused  # there are ten, from 0 on


def test_a_client_may_claim_what_it_is_registered_with_and_no_more(tmp_path):
    sizes = Sizes({1: 7})
    sizes.keep_in(tmp_path / "sizes.json")
    chain, before = chain_and_model()
    chain.judge.sizes = sizes
    claims = [honest(chain, before, client, n) for client, n in ((0, 5), (1, 8), (2, MAX_EXAMPLES + 1))]
    result = judged(chain, before, *claims)
    assert [each.client for each in result.accepted] == [0]
    assert result.refused[0].why == "8 examples, but it is registered with 7"
    assert judged(chain, before, honest(chain, before, 0, 6)).refused  # its first word was 5
    assert judged(chain, before, honest(chain, before, 0, 4)).refused == []
    again = Sizes({2: 3})
    again.keep_in(tmp_path / "sizes.json")
    assert again.known == json.loads((tmp_path / "sizes.json").read_bytes(), object_hook=numbered) == {0: 5, 1: 7, 2: 3}
    stated = Sizes({0: 4})  # what the operator states now wins over what the client said then
    stated.keep_in(tmp_path / "sizes.json")
    assert stated.limit(0) == 4


def numbered(found):
    return {int(client): n for client, n in found.items()}


def test_sizes_that_nobody_can_read_are_told():
    assert parse_sizes(["0=12", "3=1"]) == {0: 12, 3: 1}
    for word in ("3", "3=", "=4", "3=0", "3=-1", "x=1", "1=1.5"):
        with pytest.raises(SettingsError, match="--examples"):
            parse_sizes([word])


def test_a_damaged_list_of_sizes_ends_the_run(tmp_path):
    (tmp_path / "sizes.json").write_text("[1]")
    with pytest.raises(RunError, match="damaged"):
        Sizes().keep_in(tmp_path / "sizes.json")


# ---------------------------------------------------------------- whole runs


def spoilt(update):
    """Ways in which client 3's update of round 2 is wrong; none of them may be felt."""
    first = next(iter(update.params))
    yield with_value(update, first, torch.full_like(update.params[first], math.nan))
    yield dataclasses.replace(update, examples=update.examples + 1)
    yield dataclasses.replace(update, round=1)
    yield dataclasses.replace(update, client=99)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["FA", "SCAFFOLD", "FA+RM+AH"])
def test_a_refused_update_is_as_if_its_client_had_not_replied_in_all_later_rounds(method):
    def outcome(how):
        task = find_task("digits")
        values = {"task": "digits", "method": method, "rounds": 4, "engine": "serial"}
        made = from_task(task, config.make(task.defaults("non-iid"), values))
        engine = made.experiment.engine
        inner = engine.train

        def train(order):
            for update in inner(order):
                wrong = update.client == 3 and order.round == 2
                yield (
                    (Refusal(3, "no reply in time") if how is None else list(spoilt(update))[how]) if wrong else update
                )

        engine.train = train
        found = drive(made, None, None)
        logs = [{**dataclasses.asdict(log), "refused": []} for log in found.rounds]
        return params_sha256(found.state.params), log_sha256(logs), found.rounds[1].refused

    *without, _ = outcome(None)
    for how in range(4):
        *with_it, refused = outcome(how)
        assert with_it == without
        assert len(refused) == 1
