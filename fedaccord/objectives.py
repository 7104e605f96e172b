"""The objectives that clients minimise: the default for classification, and a user's own loss."""

import math
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax, nll_loss

from fedaccord.core.batches import IGNORED
from fedaccord.core.records import Hyper, LossFunction, Objective

WORST = 2.0
"""The most that an example may count where clients may lie, as a multiple of the cross-entropy of a guess."""


def classification(output: Tensor, targets: Tensor, hyper: Hyper) -> Tensor:
    """Compute L_C + entropy_weight * L_ER, each the mean over the batch.

    Eq. 8: L_ER(x) = max(0, H_min - H(softmax(a_M(x)))), per sample as printed. In a sequence every place that has a
    target is a sample: output (examples, places, classes), targets (examples, places).
    """
    weight = hyper.get("entropy_weight", 0.0)
    if targets.dim() > 1:
        return sequences(output.flatten(0, -2), targets.flatten(), lowest_of(hyper, output), weight)
    if not weight:
        return cross_entropy(output, targets)
    loss, _ = Classification.apply(output, targets, lowest_of(hyper, output), weight)
    return cast(Tensor, loss)


def bounded(output: Tensor, targets: Tensor, hyper: Hyper) -> Tensor:
    """Compute L_C + entropy_weight * L_ER with an example's cross-entropy limited to twice that of a guess.

    It measures L_t where clients may lie: a liar can unlearn its class without end, and by the plain mean every round
    would then look like a bad one.
    """
    weight, most = hyper.get("entropy_weight", 0.0), WORST * math.log(output.shape[-1])
    return sequences(output.flatten(0, -2), targets.flatten(), lowest_of(hyper, output), weight, most)


def lowest_of(hyper: Hyper, output: Tensor) -> float:
    """Return H_min, as the hyper-parameters have it or else the default for the number of classes."""
    lowest = hyper.get("entropy_min")
    return default_entropy_min(output.shape[-1]) if lowest is None else float(lowest)


def sequences(output: Tensor, targets: Tensor, lowest: float, weight: float, most: float = math.inf) -> Tensor:
    """Compute L_C + weight * L_ER over the samples that have a target.

    The shapes are (samples, classes) and (samples,). `most`: the limit on a sample's cross-entropy.
    """
    log_p = log_softmax(output, dim=1)
    there = (targets != IGNORED).to(output.dtype)
    each = nll_loss(log_p, targets, ignore_index=IGNORED, reduction="none")
    if most < math.inf:  # not in a training step
        each = each.clamp(max=most)
    if weight:
        each = each + weight * there * torch.clamp(lowest + (log_p.exp() * log_p).sum(dim=1), min=0)
    return each.sum() / there.sum().clamp(min=1)


def default_entropy_min(classes: int) -> float:
    """Return the default H_min, for which the paper gives no value: 2.0 nats for ten classes."""
    return round(0.87 * math.log(classes), 4)


class Classification(torch.autograd.Function):
    """L_C and L_ER with their gradient written out: a third of the calls that autograd would need for it.

    With p = softmax(a) and y the one-hot target, dL_C/da = p - y and, where H < H_min, dL_ER/da = p (log p + H).
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(logits: Tensor, targets: Tensor, entropy_min: float, weight: float) -> tuple[Tensor, Tensor]:
        log_p = log_softmax(logits, dim=1)  # (batch, classes)
        p = log_p.exp()
        entropy = -(p * log_p).sum(dim=1, keepdim=True)  # (batch, 1)
        lack = torch.clamp(entropy_min - entropy, min=0)
        hit = targets.unsqueeze(1)
        loss = (weight * lack - log_p.gather(1, hit)).mean()
        gradient = p + (weight * (lack > 0)) * p * (log_p + entropy)
        gradient = gradient.scatter_add(1, hit, -torch.ones_like(entropy)) / len(logits)
        return loss, gradient

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, *outer: Any) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return outer[0] * gradient, None, None, None


def objective_of(loss: LossFunction | None) -> Objective:
    """Return a user's loss(output, targets) as an objective; for None, classification with the entropy term."""
    if loss is None:
        return classification
    return lambda output, targets, hyper: loss(output, targets)
