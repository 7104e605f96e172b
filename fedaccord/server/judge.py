"""The checks that every update passes before it counts. One that fails is refused with a reason, and leaves no trace.

The names, shapes, types and values of the model's tensors and of every slot that the method declares; the number of
examples, losses and metrics; the client and the round. A client that passes all of them can still send a bad model: see
`docs/reliability.md`.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedaccord.core.errors import Diverged, UpdateRefused
from fedaccord.core.packages import check, check_finite, flatten
from fedaccord.core.protocols import SCALAR, Slot
from fedaccord.core.records import ClientUpdate, Hyper, Params
from fedaccord.server.sizes import Sizes
from fedaccord.server.vectors import distances, norm_of, norms_of, together

FAR = 1e6
"""A client's step may be this many times as long as the norm of the model, or as sqrt(d) if that is more: d weights
that each move by one. It is there for absurdities, not for liars: the longest step in results/ had a norm of 3e9, in a
search at a rate of 0.8 (benchmarks/longest_steps.py); it counted, because the model had grown as well."""
HUGE = 1e30
"""The largest statistic that a buffer may have: two of them still have a mean in float32."""
LARGEST_WHOLE = 2**40
"""A counter that is larger is a lie, unless the server's own is at least half as large."""
LOSS = 1e30
"""The largest loss or metric: not even the squared error of numbers as large as 10^14 is larger. One that is not finite
is no lie, but the end of a training that blew up."""
NORMAL = 1e-30
"""Weights with a norm above this do not all become subnormal in one round."""
ROUNDING = 1e-6
"""The share by which an honest number may exceed its bound, through rounding."""


@dataclass(frozen=True)
class Bounds:
    """The bounds that the updates of a round are checked against."""

    limit: float  # how long a client's step may be
    own: list[float]  # the norm of each weight tensor of the model


class Judge:
    """The judge of a round's updates, for one model and method; `up` has the slots that clients send."""

    def __init__(
        self,
        up: Mapping[str, tuple[Slot, Params]],
        weights: Sequence[str],
        buffers: Collection[str],
        clients: int,
        sizes: Sizes | None = None,
    ):
        self.up, self.weights, self.buffers, self.clients = up, weights, buffers, clients
        self.sizes = Sizes() if sizes is None else sizes

    def who(self, update: ClientUpdate, round: int, cohort: Collection[int] | None, came: Collection[int]) -> None:
        """Refuse an update from outside the cohort, of another round, or of a client that has replied already."""
        known = range(self.clients) if cohort is None else cohort
        if type(update.client) is not int or update.client not in known:
            raise UpdateRefused(f"client {str(update.client)[:20]} was not asked in this round")
        if update.client in came:
            raise UpdateRefused("a second update in the same round")
        if update.round and update.round != round:
            raise UpdateRefused(f"it is of round {str(update.round)[:20]}, and this is round {round}")

    def bounds(self, received: Params) -> Bounds:
        """Return the bounds that all updates of a round are checked against."""
        weights = [received[name] for name in self.weights]
        own = norms_of(weights)
        return Bounds(FAR * max(together(own), math.sqrt(sum(value.numel() for value in weights))), own)

    def check(self, received: Params, update: ClientUpdate, bounds: Bounds, hyper: Hyper) -> float:
        """Return the norm of the client's step, ||w_t^i - w_t||; raise UpdateRefused for what must not enter the mean.

        Buffers are no part of the norm: a running statistic moves as far as the data is from it, at any rate. `hyper`:
        what the client was told to train with.
        """
        self.check_examples(update)
        check(update.params, received)
        templates = {name: template for name, (_, template) in self.up.items()}
        check(flatten(update.sent), flatten(templates), "the method")
        steps = distances(received, update.params, self.weights)
        norm = together(steps)
        # a NaN or infinity anywhere makes the norm non-finite: one pass serves both
        buffers = [update.params[name] for name in self.buffers]
        if not math.isfinite(norm) or not all(bool(value.isfinite().all()) for value in buffers):
            raise Diverged("a value is not finite")
        if norm > bounds.limit:
            raise Diverged(f"a step of norm {norm:.3g}, where {bounds.limit:.3g} would be absurd already")
        self.check_numbers(update)
        self.check_buffers(received, update.params)
        self.check_normal(update.params, steps, bounds.own)
        self.check_sent(update, bounds.limit, hyper)
        return norm

    def check_examples(self, update: ClientUpdate) -> None:
        """Refuse a number of examples below 1 or above what the client is registered with, and an impossible share."""
        if type(update.done) is not float or not 0 < update.done <= 1:
            raise UpdateRefused(f"it claims to have done {str(update.done)[:40]} of its work")
        most = self.sizes.limit(update.client)
        if type(update.examples) is not int or update.examples < 1:
            raise UpdateRefused(f"impossible number of examples: {str(update.examples)[:40]!r}")
        if update.examples > most:
            raise UpdateRefused(f"{str(update.examples)[:40]} examples, but it is registered with {most:,}")

    def check_numbers(self, update: ClientUpdate) -> None:
        """Refuse losses and metrics of absurd size; a loss that is too large counts as a training that blew up."""
        losses = {"loss": update.loss, "received loss": update.received_loss, "previous loss": update.previous_loss}
        for name, value in {**losses, **update.metrics}.items():
            if value is not None and math.isfinite(value) and abs(value) > LOSS:
                blown = value > 0 and name not in update.metrics
                raise (Diverged if blown else UpdateRefused)(f"{name} = {value:.3g}, which is absurd")

    def check_buffers(self, received: Params, params: Params) -> None:
        """Refuse statistics and counters of absurd size."""
        for name in self.buffers:
            value, own = params[name], received[name]
            if value.dtype == torch.bool or not value.numel():
                continue
            bound = HUGE if value.is_floating_point() else LARGEST_WHOLE
            if size(value) > max(bound, 2 * size(own)):
                raise UpdateRefused(f"{name} has a value of absurd size")

    def check_normal(self, params: Params, steps: Sequence[float], own: Sequence[float]) -> None:
        """Refuse a weight tensor that has become subnormal as a whole in one round: no training does that.

        Its step then leads to zero, as nearly as can be told; only where it does are the values themselves checked.
        """
        for name, step, norm in zip(self.weights, steps, own, strict=True):
            value = params[name]
            to_zero = value.numel() and norm > NORMAL and math.isclose(step, norm, rel_tol=1e-3)
            if to_zero and 0 < size(value) < torch.finfo(value.dtype).tiny:
                raise UpdateRefused(f"{name} has nothing but subnormal values")

    def check_sent(self, update: ClientUpdate, limit: float, hyper: Hyper) -> None:
        """Refuse what a method's slots must not carry: values that are not finite, or of absurd size.

        A scalar may be as large as the square of a norm. A slot that declares its own maximum is held to that.
        """
        for name, (slot, _) in self.up.items():
            params = update.sent[name]
            check_finite(params)
            for each, value in params.items():
                if each in self.buffers and value.is_floating_point() and value.numel() and size(value) > HUGE:
                    raise UpdateRefused(f"{name}/{each} has a value of absurd size")
            floats = [v for each, v in params.items() if v.is_floating_point() and each not in self.buffers]
            norm, most = norm_of(floats), limit * limit if slot.like == SCALAR else limit
            if slot.most is not None:
                most = slot.most(hyper) * (1 + ROUNDING)
            if not norm <= most:
                raise UpdateRefused(f"{name} has norm {norm:.3g}, where {most:.3g} would be absurd already")


def size(value: Tensor) -> float:
    """Return the largest absolute value, exactly: the smallest integer of a type has no absolute value in that type."""
    low, high = torch.aminmax(torch.view_as_real(value) if value.is_complex() else value)
    return max(abs(low.item()), abs(high.item()))
