"""Line 15, L_{t+1} = Loss(w_{t+1}), in the paper's two ways, and the test accuracy."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from fedaccord.records import Examples, Params, Prepare

EVAL_BATCH = 500


class Judge:
    """Measures a model's parameters on one fixed set of examples: the first way is `loss` on the server's small set."""

    def __init__(self, model: nn.Module, examples: Examples, prepare: Prepare):
        self.model = copy.deepcopy(model).eval()
        self.examples = examples
        self.prepare = prepare

    @torch.inference_mode()
    def measure(self, params: Params) -> tuple[float, float]:
        """Mean cross-entropy and the share of right answers."""
        loss, right = 0.0, 0
        for first in range(0, len(self.examples), EVAL_BATCH):
            batch = self.examples[first : first + EVAL_BATCH]
            logits = functional_call(self.model, params, (self.prepare(batch.inputs, None),))
            loss += float(cross_entropy(logits, batch.targets, reduction="sum"))
            right += int((logits.argmax(1) == batch.targets).sum())
        return loss / len(self.examples), right / len(self.examples)

    def loss(self, params: Params, clients: Sequence[Mapping[str, Any]] = ()) -> float:
        return self.measure(params)[0]

    def accuracy(self, params: Params) -> float:
        return self.measure(params)[1]


class ClientLosses:
    """The second way: the mean of the losses that the round's clients report for the model they received.

    What is known after round t is thus L_t, not L_{t+1}: the reward that follows from it is that of round t - 1.
    """

    def __call__(self, params: Params, clients: Sequence[Mapping[str, Any]]) -> float | None:
        reported = [entry["received_loss"] for entry in clients if entry.get("received_loss") is not None]
        return sum(reported) / len(reported) if reported else None
