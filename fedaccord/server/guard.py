"""Line 16, the reward, and the guards that the paper lacks."""

import math

from fedaccord.core.algorithm import LAST, Aggregated, Guard, Measure, Verdict
from fedaccord.core.records import ServerState, Snapshot
from fedaccord.server.steps import towards

CLIP = 1.0
"""Rewards are relative, so one bound serves all tasks: -1 means that the loss doubled."""
SHARES = (1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32)
"""Of a step that blew up: the first that does no harm is taken."""


def guard(guards: bool = True, minimum: int = 1, rewarded: str = LAST, late: bool = False) -> Guard:
    """Line 16: r_t = (L_t - L_{t+1}) / L_t, L being the loss of the model that is `rewarded`.

    Guards: with fewer than `minimum` usable updates the round is skipped. A step after which the loss of the last model
    is not finite, or has more than doubled, is shortened until it does no harm, and the reward is the worse the
    shorter; if no share of it helps, the model before stays with all that goes with it, and the reward is -1. A reward
    is clipped to [-1, 1]. `late`: the clients report, so what is known is the loss of the model that they received.
    """

    def judge(state: ServerState, mean: Aggregated, measure: Measure) -> Verdict:
        if len(mean.accepted) < max(1, minimum):
            return skipped(state, len(mean.accepted), minimum)
        if late:
            return judge_late(state, mean, measure)
        model, loss, before = mean.model, measure(mean.model, LAST).loss, state.last_loss
        worst, told = 1.0, None
        if guards and blown(loss, before):
            model, share, told = mended(state, mean, measure, loss)
            if share == 0.0:
                return Verdict(model, state.loss, before, -CLIP, guard=told)
            loss, worst = measure(model, LAST).loss, share - CLIP
        paid = loss if rewarded == LAST else measure(model, rewarded).loss
        reward = gain(state.loss, paid, guards)
        return Verdict(model, usable(paid), usable(loss), None if reward is None else min(reward, worst), guard=told)

    def judge_late(state: ServerState, mean: Aggregated, measure: Measure) -> Verdict:
        found = measure(state.model, LAST)
        loss, before = found.loss, state.loss if found.before is None else found.before
        if guards and blown(loss, before) and state.previous is not None:
            # the model that they received was bad, and so is all that they made of it
            model = Snapshot(
                towards(state.previous.params, state.model.params, SHARES[1]),
                state.previous.server,
                state.previous.accepted,
            )
            told = f"taken back to a quarter of the step: the loss {rise(before, loss)}"
            return Verdict(model, state.loss, state.loss, -CLIP, carried_out=False, guard=told)
        return Verdict(mean.model, usable(loss), usable(loss), gain(before, loss, guards))

    return judge


def skipped(state: ServerState, accepted: int, minimum: int) -> Verdict:
    """A round whose updates are too few."""
    few = "no usable update" if accepted == 0 else f"{accepted} usable updates, at least {minimum} are wanted"
    return Verdict(state.model, state.loss, state.last_loss, None, carried_out=False, guard=f"skipped: {few}")


def mended(state: ServerState, mean: Aggregated, measure: Measure, loss: float | None) -> tuple[Snapshot, float, str]:
    """The longest share of a bad step that does no harm, or none of it; and what was done, in words."""
    before = state.last_loss
    what = f"the loss {rise(before, loss)}"
    for share in SHARES:
        model = mean.shortened(share)
        now = measure(model, LAST).loss
        if now is not None and before is not None and now <= before:
            return model, share, f"shortened to 1/{round(1 / share)}: {what}"
    return state.model, 0.0, f"rolled back: {what}"


def blown(loss: float | None, before: float | None) -> bool:
    """Whether the loss is not finite, or has more than doubled."""
    if loss is None or before is None:
        return False
    return not math.isfinite(loss) or loss > (1 + CLIP) * before


def rise(before: float | None, loss: float | None) -> str:
    finite = loss is not None and before is not None and math.isfinite(loss)
    return f"rose from {before:.4g} to {loss:.4g}" if finite else "was not finite"


def usable(loss: float | None) -> float | None:
    return loss if loss is not None and math.isfinite(loss) else None


def gain(before: float | None, loss: float | None, clipped: bool) -> float | None:
    """The reward, if both losses are known."""
    if not before or usable(loss) is None or loss is None:
        return None
    reward = (before - loss) / before
    return max(-CLIP, min(CLIP, reward)) if clipped else reward
