"""Line 15, L_{t+1} = Loss(w_{t+1}), in the paper's two ways, and the test accuracy."""

import copy
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from fedaccord.records import Examples, Measured, Params, Prepare

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

    def loss(self, params: Params, clients: Sequence[Mapping[str, Any]] = ()) -> Measured:
        return Measured(self.measure(params)[0])

    def accuracy(self, params: Params) -> float:
        return self.measure(params)[1]


class ClientLosses:
    """The second way: what the round's clients report of the model they received, averaged as printed, or robustly.

    What is known after round t is thus L_t, not L_{t+1}: the reward that follows from it is that of round t - 1. Where
    they measured the model before it on the same examples, these two are compared: whose turn it was adds no noise.
    The median stays among the honest reports as long as fewer than half of the clients lie.
    """

    def __init__(self, robust: bool = False):
        self.average = statistics.median if robust else statistics.fmean

    def __call__(self, params: Params, clients: Sequence[Mapping[str, Any]]) -> Measured:
        return Measured(self.mean_of(clients, "received_loss"), self.mean_of(clients, "previous_loss"))

    def mean_of(self, clients: Sequence[Mapping[str, Any]], key: str) -> float | None:
        """A report that is not a finite number was dropped from the entry already."""
        reported = [entry[key] for entry in clients if entry.get(key) is not None]
        return float(self.average(reported)) if reported else None
