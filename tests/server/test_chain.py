import dataclasses
import math

import numpy as np
import pytest
import torch
from helpers import hyper, module_with, server_chain
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedaccord.core.errors import DataError
from fedaccord.core.protocols import SCALAR, Part, ServerStep, Slot, Slots
from fedaccord.core.records import ClientUpdate
from fedaccord.server.chain import FLOATS, INTEGERS, Taken
from fedaccord.server.sizes import MAX_EXAMPLES

RECEIVED = {"w": torch.tensor([1.0, 2.0]), "n": torch.tensor(3), "mask": torch.tensor([True, False])}


def aggregate(received, updates, server_lr=1.0, total_examples=None, buffers=()):
    """Line 14 on a model with these values."""
    chain = server_chain(module_with(received, buffers))
    before = chain.start(received)
    return chain.aggregate(1, before, updates, hyper(server_lr=server_lr), total_examples)


def update(client=0, examples=10, loss=0.5, **changes):
    return ClientUpdate(client, {**{k: v.clone() for k, v in RECEIVED.items()}, **changes}, examples, loss)


floats = st.floats(-100, 100, width=32, allow_subnormal=False)  # a tensor of nothing else is refused
cohorts = st.lists(st.tuples(st.lists(floats, min_size=2, max_size=2), st.integers(1, 10_000)), min_size=1, max_size=8)


@given(cohorts, st.sampled_from([1.0, 0.5]), st.booleans())
def test_line_14_against_numpy(cohort, server_lr, population):
    """w + lr * sum (n_i / N) (w_i - w), in float64.

    Values are below 100 and differences below 200, so in float32 an addition is rounded by 2^-24 * 100 = 6e-6 at most
    and a weighted difference by 2 * 2^-24 * 200 = 2.4e-5 times its weight, by which the error so far shrinks. Eight
    clients, then the server's own step: 8 * 6e-6 + 2.4e-5 + 2.4e-5 < 1e-4.
    """
    updates = [update(i, n, w=torch.tensor(w)) for i, (w, n) in enumerate(cohort)]
    counts = np.array([n for _, n in cohort], np.float64)
    total = 2 * counts.sum() if population else counts.sum()
    start = RECEIVED["w"].double().numpy()
    steps = np.array([w for w, _ in cohort], np.float64) - start
    expected = start + server_lr * (counts[:, None] / total * steps).sum(axis=0)
    result = aggregate(RECEIVED, updates, server_lr, int(total) if population else None)
    np.testing.assert_allclose(result.model.params["w"].numpy(), expected, rtol=1e-5, atol=1e-4)


def test_equal_updates_stay_equal_to_the_bit():
    value = torch.tensor([0.1, 0.7])
    result = aggregate(RECEIVED, [update(i, n, w=value) for i, n in enumerate((3, 7, 11))])
    assert torch.equal(result.model.params["w"], value)


def test_what_is_not_a_float_takes_the_largest_value():
    result = aggregate(
        RECEIVED,
        [update(0, n=torch.tensor(5)), update(1, n=torch.tensor(4), mask=torch.tensor([False, True]))],
        server_lr=0.5,
    )
    assert result.model.params["n"] == 5
    assert result.model.params["mask"].tolist() == [True, True]


def test_batchnorm_buffers_are_averaged_and_the_model_still_loads():
    model = nn.BatchNorm1d(2)
    buffers = set(dict(model.named_buffers()))
    received = {k: v.clone() for k, v in model.state_dict().items()}
    one = {**received, "running_mean": torch.tensor([1.0, 3.0]), "num_batches_tracked": torch.tensor(7)}
    two = {**received, "running_mean": torch.tensor([3.0, 5.0]), "num_batches_tracked": torch.tensor(6)}
    result = aggregate(received, [ClientUpdate(0, one, 5, 0.0), ClientUpdate(1, two, 5, 0.0)], buffers=buffers)
    model.load_state_dict(result.model.params)
    assert model.running_mean.tolist() == [2.0, 4.0]
    assert model.num_batches_tracked == 7


def test_a_buffer_is_never_extrapolated():
    """A server step of 1.5 on weights 1 -> 3 gives 4; a variance takes the mean, 3."""
    received = {"w": torch.tensor([1.0]), "running_var": torch.tensor([1.0])}
    sent = {"w": torch.tensor([3.0]), "running_var": torch.tensor([3.0])}
    result = aggregate(received, [ClientUpdate(0, sent, 5, 0.0)], 1.5, buffers={"running_var"})
    assert (result.model.params["w"].item(), result.model.params["running_var"].item()) == (4.0, 3.0)


BAD = {
    "NaN": update(1, w=torch.tensor([1.0, math.nan])),
    "infinity": update(1, w=torch.tensor([math.inf, 0.0])),
    "shape": update(1, w=torch.tensor([1.0])),
    "broadcast": update(1, w=torch.tensor(1.0)),
    "type": update(1, w=torch.tensor([1.0, 2.0], dtype=torch.float64)),
    "extra name": update(1, theta=torch.tensor(1.0)),
    "missing name": ClientUpdate(1, {"w": RECEIVED["w"]}, 10, 0.5),
    "no examples": update(1, examples=0),
    "negative examples": update(1, examples=-5),
    "10^30 examples": update(1, examples=10**30),
    "one too many": update(1, examples=MAX_EXAMPLES + 1),
    "fraction": update(1, examples=2.5),
    "boolean": update(1, examples=True),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_a_bad_update_is_refused_and_the_rest_is_as_if_it_had_not_come(bad):
    good = [update(0, 4, w=torch.tensor([0.3, 0.1])), update(2, 9, w=torch.tensor([-2.0, 0.7]))]
    without = aggregate(RECEIVED, good)
    result = aggregate(RECEIVED, [good[0], bad, good[1]])
    assert all(torch.equal(result.model.params[name], without.model.params[name]) for name in RECEIVED)
    assert [refusal.client for refusal in result.refused] == [1]
    assert result.accepted == without.accepted


def test_without_any_good_update_the_model_stays():
    result = aggregate(RECEIVED, [BAD["NaN"]])
    assert result.model.params is RECEIVED
    assert result.accepted == []


def test_norms_are_those_of_weights_and_the_models_own_norm_is_that_of_what_is_trained():
    """A running statistic moves by a thousand at any rate, and a frozen layer is no part of what is trained."""
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1), nn.Linear(1, 1))
    model[2].requires_grad_(False)
    received = {name: value.clone() for name, value in model.state_dict().items()}
    sent = {name: value.clone() for name, value in received.items()}
    sent["0.running_mean"] += 1000.0
    sent["1.bias"] += 3.0
    chain = server_chain(model)
    result = chain.aggregate(1, chain.start(received), [ClientUpdate(0, sent, 5, 0.1)], hyper(server_lr=1.0))
    assert (result.accepted[0].update_norm, result.step_norm) == (pytest.approx(3.0), pytest.approx(3.0))
    weights = [received[name].double() for name in ("0.weight", "0.bias", "1.weight", "1.bias")]
    assert result.model_norm == pytest.approx(math.sqrt(sum(float((each**2).sum()) for each in weights)))
    sent["0.running_mean"][0] = math.nan
    result = chain.aggregate(1, chain.start(received), [ClientUpdate(0, sent, 5, 0.1)], hyper(server_lr=1.0))
    assert result.refused[0].diverged


def test_a_training_that_blew_up_is_told_apart_from_a_reply_that_is_wrong():
    bad = [BAD["NaN"], BAD["infinity"], BAD["shape"], BAD["no examples"]]
    result = aggregate(RECEIVED, [dataclasses.replace(each, client=number) for number, each in enumerate(bad)])
    assert [refusal.diverged for refusal in result.refused] == [True, True, False, False]


def test_the_norm_of_a_step_is_reported():
    result = aggregate(RECEIVED, [update(w=torch.tensor([4.0, 6.0]))])  # a step of (3, 4)
    assert result.accepted[0].update_norm == pytest.approx(5.0)


def test_updates_are_read_one_at_a_time():
    """The mean is running: no update is held once the next is asked for."""
    import weakref

    alive: list[weakref.ref] = []

    def stream():
        for client in range(5):
            item = update(client, w=torch.tensor([float(client), 0.0]))
            alive.append(weakref.ref(item.params["w"]))
            yield item
            del item
            # the one just handed over may still be named by the loop, none before it
            assert sum(ref() is not None for ref in alive) <= 1

    assert aggregate(RECEIVED, stream()).model.params["w"][0] == pytest.approx(2.0)


def test_complex_numbers_are_told_of_before_the_first_round():
    class Waves(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(2, dtype=torch.complex64))

    with pytest.raises(DataError, match="model: w has complex numbers"):
        server_chain(Waves())


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint64, torch.float8_e4m3fn])
def test_types_that_torch_cannot_judge_are_told_of_before_the_first_round(dtype):
    with pytest.raises(DataError, match=f"model: b is of type {str(dtype)[6:]}, which is not averaged here"):
        server_chain(module_with({"w": torch.ones(2), "b": torch.ones(2).to(dtype)}, buffers={"b"}))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
@pytest.mark.parametrize("rule", ["mean", "clip", "trimmed", "median"])
def test_any_other_type_of_buffer_is_averaged_by_every_rule(dtype, rule):
    start = {"w": torch.ones(2), "b": torch.tensor([0, 1]).to(dtype), "none": torch.zeros(0, dtype=dtype)}
    chain = server_chain(module_with(start, buffers={"b", "none"}), robust=rule)
    updates = [ClientUpdate(client, start, 5, 0.1) for client in range(3)]
    result = chain.aggregate(1, chain.start(start), updates, hyper(server_lr=1.0))
    assert len(result.accepted) == 3
    assert torch.equal(result.model.params["b"], start["b"])


class Muting(ServerStep):
    """A step that needs a round's updates at once, and changes nothing but what came beside the model."""

    holds = True

    def together(self, received, updates, buffers):
        return [
            dataclasses.replace(update, sent={"Muted.size": {"value": torch.tensor(0.0).double()}})
            for update in updates
        ]


class Muted(Part):
    name = "Muted"
    slots = Slots(up=(Slot("size", SCALAR),))

    def server(self, settings):
        return Muting()


def test_a_step_for_all_updates_may_change_a_slot_alone():
    chain = server_chain(module_with({"w": torch.zeros(2)}), Muted())
    sent = {"Muted.size": {"value": torch.tensor(5.0).double()}}
    updates = [ClientUpdate(n, {"w": torch.ones(2)}, 5, 0.1, sent) for n in (0, 1)]
    held = chain.together({"w": torch.zeros(2)}, [Taken(each, 1.0, None, 1.0) for each in updates])
    assert [float(each.update.sent["Muted.size"]["value"]) for each in held] == [0.0, 0.0]
    assert [each.moved for each in held] == [None, None]  # their steps are as they were sent


class Choosing(ServerStep):
    """A step that joins the models, has no answer for what came beside them, and hands the same tensors back."""

    holds = True

    def together(self, received, updates, buffers):
        return [dataclasses.replace(update, params=dict(update.params)) for update in updates]

    def centre(self, each):
        return None if "value" in each[0] else each[0]


def test_a_slot_that_a_rule_does_not_join_stays_each_clients_own():
    part = Muted()
    part.server = lambda settings: Choosing()
    chain = server_chain(module_with({"w": torch.zeros(2)}), part)
    updates = [
        ClientUpdate(n, {"w": torch.full((2,), n + 1.0)}, 5, 0.1, {"Muted.size": {"value": torch.tensor(float(n))}})
        for n in (0, 1)
    ]
    held = chain.together({"w": torch.zeros(2)}, [Taken(each, 1.0, None, 1.0) for each in updates])
    assert [each.update.params["w"].tolist() for each in held] == [[1.0, 1.0], [1.0, 1.0]]
    assert [float(each.update.sent["Muted.size"]["value"]) for each in held] == [0.0, 1.0]
    assert [each.moved for each in held] == [None, None]  # another dict of the same tensors is no other step


def test_noise_leaves_tied_weights_tied():
    """One tensor under two names has one noise, or a client's own copy of it would be another than the server's."""
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    chain = server_chain(model, clip_norm=1.0, dp_noise=1.0)
    before = chain.start({name: value.detach().clone() for name, value in model.state_dict().items()})
    reply = ClientUpdate(0, {name: value + 0.01 for name, value in before.params.items()}, 10, 0.5)
    after = chain.aggregate(1, before, [reply], hyper(server_lr=1.0)).model.params
    assert torch.equal(after["0.weight"], after["1.weight"])
    assert not torch.equal(after["0.weight"], reply.params["0.weight"])
