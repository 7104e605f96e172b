"""Line 16, the reward, and the guards that the paper lacks."""

import math
import statistics
from dataclasses import dataclass, replace
from functools import partial

import torch

from fedaccord.core.algorithm import LAST, Aggregated, Guard, Measure, Verdict
from fedaccord.core.observing import FIRST_ROUNDS, PLAUSIBLE, relative_norm
from fedaccord.core.records import ServerState, Snapshot, finite
from fedaccord.server.steps import towards
from fedaccord.server.stretch import Length

CLIP = 1.0
"""Rewards are relative, so one bound serves all tasks: -1 means that the loss doubled."""
RUIN = 10.0
"""A model is ruined if its loss is more than this many times the first. With a fixed rate, a smaller rise may be a part
of the way. CIFAR-10 (width 8), one class per client, C = 0.5, 0.05 x 6: the loss rises from 2.3 to 6.7 in the first
round, and 80 rounds end at 34 %; at 13 % if every round whose loss has doubled is mended."""
LOST, SLACK = 1 / 2, 1e-3
"""Shares of what was gained and of the loss itself: a step that raises the loss by more than their sum is a bad one."""
EARLY, SOON = 0.05, 32
"""As long as less than the share EARLY of the first loss was gained, a bad round is better undone than shortened; but
only in the first SOON rounds, or the guard could stop the training."""
SHARES = (1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32)
"""The shares of a step that blew up, of which the first that does no harm is taken."""


@dataclass(frozen=True)
class Rules:
    """What a guard goes by.

    guards    whether it mends bad rounds at all; False: as printed
    minimum   the fewest usable updates with which a round counts
    everyone  all clients train in every round, and honestly. Then a step that loses more than half of all that was
              gained is a bad one, too: near the loss of a guess nothing can double, and yet a network can die
    tuned     the rate is chosen anew from round to round. Where it is fixed, the next step would be as bad, and a guard
              that mends every step stops the training; then only ruin counts, a loss of more than ten times the first
    follows   the rate comes down after a harmful round, so early on such a round is undone. So is a first step that is
              out of all proportion to the model and gains nothing: it can ruin a network without raising its loss above
              that of a guess
    """

    guards: bool = True
    minimum: int = 1
    everyone: bool = False
    tuned: bool = True
    follows: bool = False


USUAL = Rules()


def guard(rules: Rules = USUAL, rewarded: str = LAST, length: Length | None = None) -> Guard:
    """Line 16: return a guard that computes r_t = (L_t - L_{t+1}) / L_t, where L is the loss of the model `rewarded`.

    A step after which the loss of the last model is not finite, or has more than doubled, is shortened until it does no
    harm, and the shorter it is, the lower is the reward; if no share of it helps, the model before stays with all that
    goes with it, and the reward is -1. Rewards are clipped to [-1, 1].

    `length`: how far the server goes along the clients' mean step; where that blows up, it goes as far as their mean.
    """

    def judge(state: ServerState, mean: Aggregated, measure: Measure) -> Verdict:
        if len(mean.accepted) < max(1, rules.minimum):
            return skipped(state, len(mean.accepted), rules.minimum)
        model, stretch = mean.model, None
        if length is not None:
            model, stretch = length(state.round + 1, mean, lambda each: measure(each, rewarded).loss)
        loss, before = measure(model, LAST).loss, state.last_loss
        if rules.guards and rules.follows and overshot(state, mean, loss):
            far = f"undone: the clients went {relative_norm(mean):.2g} times as far as the model is from zero"
            return Verdict(state.model, state.loss, before, None, carried_out=False, guard=far)
        blown = partial(bad, state=state, everyone=rules.everyone) if rules.tuned else partial(ruined, state=state)
        if rules.guards and stretch is not None and stretch.taken > 1.0 and blown(loss):
            model, stretch, loss = mean.model, replace(stretch, taken=1.0), measure(mean.model, LAST).loss
        worst, told = math.inf, None
        if rules.guards and blown(loss):
            model, share, told = mended(state, mean, measure, loss, undo=rules.follows and early(state))
            if share == 0.0:
                return Verdict(model, state.loss, before, -CLIP, guard=told)
            loss, worst = measure(model, LAST).loss, share - CLIP
            stretch = None if stretch is None else replace(stretch, taken=share, wanted=share)
        paid = loss if rewarded == LAST else measure(model, rewarded).loss
        reward = gain(state, state.loss, paid, rules.guards)
        paid_out = None if reward is None else min(reward, worst)
        return Verdict(model, usable(paid), usable(loss), paid_out, guard=told, stretch=stretch)

    return judge


def late_guard(rules: Rules = USUAL, length: Length | None = None) -> Guard:
    """Line 16: return a guard for runs whose clients report the loss of the model that they received, a round late.

    If that model was a bad one, so is all that they made of it. Of the step that led to it a quarter is left; nothing
    if the model is dead and the rate comes down for it, or if too few updates are usable because most clients' training
    from it blew up. What the clients then report of the model that was put back is no choice's reward.
    """

    def judge(state: ServerState, mean: Aggregated, measure: Measure) -> Verdict:
        if len(mean.accepted) < max(1, rules.minimum):
            back = given_up(state, mean) if rules.guards else None
            return skipped(state, len(mean.accepted), rules.minimum) if back is None else back
        found = measure(state.model, LAST)
        loss, before = found.loss, state.last_loss if found.before is None else found.before
        dead = ruined(loss, state) or (rules.tuned and forgotten(loss, mean, state))
        if rules.guards and state.previous is not None and (dead or (rules.tuned and doubled(state, before, loss))):
            share = 0.0 if dead and rules.follows else SHARES[1]
            params = towards(state.previous.params, state.model.params, share) if share else state.previous.params
            told = f"taken back{' to a quarter of the step' if share else ''}: the loss {change(before, loss)}"
            reward = None if state.loss is None else share - CLIP
            return Verdict(replace(state.previous, params=params), None, state.last_loss, reward, False, told)
        reward = None if state.loss is None else gain(state, before, loss, rules.guards)
        model, stretch = mean.model, None
        if length is not None:
            model, stretch = length(state.round + 1, mean, lambda each: None)
        return Verdict(model, usable(loss), usable(loss), reward, stretch=stretch)

    return judge


def given_up(state: ServerState, mean: Aggregated) -> Verdict | None:
    """Return the verdict that takes back a model from which most clients' training blew up, or None.

    It is None if most clients could train from it, if no model before it is kept, or if it was taken back already.
    """
    lost, asked = sum(refusal.diverged for refusal in mean.refused), len(mean.accepted) + len(mean.refused)
    if state.previous is None or lost <= max(1, asked / 2) or same(state.previous, state.model):
        return None
    told = f"taken back: {lost} of {asked} clients could not train from it"
    reward = None if state.loss is None else -CLIP
    return Verdict(state.previous, None, state.last_loss, reward, carried_out=False, guard=told)


def same(one: Snapshot, other: Snapshot) -> bool:
    """Return whether two models are equal: a resume reads each from disk, so that they are no longer one object."""
    return all(torch.equal(value, other.params[name]) for name, value in one.params.items())


def skipped(state: ServerState, accepted: int, minimum: int) -> Verdict:
    """Return the verdict on a round with too few updates: the model stays."""
    few = "no usable update" if accepted == 0 else f"{accepted} usable updates, at least {minimum} are wanted"
    return Verdict(state.model, state.loss, state.last_loss, None, carried_out=False, guard=f"skipped: {few}")


def mended(
    state: ServerState, mean: Aggregated, measure: Measure, loss: float | None, undo: bool
) -> tuple[Snapshot, float, str]:
    """Return the model after the longest harmless share of a bad step, that share (or 0), and what was done, in words.

    `undo`: take none of it. Early on there is nothing that a share of it could add to, and the step may have ruined
    the model.
    """
    before = state.last_loss
    what = f"the loss {change(before, loss)}"
    for share in () if undo else SHARES:
        model = mean.scaled(share)
        now = measure(model, LAST).loss
        if now is not None and before is not None and now <= before:
            return model, share, f"shortened to 1/{round(1 / share)}: {what}"
    return state.model, 0.0, f"rolled back: {what}"


def overshot(state: ServerState, mean: Aggregated, loss: float | None) -> bool:
    """Return whether the very first step is out of all proportion to the model, and gains next to nothing."""
    relative, first = relative_norm(mean), state.first_loss
    if relative is None or relative <= PLAUSIBLE[1] or state.model.accepted or state.round >= FIRST_ROUNDS:
        return False
    return loss is None or first is None or not loss < first - EARLY * abs(first)


def bad(loss: float | None, state: ServerState, everyone: bool) -> bool:
    """Return whether the loss has more than doubled, or lost too much of what was gained.

    The latter counts only where all clients train: where clients differ, training a part of them raises the loss
    by itself.
    """
    before = state.last_loss
    if not everyone or loss is None or before is None or state.gained is None or doubled(state, before, loss):
        return doubled(state, before, loss)
    return loss - before > LOST * state.gained + SLACK * abs(before)


def forgotten(loss: float | None, mean: Aggregated, state: ServerState) -> bool:
    """Return whether almost all of a considerable gain was lost, and the clients' training did not bring it back.

    Opposed clients overshoot and come back by themselves; a network that a high rate has killed does not.
    """
    if loss is None or state.gained is None or state.first_loss is None:
        return False
    little = EARLY * abs(state.first_loss)
    losses = [each.loss for each in mean.accepted if math.isfinite(each.loss)]
    trained = statistics.median(losses) if losses else math.inf  # a liar does not move it far
    return state.gained > 2 * little and min(loss, trained) > state.first_loss - little


def ruined(loss: float | None, state: ServerState) -> bool:
    """Return whether the loss is not finite, or more than RUIN times the first that was known."""
    first = state.last_loss if state.first_loss is None else state.first_loss
    return loss is not None and first is not None and (not math.isfinite(loss) or loss > RUIN * abs(first))


def doubled(state: ServerState, before: float | None, loss: float | None) -> bool:
    """Return whether the loss is not finite, or has more than doubled."""
    if loss is None or before is None:
        return False
    return not math.isfinite(loss) or loss > before + CLIP * size(state, before)


def size(state: ServerState, before: float) -> float:
    """Return the scale by which a change of the loss is measured.

    It is the loss itself or, where losses can be negative, all that was gained if that is more. A likelihood is as good
    at -0.01 as at 0.01, and nothing has doubled between them.
    """
    # PAPER (line 16): L_t. HERE: the same, unless losses have been negative. WHY: the paper's never are; see above
    if before > 0 and (state.best_loss is None or state.best_loss >= 0):
        return before
    return max(abs(before), state.gained or 0.0)


def early(state: ServerState) -> bool:
    """Return whether hardly anything was gained yet, in the first rounds."""
    if state.gained is None or state.first_loss is None or state.round >= SOON:
        return False
    return state.gained < EARLY * abs(state.first_loss)


def change(before: float | None, loss: float | None) -> str:
    """Return in words what became of the loss; a dead model's may be a little lower than the one before."""
    if loss is None or before is None or not math.isfinite(loss):
        return "was not finite"
    return f"{'rose' if loss > before else 'went'} from {before:.4g} to {loss:.4g}"


def usable(loss: float | None) -> float | None:
    return None if loss is None else finite(loss)


def gain(state: ServerState, before: float | None, loss: float | None, clipped: bool) -> float | None:
    """Compute line 16's reward from the loss before and after; None if they are not known, or have no scale."""
    if before is None or usable(loss) is None or loss is None or not (scale := size(state, before)):
        return None
    reward = (before - loss) / scale
    return max(-CLIP, min(CLIP, reward)) if clipped else reward
