"""Line 14: every update is checked, then averaged, one at a time, in the order in which it comes (client order)."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from fedaccord.core.errors import UpdateRefused
from fedaccord.core.records import ClientUpdate, Params, Refusal

MAX_EXAMPLES = 10**9
"""No single client holds more than this; a larger claim would let it outvote all others."""


@dataclass(frozen=True)
class Aggregate:
    params: Params  # w_{t+1}
    clients: list[dict[str, Any]]  # one entry for each update that was used
    refused: list[dict[str, Any]]  # one for each that was not, with the reason
    step_norm: float = 0.0  # ||w_{t+1} - w_t||: against the clients' own norms it says how far they agree


def aggregate(
    received: Params,
    updates: Iterable[ClientUpdate | Refusal],
    server_lr: float = 1.0,
    total_examples: int | None = None,
    buffers: frozenset[str] = frozenset(),
) -> Aggregate:
    """Line 14: w_{t+1} = w_t + sum_i (n_i / N) (w_t^i - w_t), as a running mean: memory does not grow with the cohort.

    `total_examples` is the paper's N, all clients' data; None makes the weights of the cohort sum to 1. `buffers` (a
    BatchNorm's statistics) take the plain mean: a variance must not be extrapolated.
    """
    # PAPER (line 14): N is all data, so with C < 1 the weights sum to about C and every step is shortened by it.
    # HERE: N is the cohort's data unless total_examples is given. WHY: FedAvg's own weights; see docs/deviations.md.
    mean: Params | None = None
    seen, clients, refused = 0, [], []
    for update in updates:
        if isinstance(update, Refusal):
            refused.append({"client": update.client, "why": update.why})
            continue
        try:
            norm = check(received, update)
        except UpdateRefused as error:
            refused.append({"client": update.client, "why": str(error)[:200]})  # it may quote what a stranger sent
            continue
        seen += update.examples
        if mean is None:
            mean = {name: value.clone() for name, value in update.params.items()}
        else:
            absorb(mean, update.params, update.examples / seen)
        entry = {"client": update.client, "examples": update.examples, "loss": finite(update.loss), "update_norm": norm}
        for report in ("received_loss", "previous_loss"):
            if getattr(update, report) is not None:
                entry[report] = finite(getattr(update, report))
        clients.append(entry)
    if mean is None:
        return Aggregate(received, clients, refused)
    step = server_lr * (1.0 if total_examples is None else seen / total_examples)
    if step != 1.0:
        for name, value in mean.items():
            if value.is_floating_point() and name not in buffers:
                value.sub_(received[name]).mul_(step).add_(received[name])
    params = {name: mean[name] for name in received}
    return Aggregate(params, clients, refused, distance(received, params))


def absorb(mean: Params, params: Params, weight: float) -> None:
    """mean <- mean + weight (params - mean), in place. Equal values stay equal to the bit.

    A buffer that is not a float (BatchNorm's batch counter, an index table, a mask) takes the largest value:
    it has no mean, and equal ones stay as they are.
    """
    for name, value in mean.items():
        if value.is_floating_point():
            value.lerp_(params[name], weight)
        else:
            torch.maximum(value, params[name], out=value)


def check(received: Params, update: ClientUpdate) -> float:
    """The norm of the client's step ||w_t^i - w_t||; raises UpdateRefused for what must not enter the mean."""
    if type(update.examples) is not int or not 1 <= update.examples <= MAX_EXAMPLES:
        raise UpdateRefused(f"impossible number of examples: {update.examples!r}")
    if update.params.keys() != received.keys():
        odd = sorted(update.params.keys() ^ received.keys())[0]
        raise UpdateRefused(f"names differ from the model's, first at {odd!r}")
    for name, value in update.params.items():
        want = received[name]
        if value.shape != want.shape:
            raise UpdateRefused(f"{name} has shape {tuple(value.shape)}, the model has {tuple(want.shape)}")
        if value.dtype != want.dtype:
            raise UpdateRefused(f"{name} has type {value.dtype}, the model has {want.dtype}")
    norm = distance(received, update.params)
    if not math.isfinite(norm):  # a NaN or infinity anywhere makes the norm non-finite: one pass serves both
        raise UpdateRefused("a value is not finite")
    return norm


def distance(received: Params, params: Params) -> float:
    """||params - received|| over all that is a float."""
    floats = [name for name, value in received.items() if value.is_floating_point()]
    norms = torch._foreach_norm(torch._foreach_sub([params[n] for n in floats], [received[n] for n in floats]))
    return math.sqrt(math.fsum(float(norm) ** 2 for norm in norms))


def finite(value: float) -> float | None:
    """The number, or None where JSON has no word for it."""
    return float(value) if math.isfinite(value) else None
