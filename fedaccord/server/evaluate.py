"""Line 15, L_{t+1} = Loss(w_{t+1}), in the paper's two ways, and the test accuracy."""

import copy
import math
import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedaccord.core.records import Examples, Measured, Params, Prepare, Yardstick

EVAL_BATCH = 128
"""Activations of more examples at once no longer fit the cache: 500 of CIFAR-10 take a quarter longer."""


class Judge:
    """Measures a model's parameters on one fixed set of examples: the first way is `loss` on the server's small set."""

    def __init__(
        self,
        model: nn.Module,
        examples: Examples,
        prepare: Prepare,
        yardstick: Yardstick = cross_entropy,
        workers: int = 1,
    ):
        self.model = copy.deepcopy(model).eval()
        self.examples = examples
        self.prepare = prepare
        self.yardstick = yardstick
        # a thread a core, one torch thread each: the batches and the order of their sum are the same for any number
        self.threads = (
            ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) if workers > 1 else None
        )

    @torch.no_grad()
    def measure(self, params: Params) -> tuple[float, float]:
        """The mean loss and the share of right answers."""
        for name, tensor in self.model.state_dict(keep_vars=True).items():
            tensor.copy_(params[name])
        each = map if self.threads is None else self.threads.map
        results = list(each(self.part, range(0, len(self.examples), EVAL_BATCH)))
        loss, right = sum(loss for loss, _ in results), sum(right for _, right in results)
        return loss / len(self.examples), right / len(self.examples)

    @torch.no_grad()
    def part(self, first: int) -> tuple[float, int]:
        """The summed loss and the number of right answers of one batch."""
        batch = self.examples[first : first + EVAL_BATCH]
        logits = self.model(self.prepare(batch.inputs.clone(), None))  # a copy: a model may work in place
        loss = float(self.yardstick(logits, batch.targets)) * len(batch)
        return loss, int((logits.argmax(1) == batch.targets).sum())

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
        """What is not a finite number stands as None in the entry; if there is nothing else, the loss is infinite."""
        reported = [entry[key] for entry in clients if key in entry]
        finite = [loss for loss in reported if loss is not None]
        if not reported:
            return None
        return float(self.average(finite)) if finite else math.inf
