import copy
from dataclasses import replace

import pytest
import torch
from helpers import client_side
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

from fedaccord.client.training import REPORT_EXAMPLES, Site, minibatches, train
from fedaccord.core.params import load_params
from fedaccord.core.records import Examples, Hyper, Order
from fedaccord.core.seeds import generator
from fedaccord.data.prepare import as_stored
from fedaccord.objectives import classification


def site(data, seed=0):
    """Every client holds the same data."""
    model = nn.Identity()
    return Site(model, client_side(model), [data] * 3, as_stored, classification, cross_entropy, seed)


def problem(examples=40, dtype=torch.float64):
    """In float64, where two orders of the same sums agree far better than any two formulas."""
    g = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)).to(dtype)
    load_params(model, {k: torch.randn(v.shape, generator=g) * 0.3 for k, v in model.state_dict().items()})
    data = Examples(torch.randn(examples, 5, generator=g).to(dtype), torch.randint(0, 3, (examples,), generator=g))
    return model, data, {k: v.clone() for k, v in model.state_dict().items()}


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_lines_7_to_12_equal_torch_sgd_on_the_same_batches(momentum):
    model, data, params = problem()
    hyper = Hyper(lr=0.1, steps=7, batch_size=16, momentum=momentum)
    order = Order(3, (2,), params, hyper)
    update = train(site(data, seed=5), copy.deepcopy(model), order, 2, {})[0]

    slow = copy.deepcopy(model)
    optimiser = torch.optim.SGD(slow.parameters(), lr=0.1, momentum=momentum)
    losses = []
    for index in minibatches(site(data, seed=5), order, 2):
        optimiser.zero_grad()
        loss = cross_entropy(slow(data.inputs[index]), data.targets[index])
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    for name, value in slow.state_dict().items():
        torch.testing.assert_close(update.params[name], value)
    assert update.loss == pytest.approx(sum(losses) / 7, rel=1e-6)  # a float32 sum of 7: 7 * 2^-24 = 4e-7
    assert (update.client, update.examples, update.received_loss) == (2, 40, None)


def test_the_received_parameters_are_not_touched_and_the_update_is_not_the_workspace():
    model, data, params = problem()
    before = {k: v.clone() for k, v in params.items()}
    update = train(site(data), model, Order(1, (0,), params, Hyper(0.1, 3)), 0, {})[0]
    assert all(torch.equal(params[k], before[k]) for k in params)
    own = {k: v.clone() for k, v in update.params.items()}
    load_params(model, params)
    assert all(torch.equal(update.params[k], own[k]) for k in own)


def test_a_round_depends_on_seed_round_and_client_alone():
    """Dropout included, whatever the global generator did before."""
    model, data, _ = problem()
    model = nn.Sequential(nn.Dropout(0.5), model)
    params = {k: v.clone() for k, v in model.state_dict().items()}

    def weights(round=1, client=0, seed=0):
        torch.rand(3)  # moves the global generator
        order = Order(round, (client,), params, Hyper(0.1, 4, batch_size=8))
        return train(site(data, seed), model, order, client, {})[0].params["1.0.weight"]

    assert torch.equal(weights(), weights())
    for other in ({"round": 2}, {"client": 1}, {"seed": 1}):
        assert not torch.equal(weights(), weights(**other))


def test_dropout_depends_on_seed_round_and_client():
    """All examples are the same, so that nothing but the mask can differ."""
    model, data, _ = problem()
    data = Examples(data.inputs[:1].expand(40, -1), data.targets[:1].expand(40))
    model = nn.Sequential(nn.Dropout(0.5), model)
    params = {k: v.clone() for k, v in model.state_dict().items()}

    def weights(round=1, client=0, seed=0):
        order = Order(round, (client,), params, Hyper(0.1, 1, batch_size=8))
        return train(site(data, seed), model, order, client, {})[0].params["1.0.weight"]

    assert torch.equal(weights(), weights())
    for other in ({"round": 2}, {"client": 1}, {"seed": 1}):
        assert not torch.equal(weights(), weights(**other))


def test_the_reported_losses_are_those_of_the_received_model_and_the_one_before_on_the_same_random_examples():
    """In evaluation mode: with Dropout and BatchNorm training mode would give other losses."""
    plain, data, _ = problem(examples=3 * REPORT_EXAMPLES)
    model = nn.Sequential(nn.BatchNorm1d(5, dtype=torch.float64), nn.Dropout(0.5), plain)
    received = {k: v.clone() for k, v in model.state_dict().items()}
    before = {k: v + 0.1 if v.is_floating_point() else v for k, v in received.items()}
    order = Order(4, (2,), received, Hyper(0.1, 3), report_loss=True, previous=before)
    told = train(site(data, seed=7), copy.deepcopy(model), order, 2, {})[0]
    some = torch.randperm(len(data), generator=generator(7, "report", 4, 2))[:REPORT_EXAMPLES]
    assert not torch.equal(some.sort()[0], torch.arange(REPORT_EXAMPLES))
    expected = []
    for params in (received, before):
        load_params(model.eval(), params)
        expected.append(float(cross_entropy(model(data.inputs[some]), data.targets[some]).detach()))
    assert (told.received_loss, told.previous_loss) == pytest.approx(tuple(expected))


def test_a_client_trains_on_what_prepare_makes_of_its_examples_with_draws_of_its_own():
    model, data, params = problem()
    seen = []

    def prepare(inputs, draw):
        seen.append(torch.rand(2, generator=draw, dtype=torch.float64))
        return inputs * seen[-1][0]

    def ended(round, client):
        made = replace(site(data, seed=5), prepare=prepare)
        return train(made, copy.deepcopy(model), Order(round, (client,), params, Hyper(0.1, 2, 16)), client, {})[0]

    update = ended(3, 1)
    draw, slow = generator(5, "augment", 3, 1), copy.deepcopy(model)
    optimiser = torch.optim.SGD(slow.parameters(), lr=0.1)
    for index in minibatches(site(data, seed=5), Order(3, (1,), params, Hyper(0.1, 2, 16)), 1):
        optimiser.zero_grad()
        factor = torch.rand(2, generator=draw, dtype=torch.float64)[0]
        cross_entropy(slow(data.inputs[index] * factor), data.targets[index]).backward()
        optimiser.step()
    for name, value in slow.state_dict().items():
        torch.testing.assert_close(update.params[name], value)
    first = seen[0]
    for round, client in ((4, 1), (3, 2)):
        seen.clear()
        ended(round, client)
        assert not torch.equal(seen[0], first)


@given(st.integers(1, 200), st.integers(1, 70), st.integers(1, 50))
def test_minibatches_are_shuffled_passes(examples, batch_size, steps):
    data = Examples(torch.zeros(examples, 1), torch.zeros(examples))
    index = minibatches(site(data), Order(1, (0,), {}, Hyper(0.1, steps, batch_size)), 0)
    assert index.shape == (steps, min(batch_size, examples))
    stream = index.flatten()
    for first in range(0, len(stream) - examples + 1, examples):  # every whole pass holds each example once
        assert sorted(stream[first : first + examples].tolist()) == list(range(examples))
    rest = stream[len(stream) // examples * examples :].tolist()
    assert len(set(rest)) == len(rest)


def test_tied_weights_and_frozen_weights_train():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(5, 5)
            self.b = nn.Linear(5, 5)
            self.b.weight = self.a.weight
            self.head = nn.Linear(5, 3)
            self.head.bias.requires_grad_(False)

        def forward(self, x):
            return self.head(self.b(self.a(x).relu()))

    model, (_, data, _) = Tied(), problem(dtype=torch.float32)
    params = {k: v.clone() for k, v in model.state_dict().items()}
    update = train(site(data), model, Order(1, (0,), params, Hyper(0.1, 3)), 0, {})[0]
    assert torch.equal(update.params["a.weight"], update.params["b.weight"])
    assert torch.equal(update.params["head.bias"], params["head.bias"])
    assert not torch.equal(update.params["head.weight"], params["head.weight"])
