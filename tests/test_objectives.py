import math

import numpy as np
import pytest
import torch
from helpers import hyper

from fedaccord.core.batches import IGNORED
from fedaccord.objectives import bounded, classification, default_entropy_min


def oracle(logits, targets, minimum, weight, most=math.inf):
    """min(most, cross-entropy) + weight * max(0, H_min - H(softmax)), sample by sample, in plain NumPy."""
    total = 0.0
    for scores, target in zip(logits, targets, strict=True):
        p = np.exp(scores - scores.max())
        p /= p.sum()
        entropy = -sum(q * math.log(q) for q in p)
        total += min(most, -math.log(p[target])) + weight * max(0.0, minimum - entropy)
    return total / len(targets)


@pytest.mark.parametrize(("minimum", "weight"), [(2.0, 1.0), (2.0, 0.3), (0.5, 1.0), (2.0, 0.0)])
def test_eq_8_and_cross_entropy_against_numpy(minimum, weight):
    rng = np.random.default_rng(0)
    logits, targets = rng.normal(size=(16, 10)) * 3, rng.integers(0, 10, 16)
    h = hyper(entropy_min=minimum, entropy_weight=weight)
    loss = classification(torch.from_numpy(logits), torch.from_numpy(targets), h)
    assert float(loss) == pytest.approx(oracle(logits, targets, minimum, weight), rel=1e-12)


def test_gradient_against_finite_differences():
    h = hyper(entropy_min=1.5, entropy_weight=0.7)
    logits = torch.randn(5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    targets = torch.tensor([0, 1, 2, 3, 5])
    assert torch.autograd.gradcheck(lambda x: classification(x, targets, h), logits)


def test_confident_outputs_are_penalised_and_uncertain_ones_are_not():
    h = hyper(entropy_min=2.0, entropy_weight=1.0)
    none = hyper()
    targets = torch.tensor([0])
    flat, sharp = torch.zeros(1, 10), torch.tensor([[20.0] + [0.0] * 9])
    assert classification(flat, targets, h) == classification(flat, targets, none)  # H = ln 10 > 2
    assert float(classification(sharp, targets, h) - classification(sharp, targets, none)) == pytest.approx(
        2.0, abs=1e-5
    )  # H is about 0


def test_a_minimum_left_open_follows_the_number_of_scores():
    logits, targets = torch.randn(6, 7, generator=torch.Generator().manual_seed(0)), torch.arange(6)
    left_open = classification(logits, targets, hyper(entropy_min=None, entropy_weight=1.0))
    assert default_entropy_min(7) == round(0.87 * math.log(7), 4)
    assert left_open == classification(logits, targets, hyper(entropy_min=default_entropy_min(7), entropy_weight=1.0))


@pytest.mark.parametrize("weight", [0.0, 0.7])
def test_in_a_sequence_every_place_that_has_a_target_is_a_sample(weight):
    rng = np.random.default_rng(1)
    logits, targets = rng.normal(size=(3, 4, 6)) * 3, rng.integers(0, 6, (3, 4))
    targets[0, 2:] = IGNORED
    h = hyper(entropy_min=1.5, entropy_weight=weight)
    loss = classification(torch.from_numpy(logits), torch.from_numpy(targets), h)
    there = targets != IGNORED
    assert float(loss) == pytest.approx(oracle(logits[there], targets[there], 1.5, weight), rel=1e-12)


@pytest.mark.parametrize("shape", [(16,), (4, 4)])
def test_where_clients_may_lie_an_example_counts_twice_a_guess_at_most(shape):
    rng = np.random.default_rng(2)
    logits, targets = rng.normal(size=(*shape, 10)) * 5, rng.integers(0, 10, shape)
    h, most = hyper(entropy_min=1.5, entropy_weight=0.7), 2 * math.log(10)
    flat = logits.reshape(-1, 10), targets.ravel()
    found = float(bounded(torch.from_numpy(logits), torch.from_numpy(targets), h))
    assert found == pytest.approx(oracle(*flat, 1.5, 0.7, most), rel=1e-12)
    assert found < oracle(*flat, 1.5, 0.7) - 0.1  # some of these are worse than that
