"""P(h | mu, A) and its score: against autograd, finite differences and a slow loop.

All in float64. An exponent is 600 at most and takes some ten operations, so a probability is good to 600 * 10 * 2^-53 =
7e-13 of itself, and so is the score in A, which is below 1; that in mu is up to 400 times as large.
"""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedaccord.policy.gaussian import DiagonalGaussian, FullGaussian, gaussian
from fedaccord.policy.grid import HyperGrid

GRID = HyperGrid.parse("lr = 0.01..1/5 log; steps = 1, 2, 4, 9; momentum = 0, 0.5, 0.9")
D = 3
means = st.lists(st.floats(-0.5, 0.5), min_size=D, max_size=D).map(np.array)


@st.composite
def precisions(draw):
    """Symmetric with eigenvalues in [5, 400]."""
    seed = draw(st.integers(0, 10**6))
    rng = np.random.default_rng(seed)
    vectors, _ = np.linalg.qr(rng.normal(size=(D, D)))
    return (vectors * rng.uniform(5, 400, D)) @ vectors.T


indices = st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(0, 2))


def slow_log_p(index, mu, A):
    """Written out: every grid point in a loop."""
    axes = [axis.points for axis in GRID.axes]

    def energy(point):
        apart = np.array(point) - mu
        return -0.5 * sum(apart[i] * A[i][j] * apart[j] for i in range(D) for j in range(D))

    everything = [energy(point) for point in itertools.product(*axes)]
    top = max(everything)
    total = top + math.log(sum(math.exp(e - top) for e in everything))
    return energy([axis[i] for axis, i in zip(axes, index, strict=True)]) - total


@settings(max_examples=25)
@given(means, precisions(), indices)
def test_probabilities_sum_to_one_and_equal_a_slow_loop(mu, A, index):
    P = FullGaussian(GRID, mu, A)
    assert P.p.sum() == pytest.approx(1.0, abs=1e-12)
    assert math.log(max(P.probability(index), 1e-300)) == pytest.approx(slow_log_p(index, mu, A), abs=1e-6)


@settings(max_examples=25)
@given(means, precisions(), indices)
def test_the_score_equals_autograd(mu, A, index):
    points = torch.tensor(FullGaussian(GRID, mu, A).points)
    mu_t, A_t = torch.tensor(mu, requires_grad=True), torch.tensor(A, requires_grad=True)
    apart = points - mu_t
    log_p = torch.log_softmax(-0.5 * torch.einsum("nd,de,ne->n", apart, A_t, apart), dim=0)
    log_p[np.ravel_multi_index(index, (5, 4, 3))].backward()
    score = FullGaussian(GRID, mu, A).score(index)
    np.testing.assert_allclose(score.mu, mu_t.grad.numpy(), atol=1e-9)
    np.testing.assert_allclose(score.A, A_t.grad.numpy(), atol=1e-9)


def test_the_score_equals_finite_differences():
    mu, A, index, step = np.array([0.1, -0.2, 0.3]), np.diag([50.0, 85.0, 20.0]) + 3.0, (1, 2, 0), 1e-6
    score = FullGaussian(GRID, mu, A).score(index)
    for i in range(D):
        shift = step * np.eye(D)[i]
        slope = (slow_log_p(index, mu + shift, A) - slow_log_p(index, mu - shift, A)) / (2 * step)
        assert score.mu[i] == pytest.approx(slope, rel=1e-6)
        for j in range(D):
            bump = np.zeros((D, D))
            bump[i, j] = 1e-4
            slope = (slow_log_p(index, mu, A + bump) - slow_log_p(index, mu, A - bump)) / 2e-4
            assert score.A[i, j] == pytest.approx(slope, rel=1e-6)


@settings(max_examples=25)
@given(means, st.lists(st.floats(5, 400), min_size=D, max_size=D).map(np.array), indices)
def test_a_diagonal_precision_is_the_same_distribution_by_factors(mu, diagonal, index):
    fast, full = DiagonalGaussian(GRID, mu, diagonal), FullGaussian(GRID, mu, np.diag(diagonal))
    assert fast.probability(index) == pytest.approx(full.probability(index), rel=1e-9)
    np.testing.assert_allclose(fast.score(index).mu, full.score(index).mu, atol=1e-9)
    np.testing.assert_allclose(fast.score(index).A, np.diag(full.score(index).A), atol=1e-9)


def test_many_dimensions_need_no_product_grid():
    """8 axes of 9 values would be 43 million points."""
    names = ("lr", "steps", "batch_size", "momentum", "entropy_min", "wd_weight", "rm_weight", "server_lr")
    grid = HyperGrid.parse("; ".join(f"{name} = 1..9/9" for name in names))
    P = gaussian(grid, np.zeros(8), np.full(8, 85.0))
    assert isinstance(P, DiagonalGaussian)
    index = P.sample(np.full(8, 0.5))
    assert 0 < P.probability(index) < 1
    assert P.score(index).mu.shape == (8,)


@pytest.mark.parametrize("A", [np.diag([30.0, 60.0, 10.0]), np.array([30.0, 60.0, 10.0])], ids=["full", "diagonal"])
def test_samples_have_the_frequencies_of_the_probabilities(A):
    """20,000 draws: a frequency's standard deviation is at most sqrt(p / 20000); five of those allowed."""
    P = gaussian(GRID, np.array([0.1, 0.0, -0.2]), A)
    rng = np.random.default_rng(0)
    drawn = [P.sample(rng.random(D)) for _ in range(20_000)]
    for index in itertools.product(range(5), range(4), range(3)):
        p = P.probability(index)
        assert abs(drawn.count(index) / 20_000 - p) < 5 * math.sqrt(p / 20_000) + 1e-9
