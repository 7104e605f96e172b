"""Line 15, L_{t+1} = Loss(w_{t+1}), in the paper's two ways, and the metrics of the test set."""

import copy
import math
import statistics
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import nn

from fedaccord.core.batches import Batch, clone, count, output_of
from fedaccord.core.errors import FedAccordError, TaskError, first_line
from fedaccord.core.params import load_params
from fedaccord.core.protocols import Measured
from fedaccord.core.records import Accepted, ClientData, Examples, LossFunction, Metric, Params, Prepare, metrics_on
from fedaccord.core.seeds import global_seed

EVAL_BATCH = 128
"""Examples in one batch. The activations of more no longer fit the cache: 500 of CIFAR-10 take a quarter longer."""


class Evaluator:
    """An evaluator of models on a fixed set of examples; the paper's first way is `loss` on the server's small set."""

    def __init__(
        self,
        model: nn.Module,
        examples: ClientData,
        prepare: Prepare,
        loss: LossFunction | None = None,
        metrics: Sequence[Metric] = (),
        workers: int = 1,
    ):
        self.model = copy.deepcopy(model).eval()
        self.examples, self.prepare = examples, prepare
        self.loss_function, self.wanted = loss, metrics
        self.random: bool | None = None  # whether the model draws random numbers; None: not known yet
        # one thread per core, one torch thread each: the batches and the order of their sum are the same for any number
        self.threads = (
            ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(1,)) if workers > 1 else None
        )

    def outputs(self, params: Params) -> Iterator[tuple[Any, Batch]]:
        """Return an iterator over the model's output and the targets of each batch."""
        load_params(self.model, params)
        if self.random is None:
            self.random = self.draws()
        starts = range(0, len(self.examples), EVAL_BATCH)
        # a Dataset need not be thread-safe, and a model that draws takes from the one generator of all threads
        if self.threads is None or self.random or not isinstance(self.examples, Examples):
            return map(self.seeded, starts)
        return iter(self.threads.map(self.output, starts))

    def draws(self) -> bool:
        """Return whether the model draws random numbers, even in evaluation mode."""
        with global_seed(0, "evaluation"):
            before = torch.get_rng_state()
            self.output(0)
            return torch.accelerator.is_available() or not torch.equal(before, torch.get_rng_state())

    def seeded(self, first: int) -> tuple[Any, Batch]:
        """Return a batch's output and targets; whatever the model draws is the same in every evaluation."""
        with global_seed(0, "evaluation", first):
            return self.output(first)

    @torch.no_grad()
    def output(self, first: int) -> tuple[Any, Batch]:
        batch = self.examples[first : first + EVAL_BATCH]
        try:
            return output_of(self.model, self.prepare(clone(batch.inputs), None)), batch.targets
        except FedAccordError:
            raise
        except Exception as error:  # whatever a user's model raises
            raise self.failed("the model", first, error) from error

    def failed(self, what: str, first: int, error: Exception) -> TaskError:
        """Return the error for a failure in the user's own code, with the place where it happened."""
        where = f"the server's {'validation' if self.loss_function else 'test'} set, examples from {first} on"
        return TaskError(f"{where}: {what} failed: {type(error).__name__}: {first_line(error)}")

    @torch.no_grad()
    def loss(self, params: Params, clients: Sequence[Accepted] = ()) -> Measured:
        """Return the mean loss over the set."""
        assert self.loss_function is not None
        total = 0.0
        for number, (output, targets) in enumerate(self.outputs(params)):
            try:
                total += float(self.loss_function(output, targets)) * count(targets)
            except Exception as error:  # whatever a user's function raises
                raise self.failed("the loss", number * EVAL_BATCH, error) from error
        return Measured(total / len(self.examples))

    @torch.no_grad()
    def metrics(self, params: Params) -> dict[str, float]:
        """Return the metrics over the set, by name, without those that are not finite."""
        return metrics_on(self.outputs(params), self.wanted)


class ClientLosses:
    """The paper's second way: the clients' losses of the model they received, averaged as printed, or robustly.

    What is known after round t is thus L_t, not L_{t+1}: the reward that follows from it is that of round t - 1. Where
    the clients measured the model before it on the same examples, these two losses are compared, so that the choice of
    the cohort adds no noise. The median stays among the honest reports as long as fewer than half of the clients lie.
    """

    def __init__(self, robust: bool = False):
        self.average = statistics.median if robust else statistics.fmean

    def __call__(self, params: Params, clients: Sequence[Accepted]) -> Measured:
        return Measured(
            self.mean([each.received_loss for each in clients]), self.mean([each.previous_loss for each in clients])
        )

    def mean(self, reports: Sequence[float | None]) -> float | None:
        """Return the average of the finite reports; infinity if no report is finite, None if there is none."""
        asked = [loss for loss in reports if loss is not None]
        finite = [loss for loss in asked if math.isfinite(loss)]
        if not asked:
            return None
        return float(self.average(finite)) if finite else math.inf
