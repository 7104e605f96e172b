"""Eq. 7 and Eq. 6 written out, the sign, the bounds, the delay."""

import json
import math
import re

import numpy as np
import pytest
import torch
from helpers import seen
from hypothesis import given, settings
from hypothesis import strategies as st

from fedaccord.core.records import Hyper
from fedaccord.core.seeds import generator
from fedaccord.methods.adaptive import rounds_held
from fedaccord.policy.grid import HyperGrid
from fedaccord.policy.reinforce import LARGEST, SMALLEST, Reinforce, bounded, detrended, ranks

GRID = HyperGrid.parse("lr = 0.01..1/9 log; steps = 5..45/9")
ENDS = [[axis.points[i] for axis in GRID.axes] for i in (0, -1)]  # mu stays within the grid
FIRST = Hyper(lr=0.1, steps=10, momentum=0.3)


def policy(**changes):
    return Reinforce(FIRST, GRID, **{"hyper_lr": 0.05, "interval": 3, **changes})


def play(policy, rewards, seed=0):
    """Every state from the first on, and the choices made."""
    states, choices = [policy.start()], []
    for t, reward in enumerate(rewards, 1):
        proposal, state = policy.propose(states[-1], t, (0,), generator(seed, "policy", t))
        hyper = proposal.hyper
        choices.append((hyper.lr, hyper.steps))
        states.append(policy.learn(state, seen(reward)))
    return states, choices


def log_p_gradient(mu, A, choice):
    """By torch's autograd, nothing shared with the code under test."""
    lr, steps = (torch.tensor(axis.points) for axis in GRID.axes)
    points = torch.cartesian_prod(lr, steps)
    mu, A = torch.tensor(mu, requires_grad=True), torch.tensor(A, requires_grad=True)
    apart = points - mu
    log_p = torch.log_softmax(-0.5 * ((apart @ A) * apart).sum(1), 0)
    number = GRID.axes[0].values.index(choice[0]) * 9 + GRID.axes[1].values.index(choice[1])
    return torch.autograd.grad(log_p[number], (mu, A))


WRITTEN_OUT = 1e-7
"""How far psi may be from the same written out: A is about 85, good to 2^-53 * 85 = 1e-14; some twenty operations a
round, and an error in mu comes back in the next score, times 1 + eta_H * reward * A < 1 + 0.05 * 0.5 * 85 = 3.2. Ten
rounds: 20 * 1e-14 * 3.2^10 = 2e-8 at the very worst. A term that is missing or has the wrong sign is off by 1e-3."""
REWARDS = [0.3, -0.1, 0.25, 0.0, 0.5, -0.4, 0.1, 0.05, 0.2, -0.05]


def test_eq_7_written_out_over_ten_rounds():
    states, choices = play(policy(), REWARDS)
    mu, A, Z, eta = np.zeros(2), 85.0 * np.eye(2), 3, 0.05
    scores = []
    for t in range(1, 11):
        scores.append([part.numpy() for part in log_p_gradient(mu, A, choices[t - 1])])  # at psi_t
        first = t - min(Z, t - 1)
        r_hat = sum(REWARDS[tau - 1] for tau in range(first, t + 1)) / (t - first + 1)
        for tau in range(first, t + 1):
            mu = mu + eta * (REWARDS[tau - 1] - r_hat) * scores[tau - 1][0]
            A = A + eta * (REWARDS[tau - 1] - r_hat) * scores[tau - 1][1]
        mu = np.clip(mu, *ENDS)
        np.testing.assert_allclose(states[t]["mu"], mu, rtol=0, atol=WRITTEN_OUT)
        np.testing.assert_allclose(states[t]["A"], A, rtol=0, atol=WRITTEN_OUT)


def test_eq_6_written_out_with_its_delay():
    """The update of round t happens when the reward of round t + Z is there."""
    Z, eta = 2, 0.05
    states, choices = play(policy(baseline="centred", interval=Z), REWARDS)
    mu, A = [np.zeros(2)], [85.0 * np.eye(2)]
    for t in range(1, 11):
        new_mu, new_A, middle = mu[-1], A[-1], t - Z
        if middle >= 1:
            near = [tau for tau in range(max(1, middle - Z), t + 1) if tau != middle]
            weight = {tau: Z + 1 - abs(tau - middle) for tau in near}
            r_bar = sum(weight[tau] * REWARDS[tau - 1] for tau in near) / sum(weight.values())
            d_mu, d_A = log_p_gradient(mu[middle - 1], A[middle - 1], choices[middle - 1])
            new_mu = np.clip(new_mu + eta * (REWARDS[middle - 1] - r_bar) * d_mu.numpy(), *ENDS)
            new_A = new_A + eta * (REWARDS[middle - 1] - r_bar) * d_A.numpy()
        mu.append(new_mu)
        A.append(new_A)
        np.testing.assert_allclose(states[t]["mu"], new_mu, rtol=0, atol=WRITTEN_OUT)
        np.testing.assert_allclose(states[t]["A"], new_A, rtol=0, atol=WRITTEN_OUT)


def test_with_eq_6_the_log_tells_its_own_baseline_and_the_one_round_that_counts():
    """Z = 1: when round 3 is there, round 2 (0.2) is held against (0.5 + 0.1) / 2."""
    tuner = policy(baseline="centred", interval=1)
    state = tuner.start()
    told = []
    for t, reward in enumerate((0.5, 0.2, 0.1), 1):
        _, sampled = tuner.propose(state, t, (0,), generator(0, "policy", t))
        state = tuner.learn(sampled, seen(reward))
        told.append(tuner.describe(sampled, state))
    assert [entry["baseline"] for entry in told] == [None, 0.2, pytest.approx(0.3, abs=1e-15)]
    assert "moved" in told[-1]["why"]
    assert "round 2 with " in told[-1]["why"]
    assert " gained 20 %, those around it gained 30 %" in told[-1]["why"]


@pytest.mark.parametrize("baseline", ["causal", "centred"])
def test_equal_rewards_leave_psi_unchanged(baseline):
    states, _ = play(policy(baseline=baseline), [0.25] * 12)  # 0.25: means of equal values are exact
    assert all((s["mu"], s["A"]) == (states[0]["mu"], states[0]["A"]) for s in states)


def test_round_1_leaves_psi_unchanged():
    states, _ = play(policy(), [0.7])
    assert (states[1]["mu"], states[1]["A"]) == (states[0]["mu"], states[0]["A"])


@pytest.mark.parametrize("changes", [{}, {"diagonal": True}, {"baseline": "centred"}])
def test_the_policy_follows_the_best_arm_when_it_drifts(changes):
    """A toy bandit: the reward falls with the distance to the best learning rate, which moves from 0.03 to 0.5.

    With the printed minus the policy would run away from it.
    """
    tuner = policy(interval=5, hyper_lr=0.01 if "baseline" not in changes else 0.05, **changes)
    state, followed = tuner.start(), []
    for t in range(1, 1201):
        best = 0.03 if t <= 600 else 0.5
        proposal, state = tuner.propose(state, t, (0,), generator(1, "policy", t))
        hyper = proposal.hyper
        reward = 0.3 - 0.5 * abs(math.log10(hyper.lr / best))
        state = tuner.learn(state, seen(reward))
        followed.append(GRID.axes[0].value_at(state["mu"][0]))
    settled, moved = np.exp(np.mean(np.log(followed[400:600]))), np.exp(np.mean(np.log(followed[1000:])))
    assert 0.02 < settled < 0.06
    assert 0.25 < moved < 0.9


@settings(max_examples=50)
@given(st.lists(st.floats(-1, 1), min_size=1, max_size=30), st.booleans(), st.sampled_from(["causal", "centred"]))
def test_whatever_the_rewards_psi_stays_within_bounds(rewards, diagonal, baseline):
    states, _ = play(policy(hyper_lr=50.0, diagonal=diagonal, baseline=baseline), rewards)
    for state in states:
        mu, A = np.array(state["mu"]), np.array(state["A"])
        assert (np.abs(mu) <= 0.5).all()
        eigenvalues = A if diagonal else np.linalg.eigvalsh(A)
        assert (eigenvalues >= SMALLEST - 1e-9).all()
        assert (eigenvalues <= LARGEST + 1e-9).all()
        assert diagonal or np.array_equal(A, A.T)


def test_bounded_changes_nothing_that_is_within_bounds():
    A = np.array([[85.0, 3.0], [3.0, 60.0]])
    assert np.array_equal(bounded(A), A)
    assert np.allclose(np.linalg.eigvalsh(bounded(np.diag([1.0, 1e4]))), [SMALLEST, LARGEST])


def test_a_reward_that_comes_a_round_late_goes_to_the_choice_that_earned_it():
    """The clients report L_t in round t: the first round has no reward, then each is that of the round before."""
    prompt, _ = play(policy(), REWARDS)
    tuner, state = policy(late=True), policy().start()
    for t, reward in enumerate([None, *REWARDS], 1):
        if t > 2:
            # psi has not seen the newest reward when h_t is drawn, so the draws differ; compare the bookkeeping
            assert [entry["round"] for entry in state["pending"]] == [t - 1]
        _, state = tuner.propose(state, t, (0,), generator(0, "policy", t))
        state = tuner.learn(state, seen(reward))
    assert [entry["reward"] for entry in state["window"]] == [entry["reward"] for entry in prompt[-1]["window"]]
    assert [entry["round"] for entry in state["window"]] == [7, 8, 9, 10]
    assert [entry["round"] for entry in state["pending"]] == [11]


def test_the_baseline_of_a_loss_that_became_negative_is_a_number():
    """Without guards a loss that falls from 0.1 to -3 earns 31: no rate a round comes to that."""
    assert policy(hold=4).each_round(5.0) == 5 / 4
    assert policy(hold=2).each_round(0.75) == pytest.approx(0.5)


def test_a_reward_that_will_never_be_known_is_nobody_elses():
    """The loss was not finite after round 2, so that rounds 2 and 3 have no reward; no guard acts."""
    states, _ = play(policy(), [0.1, None, None, 0.2, 0.3])
    assert [(entry["round"], entry["reward"]) for entry in states[-1]["window"]] == [(1, 0.1), (4, 0.2), (5, 0.3)]
    assert states[-1]["pending"] == []


def test_a_round_that_was_skipped_leaves_psi_alone():
    tuner = policy()
    states, _ = play(tuner, REWARDS[:4])
    _, state = tuner.propose(states[-1], 5, (0,), generator(0, "policy", 5))
    assert tuner.learn(state, seen(None, carried_out=False)) == states[-1]


def test_the_state_is_plain_json_and_exact():
    states, _ = play(policy(), REWARDS)
    for state in states:
        assert json.loads(json.dumps(state)) == state


def test_what_is_not_tuned_comes_from_the_settings():
    proposal, _ = policy().propose(policy().start(), 1, (0,), generator(0, "policy", 1))
    hyper = proposal.hyper
    assert hyper.momentum == 0.3
    assert hyper.lr in GRID.axes[0].values


def told_of(tuner, earn, rounds):
    """Each round's log entry, with the states before and after it."""
    state = tuner.start()
    for t in range(1, rounds + 1):
        proposal, sampled = tuner.propose(state, t, (0,), generator(0, "policy", t))
        state = tuner.learn(sampled, seen(earn(proposal.hyper)))
        yield sampled, state, tuner.describe(sampled, state)


def correlation(earned, scores, psi):
    """Of rewards with scores, about zero: of rewards as they are, or of their ranks beside a straight line."""
    earned = np.array(earned)
    if psi != "ascent":
        time = np.arange(len(earned))
        left = earned - (np.polyval(np.polyfit(time, earned, 1), time) if len(earned) >= 5 else 0.0)
        earned = left.argsort().argsort()  # no two are equal
    earned = earned - earned.mean()
    return earned @ scores / math.sqrt((earned @ earned) * (scores @ scores))


def test_scaled_psi_written_out_over_ten_rounds():
    """mu and A move by the correlation of the rewards' ranks with each score, as far as it is beyond one over the root
    of their number; A in units of A_1. The rate falls with the number of updates."""
    paid = [0.31, -0.12, 0.24, 0.02, 0.47, -0.4, 0.11, 0.06, 0.2, -0.05]  # no two alike, nor beside their trend
    states, choices = play(policy(psi="scaled", interval=6), paid)
    mu, A, scores, moved = np.zeros(2), 85.0 * np.eye(2), [], 0.0
    for t in range(1, 11):
        scores.append([part.numpy() for part in log_p_gradient(mu, A, choices[t - 1])])  # at psi_t
        window = range(max(0, t - 7), t)
        rate = 0.05 / math.sqrt(1 + (t - 1) / 10)
        rewards = [paid[n] for n in window]

        def step(entries, rewards=rewards):
            if len(rewards) < 2:
                return 0.0
            r = correlation(rewards, np.array(entries), "scaled")
            return math.copysign(max(0.0, abs(r) - 1 / math.sqrt(len(rewards))), r)

        d_mu = np.array([step([scores[n][0][i] for n in window]) for i in (0, 1)])
        d_A = np.array([[step([scores[n][1][i, j] for n in window]) for j in (0, 1)] for i in (0, 1)])
        mu, A = np.clip(mu + rate * d_mu, *ENDS), A + rate * 85.0 * d_A
        np.testing.assert_allclose(states[t]["mu"], mu, rtol=0, atol=1e-9)
        np.testing.assert_allclose(states[t]["A"], A, rtol=0, atol=1e-7)
        moved = max(moved, float(np.abs(d_mu).max()), float(np.abs(d_A).max()))
    assert moved > 0.05  # some of it was beyond chance


@pytest.mark.parametrize("psi", ["ascent", "adam", "scaled", "walk"])
@pytest.mark.parametrize("earn", ["lower rates", "noise", "alike"])
def test_the_sentence_says_what_moved_and_its_numbers_agree(psi, earn):
    """Lower rates pay, or nothing does: whatever the sentence says of a mean and of a correlation is so."""
    draw = np.random.default_rng(0)
    paid = {
        "lower rates": lambda h: (0.2 if h.lr < 0.1 else -0.1) + float(draw.normal(0, 0.01)),
        "noise": lambda h: float(draw.normal()),
        "alike": lambda h: 0.25,
    }[earn]
    for before, after, told in told_of(policy(psi=psi, interval=10), paid, 40):
        assert told["mu"] == before["mu"]
        assert told["p"] == before["pending"][-1]["p"]
        assert set(told) == {"mu", "A", "mean", "p", "baseline", "why"}
        moves = np.subtract(after["mu"], before["mu"])
        rewards = [entry["reward"] for entry in after["window"]]
        if told["why"] in ("nothing to learn from yet", "no change: all recent choices paid alike"):
            assert np.abs(moves).max() < 1e-4
            assert len(set(rewards)) == 1
            assert (told["why"] == "nothing to learn from yet") == (len(rewards) == 1)
            continue
        for number, (move, sentence) in enumerate(zip(moves, told["why"].split("; "), strict=True)):
            assert ("stood still" in sentence) == (abs(move) < 1e-4)
            assert (" moved up" in sentence) == (move >= 1e-4)
            assert (" moved down" in sentence) == (move <= -1e-4)
            if " moved" in sentence:
                first, second = map(float, re.search(r", (\S+) to ([^\s:]+)", sentence).groups())
                assert (second > first) == (move > 0)
                assert sentence.endswith(": at random") == (psi == "walk")
            if said := re.search(r"r = ([+-][\d.]+)(?:, chance ([\d.]+))?", sentence):
                scores = np.array([entry["score_mu"][number] for entry in after["window"]])
                r = correlation(rewards, scores, psi)
                assert float(said[1]) == pytest.approx(r, abs=0.005)
                assert (r > 0) == (move > 0)
                assert (said[2] is not None) == (psi == "scaled")
                assert said[2] is None or abs(float(said[1])) > float(said[2])
                assert said[2] is None or float(said[2]) == pytest.approx(1 / math.sqrt(len(rewards)), abs=0.005)
            assert psi == "adam" or "learned before" not in sentence


def test_adams_moments_go_on_after_rewards_that_say_nothing():
    """Equal rewards beside momentum: mu moves, and the sentence does not say that nothing changed."""
    tuner, rewards = policy(psi="adam"), iter([*REWARDS[:5], *[0.25] * 5])
    told = [(before, after, entry["why"]) for before, after, entry in told_of(tuner, lambda h: next(rewards), 10)]
    before, after, why = told[8]
    assert len({entry["reward"] for entry in after["window"]}) == 1
    assert np.abs(np.subtract(after["mu"], before["mu"])).min() > 1e-3
    assert why.count("by what was learned before") == 2


@pytest.mark.parametrize("psi", ["adam", "scaled"])
@pytest.mark.parametrize("scale", [1.0, 1e-4])
def test_the_size_of_the_rewards_does_not_matter(psi, scale):
    """Rewards of a thousandth are what one-class clients pay; the printed ascent stands still on them."""
    *_, (_, after, _) = told_of(policy(psi=psi, interval=10), lambda h: -scale * abs(math.log10(h.lr / 0.03)), 60)
    assert GRID.axes[0].value_at(after["mu"][0]) < 0.06  # from 0.1; the best is 0.03
    *_, (_, printed, _) = told_of(policy(interval=10), lambda h: -1e-4 * abs(math.log10(h.lr / 0.03)), 60)
    assert GRID.axes[0].value_at(printed["mu"][0]) > 0.09


@pytest.mark.slow
def test_rewards_without_any_connection_move_scaled_psi_less_than_adam():
    """Sixty rounds of rewards drawn at random, twenty times: how far mu is from its start, on average."""
    far = {}
    for psi in ("scaled", "adam"):
        ends = []
        for seed in range(20):
            draw = np.random.default_rng(seed)
            *_, (_, after, _) = told_of(policy(psi=psi, interval=10), lambda h, draw=draw: float(draw.normal()), 60)
            ends.append(np.abs(after["mu"]).mean())
        far[psi] = np.mean(ends)
    assert far["scaled"] < far["adam"] / 2


def test_a_choice_that_is_held_earns_what_all_its_rounds_earned_together():
    """Two rounds of 10 % and 20 %: the loss is 0.9 * 0.8 = 0.72 of what it was. A skipped round does not count."""
    tuner = policy(hold=2)
    first, state = tuner.propose(tuner.start(), 1, (0,), generator(0, "policy", 1))
    state = tuner.learn(state, seen(0.1))
    assert state["window"] == []
    again, state = tuner.propose(state, 2, (0,), generator(0, "policy", 2))
    assert again.hyper == first.hyper
    assert tuner.describe(state, state)["why"] == "held: round 2 of 2 with this choice"
    state = tuner.learn(state, seen(None, carried_out=False))
    again, state = tuner.propose(state, 3, (0,), generator(0, "policy", 3))
    assert again.hyper == first.hyper
    state = tuner.learn(state, seen(0.2))
    assert [entry["reward"] for entry in state["window"]] == [pytest.approx(0.28)]
    assert state["pending"] == []


@pytest.mark.parametrize(("changes", "rounds"), [
    ({}, 4),
    ({"fraction": 0.5}, 4),  # two passes of two rounds
    ({"clients": 20, "fraction": 0.3}, 4),  # one pass
    ({"clients": 20, "fraction": 0.35}, 6),  # two of three rounds
    ({"clients": 20, "fraction": 0.35, "cohorts": "random"}, 4),
    ({"clients": 20, "fraction": 0.35, "interval": 5}, 5),
    ({"fraction": 0.1, "hold": 7}, 7),  # a pass of ten rounds is too long to be waited for
    ({"hold": 50, "interval": 5}, 5),
    ({"hold": 50, "interval": 5, "cohorts": "random"}, 5),
    ({"clients": 20, "fraction": 0.35, "alone": "0"}, 4),  # one client, which trains in every round
])  # fmt: skip
def test_a_choice_is_held_for_whole_passes_and_never_longer_than_z(changes, rounds):
    usual = {"clients": 10, "fraction": 1.0, "cohorts": "passes", "alone": "", "hold": 4, "interval": 10}
    assert rounds_held({**usual, **changes}) == rounds


@pytest.mark.parametrize("psi", ["ascent", "adam", "scaled", "walk"])
@pytest.mark.parametrize("baseline", ["causal", "centred"])
def test_every_way_with_every_baseline_tells_its_story(psi, baseline):
    draw = np.random.default_rng(0)
    told = list(told_of(policy(psi=psi, baseline=baseline), lambda h: float(draw.normal()), 12))
    assert all(entry["why"] for _, _, entry in told)


@pytest.mark.parametrize("reward", [0.1, -1.0, 1e-3 / 3])
@pytest.mark.parametrize("count", [2, 5, 7, 11])
def test_choices_that_paid_alike_have_equal_ranks(reward, count):
    """The rounding that a trend leaves is nobody's merit."""
    assert (ranks(detrended(np.full(count, reward))) == 0).all()
