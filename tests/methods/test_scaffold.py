"""SCAFFOLD against its algorithm written out in NumPy, and what a refused or rolled-back round leaves behind."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import server_chain
from torch import nn

from fedaccord import config, federate
from fedaccord.client.training import minibatches
from fedaccord.core.algorithm import run_round, start
from fedaccord.core.params import read_params
from fedaccord.core.records import Order
from fedaccord.data.prepare import as_stored
from fedaccord.methods.registry import find
from fedaccord.runtime.build import hyper_of, simulation_of
from fedaccord.runtime.parts import Parts
from fedaccord.server.steps import with_server_steps

LR, STEPS, ROUNDS = 0.3, 4, 3


def sites(clients=5, examples=9, dtype=torch.float64):
    draw = torch.Generator().manual_seed(3)
    shift = torch.randn(clients, 1, 3, generator=draw)
    return [
        (
            (torch.randn(examples + n, 3, generator=draw) + shift[n]).to(dtype),
            torch.randint(0, 2, (examples + n,), generator=draw),
        )
        for n in range(clients)
    ]


def linear(dtype=torch.float64):
    torch.manual_seed(1)
    return nn.Linear(3, 2).to(dtype)


def setup(model, clients, **settings):
    values = {"method": "SCAFFOLD", "clients": len(clients), "split": "natural", "evaluate": "clients", "lr": LR,
              "steps": STEPS, "batch_size": 4, "entropy_weight": 0.0, "engine": "serial", **settings}  # fmt: skip
    made = config.make(values)
    method = with_server_steps(find("SCAFFOLD"), made.values())
    from fedaccord.core.records import Examples

    return simulation_of(Parts(made, method, model, as_stored, [Examples(*c) for c in clients], None, None))


def gradient(w, b, x, y):
    """Of the mean cross-entropy of a linear classifier."""
    scores = x @ w.T + b
    p = np.exp(scores - scores.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    p[np.arange(len(y)), y] -= 1
    p /= len(y)
    return p.T @ x, p.sum(0)


@pytest.mark.parametrize("fraction", [1.0, 0.6])
def test_three_rounds_against_the_algorithm_in_numpy(fraction):
    """Algorithm 1, option II, on a linear classifier in float64: x, c and every c_i."""
    model, clients = linear(), sites()
    made = setup(model, clients, fraction=fraction, rounds=ROUNDS)
    experiment = made.experiment
    experiment.engine.open(None)
    x = {name: value.numpy().copy() for name, value in read_params(model).items()}
    c = {name: np.zeros_like(value) for name, value in x.items()}
    own = [{name: np.zeros_like(value) for name, value in x.items()} for _ in clients]
    state = start(experiment, made.params)
    for _ in range(ROUNDS):
        before = state
        state, log = run_round(experiment, state)
        order = Order(state.round, tuple(log.cohort), before.params, hyper_of(made.settings, made.method))
        ends, counts, changes = [], [], []
        for i in log.cohort:
            inputs, targets = clients[i][0].numpy(), clients[i][1].numpy()
            y = {name: value.copy() for name, value in x.items()}
            for index in minibatches(experiment.engine.site, order, i):
                g_w, g_b = gradient(y["weight"], y["bias"], inputs[index], targets[index])
                for name, g in (("weight", g_w), ("bias", g_b)):
                    y[name] -= LR * (g - own[i][name] + c[name])
            new = {name: own[i][name] - c[name] + (x[name] - y[name]) / (STEPS * LR) for name in x}
            changes.append({name: new[name] - own[i][name] for name in x})
            own[i] = new
            ends.append(y)
            counts.append(len(targets))
        share = np.array(counts) / sum(counts)
        x = {name: sum(p * y[name] for p, y in zip(share, ends, strict=True)) for name in x}
        for name in c:
            c[name] = c[name] + len(changes) / len(clients) * np.mean([change[name] for change in changes], axis=0)
        for name in x:
            np.testing.assert_allclose(state.params[name].numpy(), x[name], rtol=1e-10, atol=1e-12)
            np.testing.assert_allclose(state.model.server["SCAFFOLD.c"][name].numpy(), c[name], rtol=1e-10, atol=1e-12)
        for i in log.cohort:
            kept = experiment.engine.store.get(i, state.round)["SCAFFOLD.c_i"]
            for name in x:
                np.testing.assert_allclose(kept[name].numpy(), own[i][name], rtol=1e-10, atol=1e-12)


def mean_of_c_i(experiment, state, clients):
    """The mean of what the clients go on from next; zero for those that never counted."""
    total = {name: torch.zeros_like(value) for name, value in state.model.server["SCAFFOLD.c"].items()}
    for client in range(clients):
        kept = experiment.engine.store.get(client, state.model.accepted.get(client, 0))
        for name, value in kept.get("SCAFFOLD.c_i", {}).items():
            total[name] += value / clients
    return total


def refusing(engine, when):
    """An engine whose client 1 sends a NaN in the rounds that are named: the server refuses it."""
    plain = engine.train

    def train(order):
        for update in plain(order):
            if update.client == 1 and order.round in when:
                update = replace(update, params={k: v * math.nan for k, v in update.params.items()})
            yield update

    engine.train = train


@pytest.mark.slow
def test_c_stays_the_mean_of_all_c_i_whatever_is_refused():
    """c moves by the accepted changes only, and so do the c_i: a refused update leaves no trace in either."""
    model, clients = linear(), sites()
    made = setup(model, clients, rounds=6, fraction=0.8)
    experiment = made.experiment
    experiment.engine.open(None)
    refusing(experiment.engine, when=(1, 2, 4))
    state, refused = start(experiment, made.params), 0
    for _ in range(6):
        state, log = run_round(experiment, state)
        refused += len(log.refused)
        for name, value in mean_of_c_i(experiment, state, len(clients)).items():
            torch.testing.assert_close(state.model.server["SCAFFOLD.c"][name], value, rtol=1e-9, atol=1e-12)
    assert refused >= 2


def test_a_rolled_back_round_leaves_no_trace():
    """The loss is made to explode in round 2: the run goes on from round 1, server and clients alike."""
    model, clients = linear(), sites()
    made = setup(model, clients, rounds=3)
    experiment = made.experiment
    experiment.engine.open(None)
    from fedaccord.core.protocols import Measured
    from fedaccord.server.guard import guard

    experiment = replace(experiment, loss=lambda params, seen: Measured(1.0), clients_report=False, guard=guard())
    first, _ = run_round(experiment, start(experiment, made.params))
    second, log = run_round(replace(experiment, loss=lambda params, seen: Measured(100.0)), first)
    assert "rolled back" in log.guard
    assert second.model is first.model
    third, _ = run_round(experiment, second)
    assert set(third.model.accepted.values()) == {3}
    for name, value in mean_of_c_i(experiment, third, len(clients)).items():
        torch.testing.assert_close(third.model.server["SCAFFOLD.c"][name], value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("steps", [1, 3, 50])
def test_it_trains_with_momentum_and_a_variate_stays_the_size_of_a_gradient(steps):
    """Alone on its data a client's c_i is its mean gradient, with or without momentum: at this rate it hardly moves."""
    sizes = []
    for more in ({}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}):
        history = federate(
            linear(), sites(1, 40), method="SCAFFOLD", rounds=1, steps=steps, lr=1e-6, batch_size=40,
            entropy_weight=0.0, engine="serial", **more,
        )  # fmt: skip
        sizes.append(history.rounds[0].method["SCAFFOLD.size"])
    assert sizes[1:] == pytest.approx([sizes[0]] * 2, rel=1e-3)


def test_its_state_starts_at_zero():
    model = linear()
    chain = server_chain(copy.deepcopy(model), "SCAFFOLD")
    assert all(not value.any() for value in chain.start(read_params(model)).server["SCAFFOLD.c"].values())
