"""Eq. 2 and its terms: what a client minimises."""

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax, nll_loss

from fedaccord.records import Hyper, Params


class Loss(Protocol):
    """The client's loss on one mini-batch, a scalar with a graph to the trainable parameters."""

    def __call__(self, inputs: Tensor, targets: Tensor) -> Tensor: ...


class Objective(Protocol):
    """A method's choice of what the clients minimise. A method is a value: this object and a policy."""

    def begin(self, model: nn.Module, received: Params, hyper: Hyper) -> Loss:
        """The loss for one client in one round; `model` already holds the received parameters."""
        ...


class Plain:
    """FA: cross-entropy and the entropy term."""

    def begin(self, model: nn.Module, received: Params, hyper: Hyper) -> Loss:
        return lambda inputs, targets: classification(model(inputs), targets, hyper)


def classification(logits: Tensor, targets: Tensor, hyper: Hyper) -> Tensor:
    """L_C + entropy_weight * L_ER, each the mean over the batch.

    Eq. 8: L_ER(x) = max(0, H_min - H(softmax(a_M(x)))), per sample as printed.
    """
    log_p = log_softmax(logits, dim=1)  # (batch, classes)
    loss = nll_loss(log_p, targets)
    if hyper.entropy_weight:
        entropy = -(log_p.exp() * log_p).sum(dim=1)  # (batch,)
        loss = loss + hyper.entropy_weight * torch.clamp(hyper.entropy_min - entropy, min=0).mean()
    return loss
