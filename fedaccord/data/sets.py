"""What a loaded data set is."""

import zipfile
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from fedaccord.core.errors import DataError
from fedaccord.core.records import Examples

UNREADABLE = (zipfile.BadZipFile, zlib.error, ValueError, KeyError, OSError, EOFError, RuntimeError, MemoryError)
"""What numpy.load raises for a damaged or foreign .npz file."""


Data = Examples | tuple[Tensor, Tensor] | Dataset[Any]
"""The forms in which somebody may hand over examples."""


@dataclass(frozen=True)
class DataSet:
    """Training and test examples, the names of the classes, and who a training example came from, if known."""

    train: Examples
    test: Examples
    classes: tuple[str, ...]
    owner: np.ndarray | None = None  # one client id per training example (a natural split)


def examples(inputs: np.ndarray, targets: np.ndarray, classes: int, label: str) -> Examples:
    """Checked tensors: equal length, at least one, labels in range."""
    if len(inputs) != len(targets):
        raise DataError(f"{label}: {len(inputs):,} inputs but {len(targets):,} labels")
    if len(targets) == 0:
        raise DataError(f"{label}: there are no examples")
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= classes:
        raise DataError(f"{label}: label {low if low < 0 else high} is out of range, expected 0 to {classes - 1}")
    own = np.require(inputs, requirements=["C", "W"])  # a copy if it is a view into a file's read-only bytes
    return Examples(torch.from_numpy(own), torch.from_numpy(targets.astype(np.int64)))


def as_examples(data: Data, label: str, classes: bool = True) -> Examples:
    """Tensors as they are; a Dataset is read once, in order, and held as tensors.

    `classes`: the targets must be class numbers.
    """
    if isinstance(data, Examples):
        inputs, targets = data.inputs, data.targets
    elif isinstance(data, tuple | list):
        if len(data) != 2:
            raise DataError(f"{label}: expected a pair (inputs, targets), got {len(data)} values")
        inputs, targets = map(torch.as_tensor, data)
    else:
        items = [data[i] for i in range(len(data))]  # type: ignore[arg-type]
        if not items:
            raise DataError(f"{label}: the data set is empty")
        inputs, targets = (torch.stack([torch.as_tensor(item[part]) for item in items]) for part in (0, 1))
    if len(inputs) != len(targets):
        raise DataError(f"{label}: {len(inputs):,} inputs but {len(targets):,} targets")
    if not classes:
        return Examples(inputs, targets)
    check_classes(targets, label)
    return Examples(inputs, targets.long())


def check_classes(targets: Tensor, label: str) -> None:
    """Raise DataError unless these are class numbers."""
    if targets.dim() != 1 or targets.is_floating_point():
        raise DataError(
            f"{label}: targets must be one class number each, got {targets.dtype} {tuple(targets.shape)}; "
            "for anything else give a loss of your own: loss=function(output, targets)"
        )
    if len(targets) and int(targets.min()) < 0:
        raise DataError(f"{label}: a target is negative")
