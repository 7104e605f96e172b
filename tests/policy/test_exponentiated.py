"""FedEx's exponentiated gradient, two rounds written out, and what it does with clients that blow up."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import seen

from fedaccord import config
from fedaccord.core.errors import SettingsError
from fedaccord.core.records import Hyper
from fedaccord.methods.registry import find
from fedaccord.policy.exponentiated import Exponentiated
from fedaccord.policy.grid import HyperGrid

GRID = HyperGrid.parse("lr = 0.1, 0.2, 0.4; steps = 5, 10")
FIRST = Hyper(1.0, 1, momentum=0.5)
COHORT = (0, 2, 3, 7)


def answers(losses, examples, blown=()):
    return replace(seen(None), losses=losses, examples=examples, blown=tuple(blown))


def told(losses, examples):
    return answers(dict(zip(COHORT, losses, strict=True)), dict(zip(COHORT, examples, strict=True)))


def test_everyone_draws_for_itself_and_all_values_are_alike_at_first():
    policy = Exponentiated(FIRST, GRID)
    state, counts = policy.start(), np.zeros((3, 2))
    for t in range(1, 301):
        proposal, after = policy.propose(state, t, COHORT, torch.Generator().manual_seed(t))
        for client in COHORT:
            own = proposal.each[client]
            i, j = after["drawn"][str(client)]
            assert (own.lr, own.steps, own.momentum) == ([0.1, 0.2, 0.4][i], [5, 10][j], 0.5)
            counts[i, j] += 1
    # 1200 draws, 200 expected in each of six cells, with a deviation of sqrt(1200 * 1/6 * 5/6) = 12.9: within four
    assert np.abs(counts - 200).max() < 52


@pytest.mark.parametrize("schedule", ["decaying", "adaptive", "aggressive", "constant"])
@pytest.mark.parametrize(("discount", "rate"), [(0.0, 0.0), (0.5, 0.0), (0.5, 0.3)])
def test_three_rounds_against_the_algorithm_written_out(schedule, discount, rate):
    policy = Exponentiated(FIRST, GRID, schedule=schedule, discount=discount, rate=rate)
    state = policy.start()
    theta = [np.full(3, 1 / 3), np.full(2, 1 / 2)]
    trace, squares = [], [0.0, 0.0]
    rounds = [
        ((1.0, 2.0, 3.0, 2.0), (10, 20, 30, 40)),
        ((0.5, 2.5, 1.0, 1.5), (5, 5, 5, 5)),
        ((1, 1, 2, 0.5), (9, 1, 3, 2)),
    ]
    for t, (losses, examples) in enumerate(rounds, 1):
        _, state = policy.propose(state, t, COHORT, torch.Generator().manual_seed(t))
        drawn = [state["drawn"][str(client)] for client in COHORT]
        state = policy.learn(state, told(losses, examples))
        p = np.array(examples) / sum(examples)
        mean = float(p @ np.array(losses))
        weights = [discount ** (len(trace) - 1 - k) for k in range(len(trace))]
        baseline = float(np.average(trace, weights=weights)) if trace else mean
        trace.append(mean)
        for axis in (0, 1):
            gradient = np.zeros(len(theta[axis]))
            for index, share, loss in zip(drawn, p, losses, strict=True):
                gradient[index[axis]] += share * (loss - baseline) / theta[axis][index[axis]]
            largest = np.abs(gradient).max()
            squares[axis] += largest**2
            below = {
                "decaying": math.sqrt(t),
                "adaptive": math.sqrt(squares[axis]),
                "aggressive": largest,
                "constant": 1,
            }
            eta = (rate or math.sqrt(2 * math.log(len(gradient)))) / below[schedule]
            new = theta[axis] * np.exp(-eta * gradient)
            theta[axis] = new / new.sum()
            np.testing.assert_allclose(np.exp(state["z"][axis]), theta[axis], rtol=1e-9)


def test_a_client_that_blew_up_makes_its_choice_less_likely_and_one_that_is_silent_says_nothing():
    policy = Exponentiated(FIRST, GRID, schedule="constant")
    _, state = policy.propose(policy.start(), 1, COHORT, torch.Generator().manual_seed(0))
    state = {**state, "drawn": {"0": [0, 0], "2": [1, 0], "3": [2, 1], "7": [0, 1]}}
    after = policy.learn(state, answers({0: 1.0, 2: 2.0}, {0: 5, 2: 5}, blown=[3]))
    theta = np.exp(after["z"][0])
    assert theta[0] > theta[1] == pytest.approx(theta[2])  # the worst of the round, 2
    same = policy.learn(state, answers({0: 1.0, 2: 2.0, 3: math.inf}, {0: 5, 2: 5, 3: 5}))
    assert same["z"] == after["z"]
    assert policy.learn(state, answers({}, {}, blown=[0, 2, 3, 7])) == state


def test_it_learns_which_rate_pays():
    """A client's loss is the distance of its rate's number from the middle one, with noise."""
    policy, state = Exponentiated(FIRST, GRID), None
    state, noise = policy.start(), np.random.default_rng(0)
    for t in range(1, 201):
        proposal, state = policy.propose(state, t, COHORT, torch.Generator().manual_seed(t))
        losses = {c: abs(math.log2(h.lr / 0.2)) + 0.1 * noise.standard_normal() for c, h in proposal.each.items()}
        state = policy.learn(state, answers(losses, dict.fromkeys(COHORT, 10)))
    assert math.exp(state["z"][0][1]) > 0.9
    told = policy.describe(state, state)
    assert told["likely"]["lr"] == 0.2
    assert "likeliest now: lr 0.2" in told["why"]


@pytest.mark.parametrize(
    ("settings", "says"),
    [({"start": "lr = 0.1"}, "start: FedEx begins"), ({"grid": "server_lr = 1, 2"}, "'server_lr' cannot be tuned")],
)
def test_what_cannot_be_is_one_clear_line(settings, says):
    values = config.make({"method": "FedEx", **settings}).values()
    with pytest.raises(SettingsError, match=says):
        find("FedEx").policy(Hyper(0.1, 1, own={"server_lr": 1.0}), values, None)
    values = config.make({"method": "FedEx+AH", "clients": 4}).values()
    with pytest.raises(SettingsError, match="two of its parts choose the hyper-parameters"):
        find("FedEx+AH").policy(Hyper(0.1, 1), values, None)
