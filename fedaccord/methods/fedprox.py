"""WD: the weight-divergence term ||w_t - w_t^i||_2^2, the paper's baseline for matching.

It is the proximal term of FedProx (Li et al., 2018, Algorithm 2), (mu / 2) ||w - w_t||^2, with mu = 2 wd_weight.
FedProx also takes partial work, and counts it in full; `partial` here counts it by its share. With an optimizer other
than SGD the weights themselves are pulled, as AdamW decays them, so that the pull is not scaled by what the
optimizer makes of gradients.
"""

import torch

from fedaccord.core.protocols import NOTHING, THE_GRADIENTS, THE_WEIGHTS, Built, ClientPart, Part, Step
from fedaccord.core.records import Hyper
from fedaccord.core.settings import at_least, hyper


class Pull(ClientPart):
    """The client side of WD, which adds the term's gradient, 2 wd_weight (w_t^i - w_t), before the step.

    The term needs no graph.
    """

    stacks = True

    def corrects(self, hyper: Hyper) -> str:
        if not hyper["wd_weight"]:
            return NOTHING
        return THE_GRADIENTS if by_gradient(hyper) else THE_WEIGHTS

    def correct(self, step: Step) -> None:
        weight = step.hyper["wd_weight"]
        if by_gradient(step.hyper):
            apart = torch._foreach_sub(step.weights, step.received)
            torch._foreach_add_(step.gradients, apart, alpha=2 * weight)
        else:  # w - lr (g + 2 weight (w - w_t)), without a tensor for the second term
            torch._foreach_lerp_(step.weights, step.received, 2 * step.hyper.lr * weight)


def by_gradient(hyper: Hyper) -> bool:
    """Return whether the term's gradient must join the loss's, since momentum or clipping is applied to their sum."""
    return bool(hyper.momentum or hyper.clip_gradient)


class FedProx(Part):
    name = "WD"
    about = "also pulls each client's weights towards those it received (FedProx)"
    settings = (
        hyper(at_least(0, "wd_weight", 0.1, "Weight of the weight-divergence term."), axis="0.0005..0.5/7 log"),
    )

    def client(self, built: Built) -> ClientPart:
        return Pull()
