"""Online REINFORCE: psi = {mu, A} of the discrete Gaussian, moved towards hyper-parameters that earn more reward.

The state is a plain JSON value:
    mu, A     psi
    window    what is known of past choices, oldest first: reward, score at the psi of that time, the choice itself
    pending   choices whose reward is not known yet, or which are still held
    updates   how often psi was moved
    moments   Adam's two moments, if psi is moved by Adam
    pace      the state of policy/pace.py, if the rate and the iterations follow what the server sees
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedaccord.core.protocols import Proposal
from fedaccord.core.records import Hyper, Observation, PolicyState
from fedaccord.policy.gaussian import gaussian
from fedaccord.policy.grid import HyperGrid
from fedaccord.policy.pace import STILL, Pace, apart, nearest, written

SMALLEST, LARGEST = 5.0, 2500.0
"""Bounds on the eigenvalues of A: a spread from 0.45 (the whole grid) down to 0.02 (half a step of a fine grid)."""
ASCENT, ADAM, SCALED, WALK = "ascent", "adam", "scaled", "walk"
BETAS = (0.7, 0.7)
"""The decay rates of Adam's two moments, for psi."""
SLOWER = 10
"""After this many updates psi's rate is divided by the root of two, after three times as many by two, and so on."""
TREND = 5
"""The least number of rewards from which a trend is taken out."""


@dataclass(frozen=True)
class Reinforce:
    """The policy over the grid, with one of four ways to move psi.

    ascent   psi + hyper_lr * gradient: Eq. 7 (baseline = causal, what the paper uses) or 6 (centred)
    adam     by Adam on the correlation of rewards and scores
    scaled   by the correlation of rewards and scores, as far as it is beyond chance
    walk     at random: a control
    """

    first: Hyper  # the values of what is not tuned
    grid: HyperGrid
    hyper_lr: float = 0.01  # eta_H
    interval: int = 5  # Z
    precision: float = 85.0  # A_1 = precision * I
    diagonal: bool = False
    baseline: str = "causal"
    start_at: tuple[float, ...] = ()  # mu_1 in normalised units; the middle of the grid if empty
    psi: str = ASCENT
    hold: int = 1  # rounds for which a choice is held
    late: bool = False  # whether a round's reward comes with the next one: the clients report the losses
    pace: Pace | None = None  # moves the rate and the iterations by what the server sees; None: nothing does

    @property
    def names(self) -> tuple[str, ...]:
        return self.grid.names

    def start(self) -> PolicyState:
        """Return the state with psi_1: mu_1 at `start_at` or in the middle of the grid, A_1 = precision * I."""
        D = len(self.grid.axes)
        A = np.full(D, self.precision) if self.diagonal else self.precision * np.eye(D)
        mu = list(self.start_at) or [0.0] * D
        pace = {} if self.pace is None else {"pace": self.pace.start()}
        return {"mu": mu, "A": A.tolist(), "window": [], "pending": [], "updates": 0, **pace}

    def propose(
        self, state: PolicyState, round: int, cohort: Sequence[int], generator: torch.Generator
    ) -> tuple[Proposal, PolicyState]:
        """Line 4: draw h_t ~ P(. | psi_t), or propose the choice that is still held.

        The score is computed now, at psi_t, and waits for its reward.
        """
        *others, newest = state["pending"] or [None]
        if newest is not None and newest["held"] < newest["until"]:
            entry = {**newest, "held": newest["held"] + 1}
        else:
            others, entry = state["pending"], self.draw(state, round, generator)
        return Proposal(self.first.but(entry["choice"])), {**state, "pending": [*others, entry]}

    def draw(self, state: PolicyState, round: int, generator: torch.Generator) -> dict[str, Any]:
        """Draw a new choice, with its probability and score; in the run-in it is the grid point nearest to mu."""
        mu = np.array(state["mu"])
        P = gaussian(self.grid, mu, np.array(state["A"]))
        run_in = self.pace is not None and state["pace"]["run_in"]
        if run_in:
            index = tuple(nearest(axis, z) for axis, z in zip(self.grid.axes, mu, strict=True))
        else:
            index = P.sample(torch.rand(len(self.grid.axes), generator=generator, dtype=torch.float64).numpy())
        score = P.score(index)
        toss = (
            {"toss": (2.0 * torch.randint(2, mu.shape, generator=generator) - 1).tolist()} if self.psi == WALK else {}
        )
        return {
            **toss,
            "round": round,
            "run_in": run_in,
            "until": self.pace.lasts(round) if self.pace is not None and run_in else self.hold,
            "held": 1,
            "rewards": [],
            "psi": {"mu": state["mu"], "A": state["A"]},
            "choice": self.grid.choice(index),
            "p": P.probability(index),
            "score_mu": score.mu.tolist(),
            "score_A": score.A.tolist(),
        }

    def learn(self, state: PolicyState, seen: Observation) -> PolicyState:
        """Lines 17-18: learn from a round.

        One that was not carried out, or whose reward will never be known, does not count for its choice.
        """
        if not seen.carried_out or (seen.reward is None and not self.late):
            *others, newest = state["pending"]
            left = {**newest, "held": newest["held"] - 1}
            state = {**state, "pending": [*others, *([left] if left["held"] else [])]}
        return self.update(self.paced(state, seen), seen.reward)

    def paced(self, state: PolicyState, seen: Observation) -> PolicyState:
        """Return the state with mu moved by the pace; a choice that the pace gives up is not held any longer."""
        if self.pace is None:
            return state
        *others, newest = state["pending"] or [{"held": 0, "until": 1}]
        over = newest["held"] >= newest["until"]
        pace, mu, given_up = self.pace.follow(state["pace"], state["mu"], seen, over)
        ended = given_up and state["pending"]  # nothing is pending if the choice's only round was not carried out
        pending = [*others, {**newest, "until": newest["held"]}] if ended else state["pending"]
        return {**state, "mu": mu, "pace": {**pace, "mu": mu}, "pending": pending}

    def update(self, state: PolicyState, reward: float | None) -> PolicyState:
        """Lines 17-18: credit a reward to the oldest choice that waits for one, and learn from it once it has all.

        A choice that is held for several rounds has earned what the loss fell by over all of them.
        """
        state = self.closed(state)  # a choice may have been given up in a round that gave it no reward
        if reward is None or not state["pending"]:
            return state
        oldest, *others = state["pending"]
        entry = {**oldest, "rewards": [*oldest["rewards"], reward]}
        return self.closed({**state, "pending": [entry, *others]})

    def closed(self, state: PolicyState) -> PolicyState:
        """Learn from the oldest pending choice, if it has all its rewards, and take it from the pending ones."""
        if not state["pending"] or len(state["pending"][0]["rewards"]) < state["pending"][0]["until"]:
            return state
        entry, *others = state["pending"]
        if entry["run_in"]:
            return {**state, "pending": others}  # it was no draw: there is nothing to learn from it
        known = 2 * self.interval + 1 if self.baseline == "centred" else self.interval + 1
        first, *more = entry["rewards"]
        earned = 1 - math.prod(1 - each for each in entry["rewards"]) if more else first
        done = {name: value for name, value in entry.items() if name != "psi"}
        window = [*state["window"], {**done, "reward": earned}][-known:]  # Z' = min(Z, t - 1): what there is
        moved = self.moved(state, window)
        return {**state, **moved, "window": window, "pending": others, "updates": state["updates"] + 1}

    def moved(self, state: PolicyState, window: list[dict[str, Any]]) -> PolicyState:
        """Line 18: return psi_{t+1}, and Adam's moments if it is moved by Adam."""
        d_mu, d_A, moments = self.step(state, window)
        mu, A = self.inside(np.array(state["mu"]) + d_mu), bounded(np.array(state["A"]) + d_A)
        return {"mu": mu.tolist(), "A": A.tolist(), **moments}

    def step(self, state: PolicyState, window: list[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
        """Return how far to move mu and A, before they are kept within their bounds, and Adam's moments, if any."""
        # PAPER (Eq. 6, Eq. 7, line 18): psi minus eta_H ... HERE: plus. WHY: J_t, the expected reward, is maximised
        # (Eq. 3); what stands behind eta_H is its gradient (Eq. 4-5), and the minus would descend it.
        if self.psi == ASCENT:
            d_mu, d_A = self.gradient(window)
            return self.hyper_lr * d_mu, self.hyper_lr * d_A, {}
        rate = self.hyper_lr / math.sqrt(1 + state["updates"] / SLOWER)
        if self.psi == WALK:
            return rate * np.array(window[-1]["toss"]), 0.0 * np.array(state["A"]), {}
        d_mu, d_A = self.correlation(window)
        if self.psi == SCALED:
            chance = 1 / math.sqrt(len(window))
            d_mu, d_A = (np.sign(d) * np.maximum(0.0, np.abs(d) - chance) for d in (d_mu, d_A))
            return rate * d_mu, rate * self.precision * d_A, {}
        moments = state.get("moments") or {"mu": [0.0 * d_mu, 0.0 * d_mu], "A": [0.0 * d_A, 0.0 * d_A]}
        step_mu, m_mu = adam(moments["mu"], d_mu, state["updates"] + 1)
        step_A, m_A = adam(moments["A"], d_A, state["updates"] + 1)
        return rate * step_mu, rate * self.precision * step_A, {"moments": {"mu": m_mu, "A": m_A}}

    def gradient(self, window: list[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
        """Eq. 7 or Eq. 6: return the gradients of mu and A, which eta_H is to multiply."""
        s_mu, s_A = scores(window)
        advantage, _ = self.credit(window)
        return np.tensordot(advantage, s_mu, 1), np.tensordot(advantage, s_A, 1)

    def correlation(self, window: list[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
        """Return the correlations of the rewards' ranks with the scores of mu and A: in [-1, 1], whatever the task.

        The trend over the window is taken out of the rewards first, since progress slows down. Ranks are used because
        one round that blew up must not outweigh all others.
        """
        rank = ranks(detrended(np.array([entry["reward"] for entry in window])))
        s_mu, s_A = scores(window)
        return correlated(rank, s_mu), correlated(rank, s_A)

    def agreement(self, window: list[dict[str, Any]]) -> np.ndarray:
        """Return the correlation by which mu moves; for plain ascent, its gradient scaled to a correlation."""
        if self.psi != ASCENT:
            return self.correlation(window)[0]
        advantage, _ = self.credit(window)
        return correlated(advantage / np.abs(advantage).max(), scores(window)[0])

    def credit(self, window: list[dict[str, Any]]) -> tuple[np.ndarray, float | None]:
        """Return what each choice of the window earned beyond the baseline, and the baseline (None: not known yet)."""
        r = np.array([entry["reward"] for entry in window])
        if self.baseline == "causal":
            # Eq. 7: sum_{tau=t-Z'}^{t} (r_tau - r_hat_t) score_tau, r_hat_t the mean of the same rewards
            return r - r.mean(), float(r.mean())
        # Eq. 6: (r_t - r_bar_t) score_t for the round in the middle of the window, which ends Z rounds after it;
        # r_bar_t weighs the other rewards by Z + 1 - |tau - t|
        Z = self.interval
        advantage = np.zeros(len(r))
        middle = len(r) - 1 - Z
        if middle < 0:
            return advantage, None
        distance = np.abs(np.arange(len(r)) - middle)
        weight = np.where(distance == 0, 0.0, Z + 1.0 - distance)
        around = float(weight @ r / weight.sum())
        advantage[middle] = r[middle] - around
        return advantage, around

    def inside(self, mu: np.ndarray) -> np.ndarray:
        """Clip the means to the ranges of the grid (as in the paper's evolution figure)."""
        low = [axis.points[0] for axis in self.grid.axes]
        high = [axis.points[-1] for axis in self.grid.axes]
        return np.clip(mu, low, high)

    def describe(self, before: PolicyState, after: PolicyState) -> dict[str, Any]:
        """Return the log's entry, with the mu and A that h was drawn from; `before` is the state after sampling."""
        psi = before["pending"][-1]["psi"]
        means = {axis.name: axis.value_at(mu) for axis, mu in zip(self.grid.axes, psi["mu"], strict=True)}
        return {
            **psi,
            "mean": {name: float(f"{value:.6g}") for name, value in means.items()},
            "p": before["pending"][-1]["p"],
            "baseline": self.each_round(self.credit(after["window"])[1]) if after["window"] else None,
            "why": self.why(before, after),
        }

    def each_round(self, earned: float | None) -> float | None:
        """Convert what all rounds of a choice have earned into the reward of one round, as the log has it."""
        if earned is None or self.hold == 1:
            return earned
        # a loss that became negative has fallen by more than all of itself, and there is no rate by which it did
        return earned / self.hold if earned > 1 else 1 - (1 - earned) ** (1 / self.hold)

    def why(self, before: PolicyState, after: PolicyState) -> str:
        """Say in words how each hyper-parameter's mean moved, and what the choices earned that moved it."""
        told = after["pace"]["told"] if self.pace is not None else ""
        newest = before["pending"][-1]
        if newest["run_in"]:
            return f"run-in: {told or 'goes on'}"
        if before["updates"] == after["updates"]:
            waits = f"held: round {newest['held']} of {newest['until']} with this choice"
            return told or (waits if newest["until"] > 1 else "no reward yet")
        return "; ".join(filter(None, (told, self.why_learned(before, after))))

    def why_learned(self, before: PolicyState, after: PolicyState) -> str:
        """Say in words what REINFORCE moved; what it left where the pace had put it is not reported again."""
        window = after["window"]
        steps, *_ = self.step(before, window)
        put = before["mu"] if self.pace is None else after["pace"]["mu"]
        followed = np.abs(np.subtract(put, before["mu"])) >= STILL
        early = len(window) < 2 or (self.psi == ASCENT and self.credit(window)[1] is None)
        if self.psi != WALK and (early or paid_alike(window)) and np.abs(steps).max() < STILL:
            nothing = "nothing to learn from yet" if early else "no change: all recent choices paid alike"
            return "" if followed.any() else nothing
        told = []
        for number, (old, new) in enumerate(zip(put, after["mu"], strict=True)):
            axis, step = self.grid.axes[number], float(steps[number])
            label = LABELS.get(axis.name, axis.name)
            if abs(new - old) >= STILL:
                way = f"{'up' if new > old else 'down'}, {' to '.join(apart(axis.value_at(old), axis.value_at(new)))}"
                moved = f"{label} moved {way}: {self.why_moved(number, step, before, window)}"
                told.append(f"beyond that {moved}" if followed[number] else moved)
            elif not followed[number]:
                told.append(f"{label} stood still: {self.why_still(step)}")
        return "; ".join(told)

    def why_still(self, step: float) -> str:
        """Say why a mean that was to move by `step` did not."""
        if abs(step) >= STILL:
            return "at the edge of the grid"
        if self.psi == SCALED and step == 0 and self.hyper_lr > 0:
            return "what the choices earned says no more than chance"
        return f"its step was below {100 * STILL:g} % of the grid"

    def why_moved(self, number: int, step: float, before: PolicyState, window: list[dict[str, Any]]) -> str:
        """Say what moved one hyper-parameter's mean: what the choices earned, if that is what moves psi."""
        if self.psi == WALK:
            return "at random"
        if self.psi == ASCENT and self.baseline == "centred":
            advantage, baseline = self.credit(window)
            one = window[int(np.flatnonzero(advantage)[0])]
            earned, around = gains(one["reward"], baseline or 0.0)
            choice = one["choice"][self.grid.names[number]]
            return f"round {one['round']} with {choice:.3g} {earned}, those around it {around}"
        alike = paid_alike(window)
        r = 0.0 if alike else float(self.agreement(window)[number])
        learned = before["moments"]["mu"][0][number] if "moments" in before else 0.0
        if r * step <= 0 < learned * step:
            return "by what was learned before"
        trend = " than the trend" if self.psi != ASCENT and len(window) >= TREND else ""
        chance, size = apart(1 / math.sqrt(len(window)), abs(r), 2)
        signed = f"r = {'+' if r > 0 else '-'}{size}{f', chance {chance}' if self.psi == SCALED else ''}"
        likelier = f"those that a {'higher' if step > 0 else 'lower'} mean makes likelier"
        return f"of the last {len(window)} choices, {likelier} earned more{trend} ({signed})"


def paid_alike(window: list[dict[str, Any]]) -> bool:
    return len({entry["reward"] for entry in window}) == 1


def detrended(rewards: np.ndarray) -> np.ndarray:
    """Return the rewards less their linear trend, or less their mean if there are few; rounding errors become 0."""
    time = np.arange(len(rewards)) - (len(rewards) - 1) / 2
    slope = float(time @ rewards / (time @ time)) if len(rewards) >= TREND else 0.0
    left: np.ndarray = rewards - rewards.mean() - slope * time
    return np.where(np.abs(left) < 1e-12 * np.abs(rewards).max(), 0.0, left)


def ranks(values: np.ndarray) -> np.ndarray:
    """Return the ranks of the values, centred on zero; equal values share one rank."""
    below, equal = values[:, None] > values, values[:, None] == values
    found: np.ndarray = below.sum(1) + equal.sum(1) / 2
    return found - found.mean()


def scores(window: list[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([entry["score_mu"] for entry in window]), np.array([entry["score_A"] for entry in window])


def correlated(earned: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return the correlation about zero of what was earned with each score, between -1 and 1."""
    size = math.sqrt(float(np.mean(earned**2)))
    if size < 1e-12:
        none: np.ndarray = 0.0 * scores[0]
        return none
    scaled = earned / (size * len(earned))
    found: np.ndarray = np.tensordot(scaled, scores, 1) / np.maximum(1e-12, np.sqrt((scores**2).mean(0)))
    return found


def adam(moments: Sequence[Any], gradient: np.ndarray, count: int) -> tuple[np.ndarray, list[Any]]:
    """Return Adam's step of unit rate, and its two moments."""
    first = BETAS[0] * np.array(moments[0]) + (1 - BETAS[0]) * gradient
    second = BETAS[1] * np.array(moments[1]) + (1 - BETAS[1]) * gradient**2
    step = (first / (1 - BETAS[0] ** count)) / (np.sqrt(second / (1 - BETAS[1] ** count)) + 1e-8)
    return step, [first.tolist(), second.tolist()]


LABELS = {"lr": "learning rate", "steps": "SGD iterations"}


def gains(one: float, other: float) -> tuple[str, str]:
    """Say in words what two rounds earned, in per cent, with enough figures to tell them apart."""
    pairs = [
        [f"{'gained' if each >= 0 else 'lost'} {written(abs(100 * each), n)} %" for each in (one, other)]
        for n in range(2, 18)
    ]
    first, second = next((pair for pair in pairs if pair[0] != pair[1]), pairs[0])
    return first, second


def bounded(A: np.ndarray) -> np.ndarray:
    """Make A symmetric and bound its eigenvalues, so that A stays a precision and the draws keep a spread."""
    if A.ndim == 1:
        clipped: np.ndarray = np.clip(A, SMALLEST, LARGEST)
        return clipped
    values, vectors = np.linalg.eigh((A + A.T) / 2)
    if values[0] >= SMALLEST and values[-1] <= LARGEST:
        symmetric: np.ndarray = (A + A.T) / 2
        return symmetric
    rebuilt: np.ndarray = (vectors * np.clip(values, SMALLEST, LARGEST)) @ vectors.T
    return (rebuilt + rebuilt.T) / 2
