"""The methods people compare with, each against its algorithm written out on a small network in float64."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import hyper, module_with, server_chain
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.parametrizations import weight_norm

from fedaccord import config, federate
from fedaccord.client.training import minibatches
from fedaccord.core.algorithm import run_round, start
from fedaccord.core.errors import MatchingError, SettingsError
from fedaccord.core.params import read_params
from fedaccord.core.protocols import Beginning, Mean
from fedaccord.core.records import ClientUpdate, Examples, Hyper, Order
from fedaccord.data.prepare import as_stored
from fedaccord.methods.fednova import Normalised, length_of
from fedaccord.methods.registry import find
from fedaccord.runtime.build import from_task, hyper_of, simulation_of
from fedaccord.runtime.parts import Parts
from fedaccord.server.steps import with_server_steps
from fedaccord.tasks import find_task

LR, STEPS, ROUNDS, CLIENTS = 0.3, 3, 3, 5


def sites():
    """Five clients of 8 to 12 examples in three classes; the first has none of the last class."""
    draw = torch.Generator().manual_seed(3)
    shift = 2 * torch.randn(CLIENTS, 1, 4, generator=draw)
    inputs = [(torch.randn(8 + n, 4, generator=draw) + shift[n]).double() for n in range(CLIENTS)]
    targets = [torch.randint(0, 3 if n else 2, (8 + n,), generator=draw) for n in range(CLIENTS)]
    return [Examples(*each) for each in zip(inputs, targets, strict=True)]


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def setup(name, model=None, **settings):
    values = {"method": name, "clients": CLIENTS, "split": "natural", "evaluate": "clients", "lr": LR, "steps": STEPS,
              "batch_size": 4, "entropy_weight": 0.0, "engine": "serial", "rounds": ROUNDS, **settings}  # fmt: skip
    made = config.make(values)
    method = with_server_steps(find(name), made.values())
    return simulation_of(Parts(made, method, model or network(), as_stored, sites(), None, None))


def hidden(w, x):
    return torch.tanh(x @ w["0.weight"].T + w["0.bias"])


def scores(w, x):
    return hidden(w, x) @ w["2.weight"].T + w["2.bias"]


def zeros(w):
    return {name: torch.zeros_like(value) for name, value in w.items()}


class Plain:
    """Federated averaging written out; the methods below change one of its steps."""

    def __init__(self, w):
        self.w = w

    def loss(self, client, y, x, targets):
        return cross_entropy(scores(y, x), targets)

    momentum = 0.0

    def rate(self, y, slopes, first):
        return LR

    def ended(self, client, y):
        pass

    def learned(self, policy):
        """Compare with what the policy knows after the round."""

    def server(self, ends, weights):
        """`weights`: n_i / n."""
        return self.mean(ends, weights)

    def mean(self, ends, weights):
        return {name: sum(p * y[name] for p, y in zip(weights, ends.values(), strict=True)) for name in self.w}

    def round(self, batches, data):
        """`batches`: client -> the examples of each of its steps."""
        ends = {}
        for client, steps in batches.items():
            y, velocity = {name: value.clone().requires_grad_() for name, value in self.w.items()}, zeros(self.w)
            for index in (steps := list(steps)):
                loss = self.loss(client, y, data[client].inputs[index], data[client].targets[index])
                slopes = torch.autograd.grad(loss, list(y.values()), allow_unused=True, materialize_grads=True)
                slopes = dict(zip(y, slopes, strict=True))
                rate = self.rate(y, slopes, first=index is steps[0])
                velocity = {name: self.momentum * velocity[name] + slopes[name] for name in y}
                y = {name: (value - rate * velocity[name]).detach().requires_grad_() for name, value in y.items()}
            ends[client] = {name: value.detach() for name, value in y.items()}
        counts = np.array([len(data[client].targets) for client in ends])
        new = self.server(ends, (counts / counts.sum()).tolist())
        for client, y in ends.items():
            self.ended(client, y)
        self.w = new


class FedExP(Plain):
    def server(self, ends, weights):
        mean = self.mean(ends, weights)
        squares = [sum(float((y[n] - self.w[n]).square().sum()) for n in self.w) for y in ends.values()]
        short = sum(float((mean[n] - self.w[n]).square().sum()) for n in self.w)
        own = sum(p * square for p, square in zip(weights, squares, strict=True))
        self.eta = max(1.0, own / (2 * (short + 1e-3)))
        return {n: self.w[n] + self.eta * (mean[n] - self.w[n]) for n in self.w}


class FedNova(Plain):
    """Two passes with batches of 4: clients of 8, 9, 10, 11 and 12 examples make 4, 6, 6, 6 and 6 steps."""

    momentum = 0.5

    def server(self, ends, weights):
        a = [sum((1 - 0.5**k) / 0.5 for k in range(1, (4 if client == 0 else 6) + 1)) for client in ends]
        tau = sum(p * each for p, each in zip(weights, a, strict=True))
        steps = list(zip(weights, a, ends.values(), strict=True))
        return {n: self.w[n] + tau * sum(p * (y[n] - self.w[n]) / each for p, each, y in steps) for n in self.w}


class FedDyn(Plain):
    ALPHA = 0.1

    def __init__(self, w):
        super().__init__(w)
        self.h, self.g = zeros(w), {}

    def loss(self, client, y, x, targets):
        g = self.g.setdefault(client, zeros(self.w))
        linear = sum((g[n] * y[n]).sum() for n in y)
        near = sum((y[n] - self.w[n]).square().sum() for n in y)
        return super().loss(client, y, x, targets) - linear + self.ALPHA / 2 * near

    def server(self, ends, weights):
        mean = self.mean(ends, [1 / len(ends)] * len(ends))
        self.h = {n: self.h[n] - self.ALPHA * len(ends) / CLIENTS * (mean[n] - self.w[n]) for n in self.w}
        return {n: mean[n] - self.h[n] / self.ALPHA for n in self.w}

    def ended(self, client, y):
        self.g[client] = {n: self.g[client][n] - self.ALPHA * (y[n] - self.w[n]) for n in y}


class FedNTD(Plain):
    def loss(self, client, y, x, targets):
        total = 0.0
        for one, other, true in zip(scores(y, x), scores(self.w, x), targets.tolist(), strict=True):
            rest = [c for c in range(3) if c != true]
            q, q_g = (one[rest] / 2.0).softmax(0), (other[rest] / 2.0).softmax(0)
            total = total + (q_g * (q_g / q).log()).sum()
        return super().loss(client, y, x, targets) + 0.5 * 2.0**2 * total / len(targets)


class Moon(Plain):
    def __init__(self, w):
        super().__init__(w)
        self.previous = {}

    def loss(self, client, y, x, targets):
        def unit(w):
            z = hidden(w, x)
            return z / z.norm(dim=1, keepdim=True)

        near = ((unit(y) * unit(self.w)).sum(1) / 0.3).exp()
        far = ((unit(y) * unit(self.previous.get(client, self.w))).sum(1) / 0.3).exp()
        return super().loss(client, y, x, targets) - 0.7 * (near / (near + far)).log().mean()

    def ended(self, client, y):
        self.previous[client] = y


class FixedHead(Plain):
    """The head is that of the first model, whatever a client does: its gradient is never asked for."""

    def loss(self, client, y, x, targets):
        return cross_entropy(hidden(y, x) @ self.w["2.weight"].T, targets)


class FedLC(Plain):
    """Example by example, class by class; client 0 has no example of class 2."""

    def loss(self, client, y, x, targets):
        counts = [int((sites()[client].targets == c).sum()) for c in range(3)]
        total = 0.0
        for one, true in zip(scores(y, x), targets.tolist(), strict=True):
            calibrated = {c: one[c] - counts[c] ** -0.25 for c in range(3) if counts[c]}
            total = total - calibrated[true] + sum(each.exp() for each in calibrated.values()).log()
        return total / len(targets)


class FedRS(Plain):
    def loss(self, client, y, x, targets):
        has = set(sites()[client].targets.tolist())
        total = 0.0
        for one, true in zip(scores(y, x), targets.tolist(), strict=True):
            restricted = [one[c] if c in has else 0.5 * one[c] for c in range(3)]
            total = total - restricted[true] + sum(each.exp() for each in restricted).log()
        return total / len(targets)


class Fathom(Plain):
    """With gammas of 0.2 and 0.5 for rate and steps, so that three rounds change their number; alpha is 0.3."""

    def __init__(self, w):
        super().__init__(w)
        self.lr, self.steps, self.smooth, self.least = LR, float(STEPS), None, {}

    def loss(self, client, y, x, targets):
        self.client = client
        return super().loss(client, y, x, targets)

    def rate(self, y, slopes, first):
        g = torch.cat([slopes[name].flatten() for name in y])
        if first:
            self.total, self.least[self.client] = torch.zeros_like(g), 1.0
        else:
            cosine = float(self.total @ g / (self.total.norm() * g.norm()))
            self.least[self.client] = min(self.least[self.client], cosine)
        self.total = self.total + g
        return self.lr

    def server(self, ends, weights):
        mean = self.mean(ends, weights)
        step = torch.cat([(mean[n] - self.w[n]).flatten() for n in mean])
        before = torch.zeros_like(step) if self.smooth is None else self.smooth
        N = -float(step @ before / (step.norm() * before.norm())) if self.smooth is not None else 0.0
        G = -sum(p * self.least[client] for p, client in zip(weights, ends, strict=True))
        self.smooth = 0.3 * before + 0.7 * step
        self.lr, self.steps = self.lr * np.exp(-0.2 * N), self.steps * np.exp(-0.5 * (N + G))
        return mean

    def learned(self, policy):
        assert policy == pytest.approx({"lr": self.lr, "steps": self.steps}, rel=1e-7)  # logged with nine digits


class DeltaSGD(Plain):
    """The gradient at the last weights is of the newest mini-batch, like that at the newest."""

    def loss(self, client, y, x, targets):
        self.batch = client, x, targets
        return super().loss(client, y, x, targets)

    def rate(self, y, slopes, first):
        if first:
            self.eta, self.theta = LR, 1.0
        else:
            client, x, targets = self.batch
            old = torch.autograd.grad(super().loss(client, self.before, x, targets), list(self.before.values()))
            moved = torch.cat([(y[name] - self.before[name]).detach().flatten() for name in y]).norm()
            turned = torch.cat([(slopes[n] - g).flatten() for n, g in zip(y, old, strict=True)]).norm()
            eta = min(2 * float(moved) / (2 * float(turned)), (1 + 0.1 * self.theta) ** 0.5 * self.eta)
            self.theta, self.eta = eta / self.eta, eta
        self.before = y
        return self.eta


def test_looking_back_leaves_statistics_and_dropout_as_they_are():
    """DeltaSGD with delta = 0 and a gamma that never binds keeps its rate: then it is FA, to the bit."""
    ends = []
    for name, more in (("FA", {}), ("DeltaSGD", {"delta_gamma": 1e30, "delta_growth": 0.0})):
        torch.manual_seed(2)
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.ReLU(), nn.Linear(6, 3)).double()
        ends.append(setup(name, model, lr=0.25, **more))
    for made in ends:
        made.experiment.engine.open(None)
    one, other = (run_round(made.experiment, start(made.experiment, made.params))[0].params for made in ends)
    assert one.keys() == other.keys()
    for key, value in one.items():
        assert torch.equal(value, other[key]), key


WRITTEN_OUT = {
    "FA": Plain,
    "FedExP": FedExP,
    "FedNova": FedNova,
    "FedDyn": FedDyn,
    "FedNTD": FedNTD,
    "MOON": Moon,
    "DeltaSGD": DeltaSGD,
    "FixedHead": FixedHead,
    "FedLC": FedLC,
    "FedRS": FedRS,
    "FATHOM": Fathom,
}
SETTINGS = {
    "FedNova": {"epochs": 2.0, "momentum": 0.5},
    "FedNTD": {"ntd_temperature": 2.0, "ntd_weight": 0.5},
    "MOON": {"moon_temperature": 0.3, "moon_weight": 0.7},
    "FATHOM": {
        "fathom_lr": 0.2,
        "fathom_steps": 0.5,
        "fathom_alpha": 0.3,
        "grid": "lr = 0.01..2/9 log; steps = 1..20/20",
    },
}


TOLERANCE = {"FATHOM": 1e-7}
"""What clients send reaches a policy with nine digits."""


@pytest.mark.parametrize("fraction", [1.0, 0.6])
@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_three_rounds_against_the_algorithm_written_out(name, fraction):
    made = setup(name, fraction=fraction, cohorts="random", **SETTINGS.get(name, {}))
    experiment, data = made.experiment, sites()
    experiment.engine.open(None)
    other = WRITTEN_OUT[name](dict(made.params))
    plain = Plain(read_params(network()))
    plain.momentum = other.momentum
    state = start(experiment, made.params)
    for _ in range(ROUNDS):
        before, asked = state, getattr(other, "steps", 0)
        state, log = run_round(experiment, state)
        hyper = hyper_of(made.settings, made.method).but(log.hyper)
        each = {int(n): hyper.but(client["hyper"]) for n, client in log.clients.items() if "hyper" in client}
        order = Order(state.round, tuple(log.cohort), before.params, hyper, each)
        batches = {i: minibatches(experiment.engine.site, order, i) for i in log.cohort}
        for each in (other, plain):
            each.round(batches, data)
        if name == "FATHOM":
            assert log.hyper["steps"] == int(asked + 0.5)
        other.learned(state.policy)
        for n, value in other.w.items():
            torch.testing.assert_close(state.params[n], value, rtol=TOLERANCE.get(name, 1e-9), atol=1e-11)
    apart = max(float((other.w[n] - plain.w[n]).abs().max()) for n in plain.w)
    assert (apart > 1e-4) == (name != "FA")  # the method did something that averaging does not


def test_not_true_distillation_wants_scores_of_classes():
    with pytest.raises(SettingsError, match="three classes or more"):
        find("FedNTD").parts[0].client(built(nn.Linear(4, 2)))


def test_moon_wants_something_below_the_top():
    with pytest.raises(MatchingError, match="needs a hidden layer below the top"):
        find("MOON").parts[0].client(built(nn.Linear(4, 3)))


def built(model):
    from fedaccord.core.protocols import Built

    return Built(model, torch.zeros(2, 4), config.make({"method": "FedNTD"}).values() | {"moon_temperature": 0.5})


@pytest.mark.parametrize(
    ("name", "looks"),
    [(f"{name}+AH", True) for name in ("FA", "MOON", "FedAdam")]
    + [(f"{name}+AH", False) for name in ("FedDyn", "FedExP", "FedAvgM")],
)
def test_a_method_that_sets_the_length_of_the_servers_step_is_left_alone(name, looks):
    assert find(name).stretches({"step_search": True}) == looks


def test_normalised_averaging_by_hand():
    """Two steps with momentum 0.5: weights 1 and 1.5 (Nesterov: 1.5 and 1.75). A client's step of 5 is one of 2 for
    each; buffers take the plain mean."""
    assert length_of(2, 0.5) == 2.5
    assert length_of(2, 0.5, nesterov=True) == 3.25
    assert length_of(7, 0.0) == length_of(7, 0.0, nesterov=True) == 7
    step, none = Normalised(), frozenset({"mean"})
    w, sent = {"w": torch.zeros(1), "mean": torch.zeros(1)}, {"FedNova.length": {"value": torch.tensor(2.5)}}
    update = step.transform(w, ClientUpdate(0, {"w": torch.full((1,), 5.0), "mean": torch.ones(1)}, 1, 0.1, sent), none)
    assert {name: float(value) for name, value in update.params.items()} == {"w": 2.0, "mean": 1.0}
    mean = Mean(w, update.params, {"length": {"value": torch.tensor(4.0)}}, 1, 1, none, Hyper(0.1, 1))
    assert {name: float(value) for name, value in step.apply({}, mean)[0].items()} == {"w": 8.0, "mean": 1.0}


@pytest.mark.parametrize("name", ["FedNova", "SCAFFOLD"])
@pytest.mark.parametrize("settings", [{"optimizer": "adam"}, {"optimizer_state": "kept", "momentum": 0.5}])
def test_who_counts_a_clients_steps_wants_those_that_can_be_added_up(name, settings):
    with pytest.raises(SettingsError, match=f"{name} knows what a client's steps add up to for optimizer = sgd"):
        setup(name, **settings)


@pytest.mark.parametrize("settings", [{"optimizer": "adam"}, {"momentum": 0.5}, {"weight_decay": 0.1}])
def test_a_rule_for_plain_sgd_says_so(settings):
    with pytest.raises(SettingsError, match="DeltaSGD is a rule for plain SGD"):
        setup("DeltaSGD", **settings)


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("DeltaSGD", {}, "DeltaSGD is a rule for plain SGD"),
        ("FedNova", {"optimizer_state": "kept"}, "FedNova knows what"),
        ("SCAFFOLD", {"optimizer_state": "kept"}, "SCAFFOLD knows what"),
    ],
)
def test_a_momentum_that_is_tuned_is_one(name, settings, says):
    """A grid that nobody uses changes nothing."""
    with pytest.raises(SettingsError, match=says):
        setup(f"{name}+AH", grid="momentum = 0, 0.5", **settings)
    assert setup(name, grid="momentum = 0, 0.5", **settings)


@pytest.mark.parametrize("settings", [{"clip_norm": 1.0}, {"robust": "median"}])
def test_what_moves_h_must_be_what_the_clients_did(settings):
    with pytest.raises(SettingsError, match="FedDyn: h must move by what the clients did"):
        setup("FedDyn", **settings)


def test_a_length_that_goes_by_the_clients_norms_tells_of_them_whatever_the_noise():
    with pytest.raises(SettingsError, match=r"FedExP: .* leave out dp_noise"):
        setup("FedExP", clip_norm=1.0, dp_noise=1.0)


START = {"w": torch.zeros(2)}
APART = [
    ClientUpdate(0, {"w": torch.tensor([1.0, 0.1])}, 5, 0.1),
    ClientUpdate(1, {"w": torch.tensor([-1.0, 0.1])}, 5, 0.1),
]


def test_extrapolation_is_the_same_for_any_share_of_the_mean():
    """Squares of 1.01, a mean of (0, 0.1): 1.01 / 0.02 = 50.5 times as far, and half of that for half of the step."""
    chain = server_chain(module_with(START), "FedExP", fedexp_epsilon=0.0)
    result = chain.aggregate(1, chain.start(START), APART, hyper(server_lr=1.0))
    torch.testing.assert_close(result.model.params["w"], torch.tensor([0.0, 5.05]))
    torch.testing.assert_close(result.scaled(0.5).params["w"], torch.tensor([0.0, 2.525]))
    half = chain.aggregate(1, chain.start(START), APART, hyper(server_lr=1.0), total_examples=20)
    torch.testing.assert_close(half.model.params["w"], torch.tensor([0.0, 2.525]))


def test_extrapolation_goes_by_what_enters_the_mean():
    """Steps that are cut to a tenth of their length: the number is as before, and the step a tenth."""
    norm = math.sqrt(1.01)
    chain = server_chain(module_with(START), "FedExP", fedexp_epsilon=0.0, clip_norm=norm / 10)
    result = chain.aggregate(1, chain.start(START), APART, hyper(server_lr=1.0))
    torch.testing.assert_close(result.model.params["w"], torch.tensor([0.0, 0.505]))


def test_h_goes_with_the_clients_whatever_share_of_their_step_is_taken():
    """Ten clients, two of them here, of 5 and 15 examples: h = -alpha (2 / 10) times the plain mean, (0.5, 0)."""
    sent = [ClientUpdate(0, {"w": torch.tensor([1.0, 0.0])}, 5, 0.1), ClientUpdate(1, {"w": torch.zeros(2)}, 15, 0.1)]
    chain = server_chain(module_with(START), "FedDyn")
    result = chain.aggregate(1, chain.start(START), sent, hyper(server_lr=1.0))
    for model, share in ((result.model, 1.0), (result.scaled(0.25), 0.25)):
        h = model.server["FedDyn.h"]["w"]
        torch.testing.assert_close(h, torch.tensor([-0.1 * 0.2 * 0.5, 0.0]))
        torch.testing.assert_close(model.params["w"], torch.tensor([0.5 * share, 0.0]) - h / 0.1)


def test_partial_work_counts_in_full_where_it_was_divided_by_its_own_steps():
    """Clients alike, ten steps of 1 each, of which one does two: 10 and 2 divided by 10 and 2, times their mean, 6."""
    ends = [(torch.tensor([10.0, 0.0]), 10.0, 1.0), (torch.tensor([0.0, 2.0]), 2.0, 0.2)]
    sent = [
        ClientUpdate(
            n, {"w": end}, 5, 0.1, {"FedNova.length": {"value": torch.tensor(long, dtype=torch.float64)}}, done=done
        )
        for n, (end, long, done) in enumerate(ends)
    ]
    chain = server_chain(module_with(START), "FedNova")
    result = chain.aggregate(1, chain.start(START), sent, hyper(steps=10, server_lr=1.0))
    torch.testing.assert_close(result.model.params["w"], torch.tensor([3.0, 3.0]))
    assert [each.entry().get("done") for each in result.accepted] == [None, 0.2]  # the log has what it did


def test_the_fixed_class_vectors_are_orthogonal_and_the_same_for_everyone():
    first, again, other = (setup("FixedHead", seed=seed, head_scale=2.0).params for seed in (0, 0, 1))
    torch.testing.assert_close(first["2.weight"] @ first["2.weight"].T, 4 * torch.eye(3, dtype=torch.float64))
    assert torch.equal(first["2.weight"], again["2.weight"])
    assert not first["2.bias"].any()
    assert not torch.allclose(first["2.weight"], other["2.weight"])
    assert torch.equal(first["0.weight"], read_params(network())["0.weight"])
    drawn = setup("FixedHead", init="he", travels="trainable")
    assert set(drawn.params) == {"0.weight", "0.bias"}  # the head is not sent
    assert not torch.equal(drawn.params["0.weight"], first["0.weight"])


def tied():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    return model


@pytest.mark.parametrize(
    ("model", "layer", "says"),
    [
        (nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 3)), "", "3 classes have no orthogonal vectors in 2 dimensions"),
        (nn.Sequential(nn.Conv1d(4, 2, 1)), "", "there is no such layer$"),
        (nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 3)), "head", "there is no head; there are 0, 1"),
        (nn.Sequential(nn.Linear(4, 2), nn.LazyLinear(3)), "", "has no size yet"),
        (nn.Linear(4, 3), "", "nothing below the last layer"),
        (tied(), "", "0.weight and 1.weight are one tensor"),
        (nn.Sequential(nn.Linear(4, 4), weight_norm(nn.Linear(4, 3))), "", "weight is computed from others"),
    ],
)
def test_a_head_that_cannot_be_fixed_is_one_clear_line(model, layer, says):
    with pytest.raises(SettingsError, match=f"FixedHead: .*{says}"):
        find("FixedHead").prepare(model, {"seed": 0, "head_scale": 1.0, "head_layer": layer})


@pytest.mark.parametrize("name", ["FedLC", "FedRS"])
def test_calibration_wants_class_numbers_and_scores_of_classes(name):
    with pytest.raises(SettingsError, match=f"{name} corrects scores of classes"):
        find(name).parts[0].client(built(nn.Unflatten(1, (2, 2))))
    part = find(name).parts[0].client(built(nn.Linear(4, 3)))
    for data in (None, Examples(torch.zeros(2, 4), torch.zeros(2))):
        with pytest.raises(SettingsError, match=f"{name} counts a client's labels"):
            part.begin(Beginning(None, {}, Hyper(0.1, 1), {}, {}, 1, 0, 0, data))


def test_a_client_with_one_class_learns_nothing_from_calibrated_scores():
    """Softmax over one class: the loss is zero whatever the scores, so with the plain one taken out none is left."""
    data = Examples(torch.randn(6, 4), torch.ones(6, dtype=torch.int64))
    part = find("FedLC").parts[0].client(built(nn.Linear(4, 3)))
    work = part.begin(Beginning(None, {}, Hyper(0.1, 1, own={"fedlc_tau": 1.0}), {}, {}, 1, 0, 0, data))
    output = torch.randn(6, 3, requires_grad=True)
    loss = cross_entropy(output, data.targets) + work.term(data.inputs, output, data.targets)
    assert float(loss.detach()) == pytest.approx(0, abs=1e-6)
    torch.testing.assert_close(torch.autograd.grad(loss, output)[0], torch.zeros(6, 3))


@pytest.mark.parametrize("name", ["FedLC", "FedRS", "FA"])
def test_clients_with_one_class_are_told_of_where_scores_are_corrected(name):
    """Two of three have one class; a client without examples has none."""
    method = find(name)
    counts = np.array([[5, 0, 0], [0, 0, 7], [1, 1, 0], [0, 0, 0]])
    said = [f"{name} cannot teach a client with a single class to tell it from others, and 2 of 4 have one"]
    assert method.remarks(counts) == ([] if name == "FA" else said)
    assert method.remarks(counts[2:]) == method.remarks(None) == []
    task = find_task("digits")
    told = from_task(task, task.resolved(method=name, split="non-iid", engine="serial")).remarks
    assert any("10 of 10 have one" in each for each in told) == (name != "FA")


@pytest.mark.parametrize("more", ["+RM", "+AH", "+RM+AH"])
@pytest.mark.parametrize("name", ["FedNova", "FixedHead", "FedLC", "FedRS"])
def test_the_others_can_be_joined(name, more):
    made = setup(name + more)
    made.experiment.engine.open(None)
    state = start(made.experiment, made.params)
    for _ in range(2):
        state, log = run_round(made.experiment, state)
        assert len(log.clients) == CLIENTS


def test_a_rule_for_rate_and_steps_has_clear_limits():
    with pytest.raises(SettingsError, match="FATHOM has a rule for lr and steps, and none for momentum"):
        setup("FATHOM", grid="lr = 0.1, 0.2; momentum = 0.1, 0.2")
    with pytest.raises(SettingsError, match="two of its parts choose the hyper-parameters"):
        setup("FATHOM+AH")
    policy = setup("FATHOM", grid="lr = 0.1, 0.2", start="lr = 0.1").experiment.policy
    assert policy.names == ("lr",)
    assert policy.start() == {"lr": pytest.approx(0.1)}
    seen = SimpleNamespace(method={"FATHOM.cosine": 1.0, "FATHOM.least": 1.0})
    assert policy.learn({"lr": 0.1}, seen) == {"lr": pytest.approx(0.1 * np.exp(0.01))}
    assert policy.learn({"lr": 0.2}, seen) == {"lr": 0.2}  # the end of the grid
    assert policy.learn({"lr": 0.15}, SimpleNamespace(method={})) == {"lr": 0.15}


@pytest.mark.parametrize("name", ["FedEx", "FedEx+RM", "SCAFFOLD+FedEx", "FedNova+FedEx"])
def test_clients_that_choose_for_themselves_can_be_joined_with_others(name):
    made = setup(name, grid="lr = 0.1, 0.2, 0.3; steps = 1, 2, 3")
    made.experiment.engine.open(None)
    state = start(made.experiment, made.params)
    for _ in range(3):
        before = state.policy
        state, log = run_round(made.experiment, state)
        assert len({tuple(client["hyper"].values()) for client in log.clients.values()}) > 1
    assert before["z"] != state.policy["z"]
    assert "likeliest now" in log.policy["why"]


@pytest.mark.parametrize("name", ["FedLC", "FedRS"])
def test_calibration_is_refused_where_the_task_has_a_loss_of_its_own(name):
    """It would take the plain cross-entropy off a loss that does not have it."""
    x, y = torch.randn(6, 4), torch.arange(6) % 3
    with pytest.raises(SettingsError, match=f"{name} replaces the clients' cross-entropy, and this task has a loss"):
        federate(nn.Linear(4, 3), [(x, y)] * 2, method=name, rounds=1, loss=nn.CrossEntropyLoss(label_smoothing=0.1))


def test_a_clipped_step_is_clipped_whatever_the_momentum():
    """WD's pull joins the gradient before that is cut: a momentum of next to nothing makes no difference."""
    ends = []
    for momentum in (0.0, 1e-9):
        x, y = torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3
        model = nn.Linear(4, 3)
        nn.init.ones_(model.weight)
        nn.init.zeros_(model.bias)
        history = federate(
            model, [(x, y)], method="FA+WD", rounds=1, lr=0.1, steps=5, wd_weight=2.0, clip_gradient=0.01,
            momentum=momentum, engine="serial",
        )  # fmt: skip
        ends.append(history.state.params["weight"])
    assert torch.allclose(*ends, rtol=0, atol=1e-6)  # 5 steps of 0.1 * 0.01; weights of 1 are rounded by 6e-8
    assert (ends[0] - 1).norm() < 5 * 0.1 * 0.01 + 1e-6
