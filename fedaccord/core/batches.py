"""Inputs, targets and outputs of any form: a tensor, or a tuple or dict of tensors whose first axis is the examples."""

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

IGNORED = -100
"""The class number of a place in a sequence that has no target, such as padding: torch's own number for it."""

Batch = Any
"""A tensor, or a tuple or dict of tensors of equal length."""


def leaves(batch: Batch) -> list[Tensor]:
    """Return a batch's tensors in order. A model's output may also be nested; what is not a tensor is left out."""
    if isinstance(batch, Tensor):
        return [batch]
    parts = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, tuple | list) else ()
    return [leaf for part in parts for leaf in leaves(part)]


def named_leaves(batch: Batch) -> list[tuple[str, Tensor]]:
    """Return a batch's tensors, each with its dict key or its position as a name; a single tensor has an empty name."""
    if isinstance(batch, Tensor):
        return [("", batch)]
    return [(str(name), value) for name, value in (batch.items() if isinstance(batch, dict) else enumerate(batch))]


def mapped(change: Callable[[Tensor], Tensor], batch: Batch) -> Batch:
    """Apply a function to every tensor of a batch, and return the results in the same form."""
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, dict):
        found = {name: mapped(change, value) for name, value in batch.items()}
        return found if type(batch) is dict else renewed(batch, found)
    if not isinstance(batch, tuple | list):
        return batch
    parts = [mapped(change, value) for value in batch]
    return type(batch)(*parts) if hasattr(batch, "_fields") else tuple(parts)  # a named tuple keeps its names


def renewed(form: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Return a dict of the form's own class with these values, so that what a class adds to a dict goes on working."""
    made = copy(form)
    for name, value in values.items():
        made[name] = value
    return made


def like(form: Batch, tensors: Sequence[Tensor]) -> Batch:
    """Arrange tensors in the form of another batch: the inverse of `leaves`."""
    rest = iter(tensors)
    return mapped(lambda _: next(rest), form)


def together(batches: Sequence[Batch], join: Callable[[list[Tensor]], Tensor] | None = None) -> Batch:
    """Join several batches of one form into one, end to end unless `join` says how to join their tensors."""
    columns = zip(*map(leaves, batches), strict=True)
    return like(batches[0], [(join or joined)(list(column)) for column in columns])


def joined(tensors: list[Tensor]) -> Tensor:
    """Concatenate tensors along the first axis; sequences of several lengths are padded to the longest."""
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
    """Move a batch to the CPU, in types that every library knows: floats of less than 32 bits become float32."""
    return mapped(lambda x: x.cpu().float() if x.is_floating_point() and x.element_size() < 4 else x.cpu(), batch)


def count(batch: Batch) -> int:
    """Return the number of examples in a batch."""
    return len(leaves(batch)[0])


def is_batch(value: object) -> bool:
    """Return whether a value is a tensor, or a tuple or dict of tensors that is not empty."""
    parts = list(value.values()) if isinstance(value, dict) else value if isinstance(value, tuple) else [value]
    return bool(parts) and all(isinstance(part, Tensor) for part in parts)


def clone(batch: Batch) -> Batch:
    """Return a copy of a batch, since a model may change its inputs in place."""
    return mapped(torch.clone, batch)


def output_of(model: nn.Module, inputs: Batch) -> Any:
    """Return the model's output; a tuple of inputs is passed as positional arguments, a dict by name."""
    if isinstance(inputs, Tensor):
        return model(inputs)
    return model(**inputs) if isinstance(inputs, dict) else model(*inputs)
