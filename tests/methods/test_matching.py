"""Eq. 1 against an independent NumPy computation, finite differences, and models of every kind."""

import copy
import math

import numpy as np
import pytest
import torch
from helpers import client_side, hyper
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

from fedaccord.client.training import Site, minibatches, train
from fedaccord.core.errors import MatchingError
from fedaccord.core.records import Examples, Order
from fedaccord.data.prepare import as_stored
from fedaccord.methods.matching.activations import Pooling, record
from fedaccord.methods.matching.layers import Matching, undo
from fedaccord.objectives import classification


def paper_example():
    """One convolution and two dense layers, as in the paper's illustration: 1x6x6 -> 2x3x3 -> 5 -> 3."""
    return nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(18, 5),
        nn.ReLU(),
        nn.Linear(5, 3),
    )


def randomise(module, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator) * 0.5)
    return module


def conv_by_hand(x, weight, bias):
    """(batch, in, h, w), zero padding to the same size: four loops and a sum."""
    k = weight.shape[2] // 2
    padded = np.pad(x, ((0, 0), (0, 0), (k, k), (k, k)))
    out = np.zeros((len(x), len(weight), *x.shape[2:]))
    for n, o, i, j in np.ndindex(out.shape):
        out[n, o, i, j] = (padded[n, :, i : i + 2 * k + 1, j : j + 2 * k + 1] * weight[o]).sum() + bias[o]
    return out


def forward_by_hand(x, w):
    """The activations a_1 ... a_4 and the (row, column) that each pooled value came from."""
    full = conv_by_hand(x, w["0.weight"], w["0.bias"])
    pooled, where = np.zeros((len(x), 2, 3, 3)), {}
    for n, c, i, j in np.ndindex(pooled.shape):
        window = full[n, c, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2]
        row, column = divmod(int(window.argmax()), 2)
        where[n, c, i, j] = (2 * i + row, 2 * j + column)
        pooled[n, c, i, j] = window[row, column]
    a2 = np.maximum(pooled, 0)
    a3 = np.maximum(a2.reshape(len(x), -1) @ w["4.weight"].T + w["4.bias"], 0)
    return [x, a2, a3, a3 @ w["6.weight"].T + w["6.bias"]], where


def eq_1_by_hand(x, w_i, w, theta):
    trained, where = forward_by_hand(x, w_i)
    frozen, _ = forward_by_hand(x, w)
    unpooled = np.zeros((len(x), 2, 6, 6))
    for (n, c, i, j), (row, column) in where.items():
        unpooled[n, c, row, column] = trained[1][n, c, i, j]
    rebuilt_input = conv_by_hand(unpooled, theta["f.0.layer.weight"], theta["f.0.layer.bias"])
    rebuilt_conv = np.maximum(trained[2] @ theta["f.1.layer.weight"].T + theta["f.1.layer.bias"], 0).reshape(
        -1, 2, 3, 3
    )
    rebuilt_dense = np.maximum(trained[3] @ theta["f.2.layer.weight"].T + theta["f.2.layer.bias"], 0)
    pairs = zip((rebuilt_input, rebuilt_conv, rebuilt_dense), frozen, strict=False)
    return sum(((rebuilt - target) ** 2).sum() for rebuilt, target in pairs) / len(x)


def as_numpy(module):
    return {name: value.numpy() for name, value in module.state_dict().items()}


def test_eq_1_against_numpy():
    """Sums of some hundred float64 terms of about the same size: some hundred times 2^-53, a few 1e-14."""
    trained, frozen = randomise(paper_example(), 1).double(), randomise(paper_example(), 2).double()
    x = torch.randn(5, 1, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    matching = randomise(Matching(frozen, x), 4).double()
    with torch.no_grad():
        loss = matching.loss(record(trained, x)[1], record(frozen, x, positions=False)[1])
    assert float(loss) == pytest.approx(eq_1_by_hand(x.numpy(), *map(as_numpy, (trained, frozen, matching))), rel=1e-12)


def test_a_sub_batch_is_eq_1_of_its_first_examples():
    trained, frozen = randomise(paper_example(), 1).double(), randomise(paper_example(), 2).double()
    x = torch.randn(5, 1, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    matching = randomise(Matching(frozen, x), 4).double()
    with torch.no_grad():
        loss = matching.loss(record(trained, x)[1], record(frozen, x[:2], positions=False)[1])
    expected = eq_1_by_hand(x[:2].numpy(), *map(as_numpy, (trained, frozen, matching)))
    assert float(loss) == pytest.approx(expected, rel=1e-12)


def theta(loss_of):
    return [weight for part in loss_of.trained for weight in part.parameters()]


def order_of(model, **own):
    return Order(1, (0,), {k: v.clone() for k, v in model.state_dict().items()}, hyper(**own))


def begin(side, model, order, client=0, kept=None):
    """One client at the beginning of its round: its loss."""
    return side.begin(classification, model, order, order.hyper, client, 0, kept or {})


def test_gradients_against_finite_differences_in_float64():
    """Of the whole of Eq. 2, in every weight of the trainable model and of theta."""
    model = randomise(paper_example(), 1).double()
    x = torch.randn(3, 1, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    y = torch.tensor([0, 1, 2])
    order = order_of(model, rm_weight=0.01, entropy_min=1.0, entropy_weight=1.0)
    loss_of = begin(client_side(model, x, "FA+RM", rm_step=0.0), model, order)
    randomise(model, 5)  # away from the received weights
    weights = [*model.parameters(), *theta(loss_of)]
    gradients = torch.autograd.grad(loss_of(x, y), weights)
    step = 1e-6
    for weight, gradient in zip(weights, gradients, strict=True):
        flat = weight.detach().reshape(-1)
        for position in range(0, len(flat), max(1, len(flat) // 5)):
            kept = float(flat[position])
            sides = []
            for value in (kept + step, kept - step):
                flat[position] = value
                sides.append(float(loss_of(x, y).detach()))
            flat[position] = kept
            assert float(gradient.reshape(-1)[position]) == pytest.approx(
                (sides[0] - sides[1]) / (2 * step), rel=1e-4, abs=1e-7
            )


@pytest.mark.parametrize("weight", [1e-4, 0.1])
def test_theta_has_a_step_of_its_own_and_the_model_that_of_eq_2(weight):
    """Its gradients have the direction that Eq. 2 gives them, and a root mean square of rm_step, for any rm_weight."""
    found = []
    for step in (0.0, 0.03):
        model = randomise(paper_example(), 1).double()
        x = torch.randn(3, 1, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
        order = order_of(model, rm_weight=weight, entropy_min=1.0, entropy_weight=1.0)
        loss_of = begin(client_side(model, x, "FA+RM", rm_step=step), model, order)
        randomise(model, 5)
        loss = loss_of(x, torch.tensor([0, 1, 2]))
        found.append(
            [torch.autograd.grad(loss, each, retain_graph=True) for each in ([*model.parameters()], theta(loss_of))]
        )
    (model_as_printed, theta_as_printed), (model_here, theta_here) = found
    for printed, here in zip(model_as_printed, model_here, strict=True):
        torch.testing.assert_close(here, printed)
    for printed, here in zip(theta_as_printed, theta_here, strict=True):
        torch.testing.assert_close(here, 0.03 * printed / printed.square().mean().sqrt())


def test_the_frozen_copy_gets_no_gradient_stays_in_eval_mode_and_holds_what_was_received():
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    x, y = torch.randn(8, 4), torch.randint(0, 3, (8,))
    order = order_of(model, rm_weight=0.1)
    loss_of = begin(client_side(model, x, "FA+RM"), model.train(), order)
    loss_of(x, y).backward()
    (frozen,) = loss_of.shared
    assert not frozen.training
    assert all(weight.grad is None and not weight.requires_grad for weight in frozen.parameters())
    assert all(torch.equal(value, order.params[name]) for name, value in frozen.state_dict().items())
    assert all(weight.grad is not None and weight.grad.any() for weight in theta(loss_of))


@pytest.mark.parametrize("set_to", [0.0, 0.1])
def test_weight_zero_is_fa(set_to):
    """Where only a round has it, as with a grid that holds 0, theta_i stays with what the optimizer keeps of it."""
    model = paper_example()
    x, y = torch.randn(2, 1, 6, 6), torch.tensor([0, 2])
    order = order_of(model, rm_weight=0.0)
    loss_of = begin(client_side(model, x, "FA+RM", rm_weight=set_to), model, order)
    assert len(loss_of.trained) == (set_to > 0)
    assert torch.equal(loss_of(x, y), begin(client_side(model, x, "FA"), model, order)(x, y))


def test_theta_starts_differently_for_each_client_and_is_taken_up_again():
    model = paper_example()
    order, side = order_of(model, rm_weight=0.1), client_side(model, torch.randn(2, 1, 6, 6), "FA+RM")

    def theta_of(client, kept=None):
        sent, keeps = begin(side, model, order, client, kept).finish(order.params)
        assert sent == {}
        return keeps["RM.theta"]

    first, other, again = theta_of(0), theta_of(1), theta_of(0)
    kept = theta_of(5, {"RM.theta": first})
    assert all(torch.equal(first[name], again[name]) and torch.equal(first[name], kept[name]) for name in first)
    assert not torch.equal(first["f.0.layer.weight"], other["f.0.layer.weight"])


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_weight_divergence_equals_autograd_on_the_penalised_loss(momentum):
    """Three steps of FA+WD against torch.optim.SGD on cross-entropy + wd_weight * ||w_t - w_t^i||^2, in float64."""
    model = randomise(nn.Linear(3, 2), 1).double()
    g = torch.Generator().manual_seed(0)
    data = Examples(torch.randn(6, 3, generator=g).double(), torch.tensor([0, 1, 0, 1, 1, 0]))
    received = {k: v.clone() for k, v in model.state_dict().items()}
    order = Order(1, (0,), received, hyper(0.1, 3, batch_size=6, wd_weight=2.0, momentum=momentum))
    side = client_side(model, data.inputs[:2], "FA+WD")
    site = Site(model, side, [data], as_stored, classification, cross_entropy, seed=0)
    update, _ = train(site, copy.deepcopy(model), order, 0, {})

    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    for index in minibatches(site, order, 0):
        optimiser.zero_grad()
        apart = sum((weight - received[name]).square().sum() for name, weight in model.named_parameters())
        (cross_entropy(model(data.inputs[index]), data.targets[index]) + 2.0 * apart).backward()
        optimiser.step()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(update.params[name], value)


def test_unpooling_puts_every_value_where_it_came_from():
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    pooled, positions = nn.functional.max_pool2d(x, 2, return_indices=True)
    back = undo(Pooling(x.shape, pooled.shape, positions), pooled)
    kept = back != 0
    assert torch.equal(back[kept], x[kept])
    assert int(kept.sum()) == pooled.numel()
    assert torch.equal(back, nn.functional.max_unpool2d(pooled, positions, 2))


def test_an_early_pooling_is_undone_at_each_examples_own_positions():
    """conv -> ReLU -> pool: the rebuilt picture is zero but at the places that its own example's pooling took."""
    layers = [nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 8, 3, padding=1), nn.ReLU()]
    model, x = nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 9, 2)), torch.randn(2, 1, 8, 8)
    matching = Matching(model, x)
    _, events = record(model, x)
    (pooling,) = [event for event in events if isinstance(event, Pooling)]
    ones = torch.ones(2, 4, 3, 3)
    places = nn.functional.max_unpool2d(ones, pooling.positions, 2, output_size=(6, 6)) > 0
    assert not torch.equal(places[0], places[1])
    assert torch.equal(undo(pooling, ones) > 0, places)
    assert matching.f[1].early == 1


def test_poolings_are_undone_where_they_came_from_in_both_block_orders():
    """conv -> pool -> ReLU unpools the upper layer; conv -> ReLU -> pool unpools what the convolution rebuilt."""
    for layers, early in (
        ([nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 8, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()], 0),
        ([nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 8, 3, padding=1), nn.ReLU()], 1),
    ):
        model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 9, 2))
        x = torch.randn(2, 1, 8, 8)
        matching = Matching(model, x)
        assert (matching.f[1].form, matching.f[1].early) == ("conv", early)
        _, events = record(model, x)
        between = [event for event in events if isinstance(event, Pooling)]
        above = next(event.value for event in events if getattr(event, "name", "") == "relu#2")
        below = next(event.value for event in events if getattr(event, "name", "") == "relu#1")
        rebuilt = matching.f[1](above, between, below)
        assert rebuilt.shape == below.shape
        if early:  # only the positions that the pooling chose are filled
            assert int((rebuilt != 0).sum()) <= below.numel() // 4


def test_a_model_that_runs_other_layers_than_before_is_an_error():
    class Moody(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.deep = nn.Linear(3, 3), nn.Linear(3, 3), False

        def forward(self, x):
            x = self.a(x).relu()
            return self.b(x.relu() if self.deep else x)

    model = Moody()
    matching = Matching(model, torch.randn(2, 3))
    model.deep = True
    _, events = record(model, torch.randn(2, 3))
    with pytest.raises(MatchingError, match="other layers"):
        matching.loss(events, events)


@st.composite
def stacks(draw):
    """Random stacks of convolutions, strides, poolings of both kinds and both orders, then dense layers."""
    channels, size = draw(st.integers(1, 3)), draw(st.sampled_from([8, 11, 16]))
    shape, layers = (channels, size, size), []
    for _ in range(draw(st.integers(0, 3))):
        out, kernel, stride = (
            draw(st.integers(1, 6)),
            draw(st.sampled_from([1, 2, 3, 5])),
            draw(st.sampled_from([1, 1, 2])),
        )
        act = draw(st.sampled_from([nn.ReLU, nn.Tanh, nn.GELU]))()
        pool = draw(st.sampled_from([None, None, nn.MaxPool2d(2), nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(2)]))
        body = [nn.Conv2d(channels, out, kernel, stride, padding=kernel // 2)]
        if draw(st.booleans()):
            body.append(nn.BatchNorm2d(out))
        if size // stride < 4:
            pool = None
        order = [pool, act] if draw(st.booleans()) else [act, pool]
        body += [layer for layer in order if layer is not None]
        if pool is not None and draw(st.booleans()) and size // stride >= 8:
            body.append(nn.MaxPool2d(2))  # two poolings in a row
        layers += body
        channels = out
        size = nn.Sequential(*layers).eval()(torch.zeros(1, *shape)).shape[-1]
    if draw(st.booleans()):
        layers.append(nn.AdaptiveAvgPool2d(1))
        size = 1
    layers.append(nn.Flatten())
    width = channels * size * size
    for _ in range(draw(st.integers(1, 2))):
        hidden = draw(st.integers(2, 9))
        layers += [nn.Linear(width, hidden), nn.ReLU()]
        width = hidden
    return nn.Sequential(*layers, nn.Linear(width, 4)), shape


@pytest.mark.slow
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(stacks(), st.sampled_from([0, 3]), st.sampled_from([0, 2]))
def test_any_stack_builds_and_runs_backward(stack, kernel, batch):
    model, shape = stack
    x, y = torch.randn(3, *shape), torch.tensor([0, 1, 3])
    side = client_side(model, x, "FA+RM", rm_kernel=kernel, rm_batch=batch)
    loss_of = begin(side, model.train(), order_of(model, rm_weight=1e-3))
    loss = loss_of(x, y)
    gradients = torch.autograd.grad(loss, [*model.parameters(), *theta(loss_of)], allow_unused=True)
    assert math.isfinite(float(loss.detach()))
    assert all(gradient is not None for gradient in gradients)


def test_a_frozen_copy_costs_no_graph():
    model = paper_example()
    x = torch.randn(2, 1, 6, 6)
    with torch.no_grad():
        _, events = record(copy.deepcopy(model), x, positions=False)
    assert all(not event.value.requires_grad for event in events if hasattr(event, "value"))
    assert not any(isinstance(event, Pooling) and event.positions is not None for event in events)


def conv_net(*layers, size=8, out=4):
    """A convolution, whatever is to be tried, then a dense head that fits."""
    body = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), *layers)
    width = body.eval()(torch.zeros(1, 1, size, size)).numel()
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(width, 6), nn.ReLU(), nn.Linear(6, out))


def test_gradients_with_overlapping_pooling_against_finite_differences():
    """Two windows may take the same position; what is put back there is the mean of both, and so is the gradient."""
    x = torch.randn(2, 3, 7, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    pooled, positions = nn.functional.max_pool2d(x, 3, 2, 1, return_indices=True)
    pooling = Pooling(x.shape, pooled.shape, positions, overlapping=True)
    values = torch.randn(
        pooled.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True
    )
    assert torch.autograd.gradcheck(lambda v: undo(pooling, v), values)
    assert torch.equal(undo(pooling, pooled)[undo(pooling, pooled) != 0], x[undo(pooling, pooled) != 0])
    model = conv_net(nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Conv2d(3, 3, 3, padding=1), nn.ReLU())
    _, events = record(model, torch.randn(2, 1, 8, 8))
    assert [event.overlapping for event in events if isinstance(event, Pooling)] == [True]


@pytest.mark.parametrize(
    ("kernel", "stride", "dilation"), [(2, 2, 1), (3, 2, 1), (2, 2, 2), (2, 2, 3), (3, 6, 2), (2, 1, 1)]
)
def test_windows_overlap_where_two_of_them_take_the_same_position(kernel, stride, dilation):
    """Counted along one axis: the positions of all windows, and how many of them are different."""
    taken = [start + dilation * place for start in range(0, 60, stride) for place in range(kernel)]
    layers = nn.MaxPool2d(kernel, stride, dilation=dilation), nn.Conv2d(3, 3, 3, padding=1), nn.ReLU()
    _, events = record(conv_net(nn.ReLU(), *layers, size=12), torch.randn(2, 1, 12, 12))
    (pooling,) = [event for event in events if isinstance(event, Pooling)]
    assert pooling.overlapping == (len(set(taken)) < len(taken))


class ChannelNorm(nn.Module):
    """A hand-written norm over the channels: its mean is no pooling."""

    def forward(self, x):
        return x - x.mean(1, keepdim=True)


class SequenceFirst(nn.Module):
    """torch's default order for transformers: (tokens, batch, features)."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(4, 8)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), 2, enable_nested_tensor=False
        )
        self.head = nn.Linear(8, 4)

    def forward(self, x):  # (batch, 1, 8, 8) -> 16 tokens of 4 values
        return self.head(self.encoder(self.embed(x.reshape(len(x), 16, 4)).transpose(0, 1)).mean(0))


class ChannelsLast(nn.Module):
    """A ConvNeXt-like block: linear layers on (batch, h, w, channels)."""

    def __init__(self):
        super().__init__()
        self.stem, self.wide, self.narrow = nn.Conv2d(1, 4, 2, 2), nn.Linear(4, 16), nn.Linear(16, 4)
        self.head = nn.Linear(4, 4)

    def forward(self, x):
        x = self.stem(x).permute(0, 2, 3, 1)
        x = x + self.narrow(nn.functional.gelu(self.wide(x)))
        x = x + self.narrow(nn.functional.gelu(self.wide(x)))
        return self.head(x.mean((1, 2)))


class Dense(nn.Module):
    """Concatenation of all that came before."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 3, 3, padding=1), nn.Conv2d(4, 3, 3, padding=1)
        self.head, self.unused = nn.Linear(7, 4), nn.Linear(2, 2)

    def forward(self, x):
        x = torch.cat([x, self.a(x).relu()], 1)
        x = torch.cat([x, self.b(x).relu()], 1)
        return self.head(nn.functional.adaptive_avg_pool2d(input=x, output_size=1).flatten(1))


class SqueezeExcite(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.down, self.up, self.head = (
            nn.Conv2d(1, 6, 3),
            nn.Conv2d(6, 2, 1),
            nn.Conv2d(2, 6, 1),
            nn.Linear(6, 4),
        )

    def forward(self, x):
        x = nn.functional.relu(self.conv(x), inplace=True)
        gate = self.up(self.down(nn.functional.adaptive_avg_pool2d(x, 1)).relu()).sigmoid()
        return self.head((x * gate).mean((2, 3)))


class Tokens(nn.Module):
    """An in-place non-linearity above a sequence."""

    def __init__(self):
        super().__init__()
        self.mix, self.head = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x):
        return self.head(nn.functional.relu_(self.mix(x[:, 0])).mean(1))


ODD = {
    "channel norm": lambda: conv_net(ChannelNorm(), nn.ReLU()),
    "sequence first": SequenceFirst,
    "channels last": ChannelsLast,
    "dense": Dense,
    "squeeze-excite": SqueezeExcite,
    "tokens": Tokens,
    "groups and dilation": lambda: conv_net(nn.ReLU(), nn.Conv2d(3, 6, 3, groups=3, dilation=2), nn.SiLU()),
    "indices asked for": lambda: conv_net(
        nn.ReLU(), First(nn.MaxPool2d(2, return_indices=True)), nn.Conv2d(3, 3, 1), nn.ReLU()
    ),
    "adaptive max": lambda: conv_net(nn.AdaptiveMaxPool2d(3), nn.ReLU()),
    "ceil mode": lambda: conv_net(nn.ReLU(), nn.MaxPool2d(3, ceil_mode=True), nn.Conv2d(3, 2, 3, padding=1), nn.Tanh()),
    "prelu": lambda: conv_net(nn.PReLU(3), nn.AvgPool2d(2), nn.Conv2d(3, 2, 1), nn.PReLU()),
}


class First(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)[0]


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("batch", [0, 2])
def test_odd_models_match_and_run_backward(name, batch):
    model = ODD[name]().double()
    x = torch.randn(16, 1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    side = client_side(model, x[:2], "FA+RM", rm_batch=batch)
    loss_of = begin(side, model.train(), order_of(model, rm_weight=1e-3))
    loss = loss_of(x, torch.arange(16) % 4)
    weights = [weight for label, weight in model.named_parameters() if "unused" not in label]
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(loss, [*weights, *theta(loss_of)]))


@pytest.mark.parametrize("name", ["channels last", "sequence first", "tokens", "squeeze-excite"])
def test_what_would_need_too_many_weights_is_averaged_over_its_positions(name, monkeypatch):
    monkeypatch.setattr("fedaccord.methods.matching.layers.LARGEST_LINEAR", 16)
    test_odd_models_match_and_run_backward(name, batch=0)


def test_a_model_without_a_tensor_of_scores_is_a_typed_error():
    class Two(nn.Module):
        def forward(self, x):
            return [str(x.relu())]

    with pytest.raises(MatchingError, match="gives a list without a tensor"):
        Matching(Two(), torch.randn(2, 3))


def test_a_client_keeps_what_it_had_if_its_round_blew_up():
    model = paper_example()
    side = client_side(model, torch.randn(2, 1, 6, 6), "FA+RM")
    order = order_of(model, rm_weight=0.1)
    _, had = begin(side, model, order).finish(order.params)
    work = begin(side, model, order, kept=had)
    with torch.no_grad():
        next(work.trained[0].parameters()).fill_(math.nan)
    assert work.finish(order.params)[1] is had
