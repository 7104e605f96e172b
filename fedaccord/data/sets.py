"""What a loaded data set is."""

import zipfile
import zlib
from dataclasses import dataclass

import numpy as np
import torch

from fedaccord.errors import DataError
from fedaccord.records import Examples

UNREADABLE = (zipfile.BadZipFile, zlib.error, ValueError, KeyError, OSError, EOFError, RuntimeError, MemoryError)
"""What numpy.load raises for a damaged or foreign .npz file."""


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
