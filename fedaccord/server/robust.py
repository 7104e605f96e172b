"""Ways to join the clients' updates so that no liar moves the result far. All of them hold a round's updates at once.

    clip      no step is longer than the median of all of them, nor is any buffer's or slot's
    trimmed   of every coordinate, the largest and the smallest values are left out of the mean
    median    of every coordinate, the value in the middle

The last two go by majority, coordinate by coordinate: where few clients have a class, its weights are moved by few, and
just these are left out. The first keeps every client's direction.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedaccord.core.protocols import Part, ServerStep
from fedaccord.core.records import ClientUpdate, Params
from fedaccord.core.settings import SERVER, one_of, setting
from fedaccord.server.vectors import norm_of, weights_of

MEAN, CLIP, TRIMMED, MEDIAN = "mean", "clip", "trimmed", "median"


class MedianClip(ServerStep):
    """w_i <- w_t + min(1, median_j ||w_j - w_t|| / ||w_i - w_t||) (w_i - w_t), the norm being that of the weights.

    Each buffer tensor and each slot has a median of its own; an integer is at most the median.
    """

    holds = True

    def together(
        self, received: Params, updates: Sequence[ClientUpdate], buffers: frozenset[str]
    ) -> Sequence[ClientUpdate]:
        groups = [weights_of(received, buffers), *([name] for name in sorted(buffers))]
        params = [dict(update.params) for update in updates]
        for names in groups:
            clip_group(received, params, names)
        sent = [{slot: dict(table) for slot, table in update.sent.items()} for update in updates]
        for slot in updates[0].sent:
            tables = [each[slot] for each in sent]
            clip_group({name: torch.zeros_like(value) for name, value in tables[0].items()}, tables, list(tables[0]))
        return [
            update if unchanged(update, new, slots) else replace(update, params=new, sent=slots)
            for update, new, slots in zip(updates, params, sent, strict=True)
        ]


def clip_group(origin: Params, tables: Sequence[Params], names: Sequence[str]) -> None:
    """Shorten the tables' steps from the origin, over the tensors of these names, to their median norm, in place."""
    whole = [name for name in names if not origin[name].is_floating_point()]
    names = [name for name in names if origin[name].is_floating_point()]
    for name in whole:
        most = middle([table[name] for table in tables])
        for table in tables:
            if bool((table[name] > most).any()):
                table[name] = torch.minimum(table[name], most)
    norms = [norm_of([table[name] - origin[name] for name in names]) for table in tables]
    bound = statistics.median(norms)
    for table, norm in zip(tables, norms, strict=True):
        if norm > bound:
            for name in names:
                table[name] = origin[name] + (bound / norm) * (table[name] - origin[name])


def unchanged(update: ClientUpdate, params: Params, slots: Mapping[str, Params]) -> bool:
    """Return whether nothing was cut, so that the update itself may stay."""
    same = all(value is update.params[name] for name, value in params.items())
    return same and all(value is update.sent[slot][n] for slot, table in slots.items() for n, value in table.items())


class Coordinates(ServerStep):
    """A step that joins each coordinate's values by one rule; every client counts the same, whatever it claims."""

    holds = True

    def __init__(self, rule: Callable[[Tensor], Tensor]):
        self.rule = rule

    def centre(self, tables: Sequence[Params]) -> Params:
        return {name: self.of([table[name] for table in tables]) for name in tables[0]}

    def of(self, values: Sequence[Tensor]) -> Tensor:
        """Join one tensor of each client by the rule over their stack, (clients, ...); non-floats take the median."""
        return self.rule(torch.stack(list(values))) if values[0].is_floating_point() else middle(values)


def middle(values: Sequence[Tensor]) -> Tensor:
    """Return the middle value of each element, or the lower of two: a median for what is not a float, bool included."""
    return torch.stack(list(values)).sort(dim=0).values[(len(values) - 1) // 2]


def median(values: Tensor) -> Tensor:
    """Return the middle value over the first axis, or the mean of the two in the middle."""
    ordered, count = values.sort(dim=0).values, len(values)
    return torch.lerp(ordered[(count - 1) // 2], ordered[count // 2], 0.5)


def trimmed_mean(share: float) -> Callable[[Tensor], Tensor]:
    """Return a function that takes the mean over the first axis without this share of the values at either end.

    Unless the share is 0, at least one value is left out at either end, if one remains.
    """

    def mean(values: Tensor) -> Tensor:
        count = len(values)
        cut = min(max(1, math.ceil(share * count)) if share else 0, (count - 1) // 2)
        kept: Tensor = values.sort(dim=0).values[cut : count - cut].mean(dim=0)
        return kept

    return mean


class Robust(Part):
    name = "robust"
    about = "joins the clients' updates so that a liar among them cannot move the model far"
    settings = (
        one_of(
            (MEAN, CLIP, TRIMMED, MEDIAN), "robust", MEAN,
            "How updates are joined: clip (recommended against liars) cuts every step to the round's median length; "
            "trimmed and median go coordinate by coordinate and forget what few clients know", role=SERVER,
        ),
        setting("trim", 0.1, "Share of the values left out at either end, for robust = trimmed.", role=SERVER,
                check=lambda v: 0 <= v < 0.5, expected="in [0, 0.5)"),
    )  # fmt: skip

    def server(self, settings: Mapping[str, Any]) -> ServerStep | None:
        rule = settings["robust"]
        if rule == CLIP:
            return MedianClip()
        if rule == MEAN:
            return None
        return Coordinates(median if rule == MEDIAN else trimmed_mean(settings["trim"]))


def warning(rule: str, counts: np.ndarray | None) -> list[str]:
    """Return one line of warning if the rule may forget classes that few clients have, or else nothing.

    `counts`: examples by client and class, where they are known.
    """
    if rule not in (TRIMMED, MEDIAN):
        return []
    why = f"robust = {rule} goes by the majority of the clients in every coordinate"
    if counts is None:
        return [f"{why}: if few of them have some class, the model forgets it; robust = clip does not"]
    holders = (counts > 0).sum(axis=0)
    rare = int(((holders > 0) & (holders <= counts.shape[0] / 2)).sum())
    if not rare:
        return []
    return [f"{why}, and {rare} of {counts.shape[1]} classes are with no more than half of them: the model will hardly "
            "learn these; robust = clip keeps them"]  # fmt: skip
