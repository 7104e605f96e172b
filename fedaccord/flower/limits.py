"""Bounds on everything that a server may send to a client or ask of it.

The model and the method determine the form of what is sent (names, shapes, types); this file bounds how much of it is
sent and how large, not how often: a server may order a round again. A server that keeps to all of this can still send
a bad model: see `docs/reliability.md`.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fedaccord.core.errors import SettingsError, UpdateRefused
from fedaccord.core.packages import check, check_finite, encode
from fedaccord.core.records import OPTIMIZER, Hyper, Order, Params
from fedaccord.core.settings import Setting
from fedaccord.server.judge import FAR, HUGE, LARGEST_WHOLE, size
from fedaccord.server.vectors import norm_of

ROUNDS = 999_999
"""The last round that a client takes part in: the names of the files it keeps have six digits for the round."""
ROOM = 65_536
"""By how many bytes received tensors may exceed the size that they have when this client encodes them itself."""


@dataclass(frozen=True)
class Limits:
    """The bounds on what a client does for any server."""

    max_steps: int = 1000
    min_lr: float = 1e-6
    max_lr: float = 2.0
    max_batch: int = 4096
    max_weight: float = 1e6  # for every other hyper-parameter

    def check(self, order: Order, client: int, settings: Mapping[str, Setting]) -> None:
        """Raise UpdateRefused if an order exceeds these limits or breaks a rule of a hyper-parameter's own setting."""
        hyper = order.hyper_of(client)
        if order.round > ROUNDS:
            raise UpdateRefused(f"round {order.round}: I take part up to {ROUNDS}")
        if not 1 <= hyper.steps <= self.max_steps:
            raise UpdateRefused(f"steps = {hyper.steps}: I do 1 to {self.max_steps}")
        if not self.min_lr <= hyper.lr <= self.max_lr:
            raise UpdateRefused(f"lr = {hyper.lr:g}: I take {self.min_lr:g} to {self.max_lr:g}")
        if not 1 <= hyper.batch_size <= self.max_batch:
            raise UpdateRefused(f"batch_size = {hyper.batch_size}: I take 1 to {self.max_batch}")
        self.check_others(hyper, settings)

    def check_others(self, hyper: Hyper, settings: Mapping[str, Setting]) -> None:
        """Raise UpdateRefused if a hyper-parameter is not the method's, or its value breaks its rule or is absurd."""
        for name, value in hyper.values().items():
            if name not in settings:
                raise UpdateRefused(f"{name[:40]!r} is no hyper-parameter of my method")
            try:
                settings[name].validate(value)
            except SettingsError as error:
                raise UpdateRefused(str(error)) from None
            if name not in OPTIMIZER[:3] and value is not None and not abs(value) <= self.max_weight:
                raise UpdateRefused(f"{name} = {value:g}: I take {self.max_weight:g} at most")


@dataclass(frozen=True)
class Form:
    """The form that one table of tensors in an order must have: its names, shapes and types, and no absurd values."""

    own: Params
    weights: Collection[str]  # names of the tensors that the norm is taken of; in any other, each value is bounded
    whose: str  # whose tensors they are, for the error message
    room: int  # the most bytes that it may have when encoded
    most: float  # the largest norm of the tensors in `weights`

    def fits(self, name: str, data: Any) -> None:
        """Raise UpdateRefused, before `data` is decoded, unless it is bytes and no more than such tensors take."""
        if not isinstance(data, bytes):
            raise UpdateRefused(f"{name} is of type {type(data).__name__}, not bytes")
        if len(data) > self.room:
            raise UpdateRefused(f"{name} has {len(data):,} bytes, {self.whose} takes {self.room:,} at most")

    def check(self, params: Params) -> None:
        """Raise UpdateRefused if names, shapes or types differ, or if a value is not finite or of absurd size."""
        check(params, self.own, self.whose)
        check_finite(params)
        norm = norm_of([params[name] for name in self.weights])
        if not norm <= self.most:
            raise UpdateRefused(f"a norm of {norm:.3g}, where {self.most:.3g} would be absurd already in {self.whose}")
        for name, value in params.items():
            if name in self.weights or value.dtype == torch.bool or not value.numel():
                continue
            bound = HUGE if value.is_floating_point() or value.is_complex() else LARGEST_WHOLE
            if size(value) > max(bound, 2 * size(self.own[name])):
                raise UpdateRefused(f"{name} has a value of absurd size")


def form_of(own: Params, weights: Collection[str], whose: str, most: float | None = None) -> Form:
    """Return the form of tensors like `own`; `most` is their largest norm, derived from the norm of `own` if None.

    The derived bound is the one that a server sets on a client's update, with this client's model in place of the
    server's.
    """
    moved = [name for name in own if name in weights]
    if most is None:
        count = sum(own[name].numel() for name in moved)
        most = FAR * max(norm_of([own[name] for name in moved]), math.sqrt(count))
    return Form(own, moved, whose, len(encode(own)) + ROOM, most)
