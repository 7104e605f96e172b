"""Hostile replies of many kinds, made from an honest one by a random number generator.

They are plain values: nothing here knows who will judge them, so the same list serves any library.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

ROUND, COHORT, VICTIM, SIZE = 7, (0, 1, 3, 4), 3, 50


@dataclass(frozen=True)
class Reply:
    """What a client sends, before it is put into any library's types."""

    params: dict[str, Tensor]
    slots: dict[str, dict[str, Tensor]]
    examples: Any = SIZE
    client: Any = VICTIM
    round: Any = ROUND
    loss: float = 0.5
    way: str = ""  # how it comes: "", second, stranger, late

    def put(self, name: str, value: Tensor) -> "Reply":
        return replace(self, params={**self.params, name: value})

    def put_slot(self, slot: str, name: str, value: Tensor) -> "Reply":
        return replace(self, slots={**self.slots, slot: {**self.slots[slot], name: value}})


# ---------------------------------------------------------------- the kinds

Draw = np.random.Generator
KINDS: dict[str, Callable[[Reply, Draw], Reply]] = {}


def kind(name: str) -> Callable[[Callable[[Reply, Draw], Reply]], Callable[[Reply, Draw], Reply]]:
    def add(make: Callable[[Reply, Draw], Reply]) -> Callable[[Reply, Draw], Reply]:
        KINDS[name] = make
        return make

    return add


def some(good: Reply, draw: Draw, floats: bool = True) -> str:
    """Return the name of a random tensor of the reply, one of floating-point numbers unless `floats` is False."""
    names = [name for name, value in good.params.items() if value.is_floating_point() or not floats]
    return names[draw.integers(len(names))]


def spoilt(value: Tensor, draw: Draw, wrong: float) -> Tensor:
    """Return a copy of the tensor in which values at random places, at least one, are wrong."""
    value = value.clone()
    places = draw.permutation(value.numel())[: draw.integers(1, value.numel() + 1)]
    value.view(-1)[torch.from_numpy(places)] = wrong
    return value


def far(draw: Draw, low: float = 12, high: float = 38) -> float:
    """Return a number of random sign and of a magnitude from 10^low to 10^high."""
    return float(draw.choice([-1, 1]) * 10 ** draw.uniform(low, high))


@kind("missing tensor")
def _(good: Reply, draw: Draw) -> Reply:
    gone = some(good, draw, floats=False)
    return replace(good, params={name: value for name, value in good.params.items() if name != gone})


@kind("extra tensor")
def _(good: Reply, draw: Draw) -> Reply:
    return good.put(f"extra.{draw.integers(1000)}", torch.zeros(int(draw.integers(1, 5))))


@kind("renamed tensor")
def _(good: Reply, draw: Draw) -> Reply:
    name = some(good, draw, floats=False)
    new = str(draw.choice([name + ".", name.upper(), name[:-1], "", "../" + name, name + "\u200b"]))
    return replace(good, params={new if each == name else each: value for each, value in good.params.items()})


@kind("wrong rank")
def _(good: Reply, draw: Draw) -> Reply:
    name = some(good, draw, floats=False)
    value = good.params[name]
    return good.put(name, value.reshape(1, *value.shape) if draw.random() < 0.5 or value.dim() < 2 else value.flatten())


@kind("wrong shape")
def _(good: Reply, draw: Draw) -> Reply:
    name = some(good, draw)
    shape = list(good.params[name].shape)
    axis = draw.integers(len(shape))
    shape[axis] = int(draw.choice([0, 1, shape[axis] + 1, 2 * shape[axis]]))
    return (
        good.put(name, torch.zeros(shape)) if shape != list(good.params[name].shape) else good.put(name, torch.zeros(0))
    )


@kind("wrong dtype")
def _(good: Reply, draw: Draw) -> Reply:
    name = some(good, draw, floats=False)
    kinds = [torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.uint8, torch.bool]
    return good.put(name, good.params[name].to(kinds[draw.integers(len(kinds))]))


@kind("NaN")
def _(good: Reply, draw: Draw) -> Reply:
    name = some(good, draw)
    return good.put(name, spoilt(good.params[name], draw, math.nan))


@kind("Inf")
def _(good: Reply, draw: Draw) -> Reply:
    name = some(good, draw)
    return good.put(name, spoilt(good.params[name], draw, float(draw.choice([-1, 1])) * math.inf))


@kind("subnormal")
def _(good: Reply, draw: Draw) -> Reply:
    name = next(each for each in iter(lambda: some(good, draw), None) if "running" not in each)
    return good.put(name, torch.full_like(good.params[name], float(10 ** draw.uniform(-44, -38.5))))


@kind("huge")
def _(good: Reply, draw: Draw) -> Reply:
    name = some(good, draw)
    return good.put(name, spoilt(good.params[name], draw, far(draw, 31 if "running" in name else 12)))


@kind("huge counter")
def _(good: Reply, draw: Draw) -> Reply:
    return good.put("1.num_batches_tracked", torch.tensor(int(draw.choice([-1, 1]) * 2 ** draw.uniform(41, 62.9))))


for title, values in {
    "count 0": [0],
    "count negative": [-1, -SIZE, -(10**18)],
    "count fractional": [0.5, 49.9, 1e-9],
    "count 10^30": [10**30, 1e30],
    "count NaN": [math.nan, math.inf, -math.inf],
    "count beyond the registered": [SIZE + 1, 10 * SIZE, 10**9],
    "count of another type": [True, "50", b"50", [50], None],
}.items():
    KINDS[title] = lambda good, draw, values=values: replace(good, examples=values[draw.integers(len(values))])


@kind("absurd loss")
def _(good: Reply, draw: Draw) -> Reply:
    return replace(good, loss=far(draw, 31, 308))


@kind("slot that nobody declared")
def _(good: Reply, draw: Draw) -> Reply:
    return replace(good, slots={**good.slots, "other.slot": {"value": torch.zeros(())}})


@kind("slot missing, NaN, huge or misshapen")
def _(good: Reply, draw: Draw) -> Reply:
    if not good.slots:
        return replace(good, slots={"a.b": {"w": torch.tensor(math.nan)}})
    slot = list(good.slots)[draw.integers(len(good.slots))]
    name = list(good.slots[slot])[draw.integers(len(good.slots[slot]))]
    value, way = good.slots[slot][name], draw.integers(4)
    if way == 0:
        return replace(good, slots={each: params for each, params in good.slots.items() if each != slot})
    if way == 1:
        return good.put_slot(slot, name, torch.zeros(3, 3, 3))
    scalar = value.dim() == 0
    return good.put_slot(
        slot, name, spoilt(value, draw, math.nan if way == 2 else far(draw, *((30, 300) if scalar else (12, 38))))
    )


@kind("duplicate client")
def _(good: Reply, draw: Draw) -> Reply:
    name = some(good, draw)
    return replace(good.put(name, good.params[name] + 1), way="second")


@kind("unknown client")
def _(good: Reply, draw: Draw) -> Reply:
    return replace(good, client=int(draw.choice([-1, 2, 5, 10, 99, 2**40])), way="stranger")


@kind("late")
def _(good: Reply, draw: Draw) -> Reply:
    return replace(good, round=ROUND - int(draw.integers(1, ROUND)), way="late")


@kind("replayed from another round")
def _(good: Reply, draw: Draw) -> Reply:
    name = some(good, draw)
    rounds = [ROUND - int(draw.integers(1, ROUND)), ROUND + 1, 10**12, float(ROUND) + 0.5, "7"]
    return replace(good.put(name, good.params[name] + 0.01), round=rounds[draw.integers(len(rounds))])
