"""The clients' step against torch's own optimizers, and what is kept of one between rounds."""

import copy
from dataclasses import replace

import pytest
import torch
from test_training import problem, site
from torch import nn
from torch.nn.functional import cross_entropy

from fedaccord import Hyper, federate
from fedaccord.client.optimizers import STATE, ClientOptimizer
from fedaccord.client.training import minibatches, train
from fedaccord.core.errors import SettingsError, TaskError
from fedaccord.core.records import Order
from fedaccord.runtime.build import optimizer_of, travels_of
from fedaccord.runtime.identity import params_sha256
from fedaccord.runtime.parts import parts_of
from fedaccord.tasks import PRESETS


def ours(model, data, params, hyper, optimizer, kept=None, round=1):
    made = site(data)
    object.__setattr__(made, "optimizer", optimizer)
    made.method.kept.update(optimizer.template(list(model.parameters()), [], hyper))
    return train(made, copy.deepcopy(model), Order(round, (0,), params, hyper), 0, kept or {})


def torchs(model, data, hyper, optimiser, round=1):
    """The same mini-batches, as one would write it."""
    for index in minibatches(site(data), Order(round, (0,), {}, hyper), 0):
        optimiser.zero_grad()
        cross_entropy(model(data.inputs[index]), data.targets[index]).backward()
        if hyper.clip_gradient:
            nn.utils.clip_grad_norm_(model.parameters(), hyper.clip_gradient)
        optimiser.step()


def assert_equal(update, model):
    """In float64; clip_grad_norm_ divides by the norm + 1e-6, of a norm of about 1."""
    for name, value in model.state_dict().items():
        torch.testing.assert_close(update.params[name], value, rtol=0, atol=1e-6)


@pytest.mark.parametrize("clip", [0.0, 0.05])
@pytest.mark.parametrize(("momentum", "nesterov", "decay"), [(0, False, 0.1), (0.9, True, 0.0), (0.9, False, 0.1)])
@pytest.mark.parametrize("keep", [False, True])
def test_sgd_with_all_that_belongs_to_it(momentum, nesterov, decay, clip, keep):
    model, data, params = problem()
    hyper = Hyper(0.1, 7, 16, momentum, weight_decay=decay, clip_gradient=clip)
    update, kept = ours(model, data, params, hyper, ClientOptimizer(None, nesterov, keep))
    slow = copy.deepcopy(model)
    torchs(
        slow, data, hyper,
        torch.optim.SGD(slow.parameters(), lr=0.1, momentum=momentum, nesterov=nesterov, weight_decay=decay),
    )  # fmt: skip
    assert_equal(update, slow)
    assert (STATE in kept) == keep


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad])
def test_an_optimizer_of_torchs_own_and_its_state_over_two_rounds(make):
    """Kept, it goes on as if there had been no end of a round; anew, it does not."""
    model, data, params = problem()
    hyper = Hyper(0.01, 5, 16, weight_decay=0.01)
    slow = copy.deepcopy(model)
    optimiser = make(slow.parameters(), lr=0.01, weight_decay=0.01)
    fresh = None
    for keep in (True, False):
        update, kept = ours(model, data, params, hyper, ClientOptimizer(make, keep=keep))
        assert bool(kept) == keep
        if keep:
            torchs(slow, data, hyper, optimiser)
            assert_equal(update, slow)
        again, _ = ours(model, data, update.params, hyper, ClientOptimizer(make, keep=keep), kept, round=2)
        if keep:
            torchs(slow, data, hyper, optimiser, round=2)
            assert_equal(again, slow)
        fresh = again.params
    assert any(not torch.equal(fresh[name], value) for name, value in slow.state_dict().items())


def clients():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(60, 3, generator=g)
    return [(x[c::3], (x[c::3, c] > 0).long()) for c in range(3)]


def trained(**more):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    return federate(model, clients(), **{"rounds": 4, "method": "FA", "engine": "serial", **more})


@pytest.mark.parametrize("optimizer", ["adam", lambda weights, lr: torch.optim.Adam(weights, lr=lr)])
def test_the_rate_that_is_asked_for_is_that_of_the_optimizer_that_is_asked_for(optimizer):
    assert [trained(optimizer=optimizer, rounds=1, **lr).rounds[0].hyper["lr"] for lr in ({}, {"lr": 0.01})] == [
        1e-3,
        0.01,
    ]


@pytest.mark.parametrize("method", ["FA", "FA+RM", "FA+RM+AH", "FedDyn"])
def test_other_methods_have_it_and_resume(method, tmp_path):
    """theta_i is stepped by the same optimizer, and its state is kept along."""
    settings = {"method": method, "optimizer": "adam", "optimizer_state": "kept"}
    whole = trained(**settings)
    assert whole.settings.lr == 0.001
    trained(**settings, rounds=2, folder=tmp_path / "run")
    text = (tmp_path / "run" / "settings.toml").read_text().replace("rounds = 2", "rounds = 4")
    (tmp_path / "run" / "settings.toml").write_text(text)
    assert params_sha256(trained(**settings, folder=tmp_path / "run").state.params) == params_sha256(whole.state.params)


def test_a_function_of_ones_own_and_processes_give_the_same_bits():
    def mine(weights, lr):
        return torch.optim.Adam(weights, lr=lr, betas=(0.5, 0.9))

    settings = {"optimizer": mine, "optimizer_state": "kept", "lr": 0.01, "method": "FA+RM"}
    one, two = trained(**settings), trained(**settings, engine="pool", workers=2)
    assert params_sha256(one.state.params) == params_sha256(two.state.params)
    assert one.settings.optimizer == "own"
    named = trained(**{**settings, "optimizer": "adam"})
    assert params_sha256(named.state.params) != params_sha256(one.state.params)


def test_what_is_no_optimizer_is_told():
    with pytest.raises(SettingsError, match=r"optimizer = adom: there is none of that name; there are .*adam"):
        trained(optimizer="adom")
    with pytest.raises(SettingsError, match=r"optimizer gives a list, expected a torch.optim.Optimizer"):
        trained(optimizer=lambda weights, lr: list(weights))
    with pytest.raises(TaskError, match="client 0, round 1: training failed: TypeError"):
        trained(optimizer=torch.optim.LBFGS)
    with pytest.raises(SettingsError, match="optimizer: cannot be made: KeyError: 'no'"):
        trained(optimizer=lambda weights, lr: {}["no"])
    with pytest.raises(SettingsError, match="momentum and nesterov are SGD's"):
        trained(optimizer="adam", momentum=0.9)
    with pytest.raises(SettingsError, match="there is no momentum"):
        trained(nesterov=True)
    with pytest.raises(SettingsError, match="engine = stacked: the clients step by an optimizer of torch's"):
        trained(optimizer="adam", engine="stacked")


def test_weight_decay_is_the_optimizers_own_unless_it_is_set():
    """AdamW's is 0.01; Adam has none."""
    weights = [nn.Parameter(torch.ones(2))]
    own = {make: ClientOptimizer(make).made(weights, [], Hyper(lr=0.1, steps=1)).defaults["weight_decay"] for make in (
        torch.optim.Adam, torch.optim.AdamW)}  # fmt: skip
    assert list(own.values()) == [0, 0.01]
    said = ClientOptimizer(torch.optim.AdamW).made(weights, [], Hyper(lr=0.1, steps=1, weight_decay=0.5))
    assert said.defaults["weight_decay"] == 0.5


@pytest.mark.parametrize("given", [None, torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)])
def test_an_optimizer_is_a_name_or_a_function(given):
    with pytest.raises(SettingsError, match=r"optimizer: expected a name or a function \(weights, lr=rate\)"):
        trained(optimizer=given)


def test_what_the_command_line_says_wins_over_the_task(monkeypatch):
    own = replace(PRESETS["digits"], optimizer="adam", travels=lambda name, tensor: "bias" not in name)
    assert (own.resolved().optimizer, own.resolved().travels) == ("adam", "own")
    parts = parts_of(own, own.resolved(method="FA"))
    assert (optimizer_of(parts).make, travels_of(parts)) == (torch.optim.Adam, own.travels)
    parts = parts_of(own, own.resolved(method="FA", optimizer="sgd", travels="all"))
    assert (optimizer_of(parts).make, travels_of(parts)) == (None, "all")


def test_what_is_trained_beside_the_model_does_not_decay():
    """Weights and theta of ones, gradients of zeros: one step of rate 0.1 and decay 0.5 leaves 0.95 and 1."""
    for optimizer in (ClientOptimizer(), ClientOptimizer(keep=True), ClientOptimizer(torch.optim.SGD)):
        own, beside = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
        descend = optimizer.begin([own], [beside], Hyper(0.1, 1, weight_decay=0.5))
        descend([torch.zeros(2), torch.zeros(2)])
        assert (own.tolist(), beside.tolist()) == (pytest.approx([0.95, 0.95]), [1, 1])


def test_a_momentum_that_a_policy_turns_on_later_finds_its_state():
    """What is declared must be kept in a round without momentum too."""
    model, data, params = problem()
    kept = {}
    for round, momentum in ((1, 0.0), (2, 0.9), (3, 0.0)):
        hyper = Hyper(0.1, 3, 16, momentum)
        _, kept = ours(model, data, params, hyper, ClientOptimizer(keep=True), kept, round)
        assert len(kept[STATE]) == 4
        assert any(bool(value.any()) for value in kept[STATE].values()) == (round > 1)


def test_a_tasks_rate_is_not_that_of_another_optimizer():
    assert PRESETS["mnist"].resolved(optimizer="adam").lr == 0.001
    assert PRESETS["mnist"].resolved(optimizer="adam", lr=0.5).lr == 0.5
    assert PRESETS["mnist"].resolved(optimizer="sgd").lr == PRESETS["mnist"].resolved().lr == 0.2


@pytest.mark.parametrize("given", [
    {"method": "FA", "weight_decay": 0.5},
    {"method": "FA+AH", "grid": "lr = 0.01, 0.1; weight_decay = 0.1, 1"},
])  # fmt: skip
def test_weight_decay_is_refused_where_the_optimizer_takes_none(given):
    x, y = torch.randn(6, 4), torch.arange(6) % 3
    with pytest.raises(SettingsError, match="weight_decay: this optimizer takes none"):
        federate(nn.Linear(4, 3), [(x, y)] * 2, rounds=1, optimizer=torch.optim.Rprop, **given)


@pytest.mark.slow
def test_what_is_kept_of_an_optimizer_has_a_place_for_theta_also_where_matching_has_no_weight():
    x, y = torch.randn(6, 4), torch.arange(6) % 3
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    history = federate(
        model, [(x, y)] * 2, method="FA+RM+AH", rounds=6, optimizer="adam", optimizer_state="kept", engine="serial",
        grid="lr = 0.001, 0.01; rm_weight = 0, 1e-4", follow=False, step_search=False,
    )  # fmt: skip
    assert {log.hyper["rm_weight"] for log in history.rounds} == {0.0, 1e-4}
