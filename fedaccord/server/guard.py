"""Line 16, the reward, and the guards that the paper lacks."""

import math

from fedaccord.core.algorithm import Guard, Verdict
from fedaccord.core.protocols import Measured
from fedaccord.core.records import ServerState, Snapshot

CLIP = 1.0
"""Rewards are relative, so one bound serves all tasks: -1 means that the loss doubled."""


def guard(guards: bool = True, minimum: int = 1) -> Guard:
    """Line 16: r_t = (L_t - L_{t+1}) / L_t.

    Guards: with fewer than `minimum` usable updates the round is skipped. A model whose loss is not finite, or has more
    than doubled, is thrown away with all that goes with it, the one before it stays, and the reward is -1. A reward is
    clipped to [-1, 1].
    """

    def judge(state: ServerState, model: Snapshot, measured: Measured, accepted: int) -> Verdict:
        if accepted < max(1, minimum):
            few = "no usable update" if accepted == 0 else f"{accepted} usable updates, at least {minimum} are wanted"
            return Verdict(state.model, state.loss, None, carried_out=False, guard=f"skipped: {few}")
        loss, before = measured.loss, state.loss if measured.before is None else measured.before
        if loss is None or before is None:
            return Verdict(model, loss, None)
        blown = not math.isfinite(loss) or loss > (1 + CLIP) * before
        if guards and blown:
            # where the clients report, this is the loss of the model they received: it goes, with all they made of it
            late = state.previous is not None
            kept = state.previous if state.previous is not None else state.model
            size = f"rose from {before:.4g} to {loss:.4g}" if math.isfinite(loss) else "was not finite"
            return Verdict(kept, state.loss, -CLIP, carried_out=not late, guard=f"rolled back: the loss {size}")
        if not math.isfinite(loss) or before == 0:
            return Verdict(model, loss if math.isfinite(loss) else None, None)
        reward = (before - loss) / before
        return Verdict(model, loss, max(-CLIP, min(CLIP, reward)) if guards else reward)

    return judge
