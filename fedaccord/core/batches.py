"""Inputs, targets and outputs of any form: a tensor, or a tuple or dict of tensors whose first axis is the examples."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

IGNORED = -100
"""A class number that is none: a place in a sequence without a target, such as padding. Torch's own number for it."""

Batch = Any
"""A tensor, or a tuple or dict of tensors of equal length."""


def leaves(batch: Batch) -> list[Tensor]:
    """Its tensors, in order. A model's output may also be nested, or hold things that are no tensors."""
    if isinstance(batch, Tensor):
        return [batch]
    parts = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, tuple | list) else ()
    return [leaf for part in parts for leaf in leaves(part)]


def named_leaves(batch: Batch) -> list[tuple[str, Tensor]]:
    """The same with what a person would call each; a single tensor has no name."""
    if isinstance(batch, Tensor):
        return [("", batch)]
    return [(str(name), value) for name, value in (batch.items() if isinstance(batch, dict) else enumerate(batch))]


def mapped(change: Callable[[Tensor], Tensor], batch: Batch) -> Batch:
    """The same form, with every tensor changed."""
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, dict):
        return {name: mapped(change, value) for name, value in batch.items()}
    if not isinstance(batch, tuple | list):
        return batch
    parts = [mapped(change, value) for value in batch]
    return type(batch)(*parts) if hasattr(batch, "_fields") else tuple(parts)  # a named tuple keeps its names


def like(form: Batch, tensors: Sequence[Tensor]) -> Batch:
    """These tensors in the form of another batch: `leaves` undone."""
    rest = iter(tensors)
    return mapped(lambda _: next(rest), form)


def together(batches: Sequence[Batch], join: Callable[[list[Tensor]], Tensor] | None = None) -> Batch:
    """Several batches of one form as one, end to end."""
    columns = zip(*map(leaves, batches), strict=True)
    return like(batches[0], [(join or joined)(list(column)) for column in columns])


def joined(tensors: list[Tensor]) -> Tensor:
    """End to end; where they are of several lengths, as sequences may be, padded to the longest."""
    if len({tensor.shape[1:] for tensor in tensors}) == 1:
        return torch.cat(tensors)
    longest = [max(sizes) for sizes in zip(*(tensor.shape[1:] for tensor in tensors), strict=True)]
    empty = 0 if tensors[0].is_floating_point() else IGNORED
    rows = []
    for tensor in tensors:
        more = [n for size, most in zip(tensor.shape[1:], longest, strict=True) for n in (most - size, 0)]
        rows.append(pad(tensor, more[::-1], value=empty))
    return torch.cat(rows)


def plain(batch: Batch) -> Batch:
    """On the CPU, and in a type that every library knows."""
    return mapped(lambda x: x.cpu().float() if x.is_floating_point() and x.element_size() < 4 else x.cpu(), batch)


def count(batch: Batch) -> int:
    """The number of its examples."""
    return len(leaves(batch)[0])


def is_batch(value: object) -> bool:
    """Whether it is of one of the three forms."""
    parts = list(value.values()) if isinstance(value, dict) else value if isinstance(value, tuple) else [value]
    return bool(parts) and all(isinstance(part, Tensor) for part in parts)


def clone(batch: Batch) -> Batch:
    """A copy, for a model may work in place."""
    return mapped(torch.clone, batch)


def output_of(model: nn.Module, inputs: Batch) -> Any:
    """The model's output: a tuple is given as positional arguments, a dict by name."""
    if isinstance(inputs, Tensor):
        return model(inputs)
    return model(**inputs) if isinstance(inputs, dict) else model(*inputs)
