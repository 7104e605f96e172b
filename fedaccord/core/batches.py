"""Inputs, targets and outputs of any form: a tensor, or a tuple or dict of tensors whose first axis is the examples."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

Batch = Any
"""A tensor, or a tuple or dict of tensors of equal length."""


def leaves(batch: Batch) -> list[Tensor]:
    """Its tensors, in order."""
    if isinstance(batch, Tensor):
        return [batch]
    return list(batch.values() if isinstance(batch, dict) else batch)


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
        return {name: change(value) for name, value in batch.items()}
    return tuple(change(value) for value in batch)


def like(form: Batch, tensors: Sequence[Tensor]) -> Batch:
    """These tensors in the form of another batch: `leaves` undone."""
    rest = iter(tensors)
    return mapped(lambda _: next(rest), form)


def together(batches: Sequence[Batch], join: Callable[[list[Tensor]], Tensor] = torch.cat) -> Batch:
    """Several batches of one form as one, end to end."""
    columns = zip(*map(leaves, batches), strict=True)
    return like(batches[0], [join(list(column)) for column in columns])


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
