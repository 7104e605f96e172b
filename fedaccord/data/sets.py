"""Loaded data sets, and the checks on whatever examples a user hands over."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fedaccord.core.batches import IGNORED, Batch, leaves, named_leaves
from fedaccord.core.errors import DataError
from fedaccord.core.modules import described
from fedaccord.core.records import ClientData, Examples
from fedaccord.core.seeds import generator, global_seed, other_seeds
from fedaccord.data.lazy import Collate, LazyExamples, stacked

Data = Examples | tuple[Any, Any] | Dataset[Any]
"""The forms in which a user may hand over examples: a pair (inputs, targets) of tensors, arrays or tables, each
perhaps a tuple or dict of such; or a map-style Dataset."""


@dataclass(frozen=True)
class DataSet:
    """Training and test examples, the names of the classes, and whom each training example came from, if known."""

    train: Any  # Data; once it is checked, ClientData
    test: Any
    classes: tuple[str, ...]
    owner: np.ndarray | None = None  # one client id per training example (a natural split)


def examples(inputs: np.ndarray, targets: np.ndarray, classes: int, label: str) -> Examples:
    """Return arrays as Examples; raise DataError unless they are equally long, not empty and with labels in range."""
    if len(inputs) != len(targets):
        raise DataError(f"{label}: {len(inputs):,} inputs but {len(targets):,} labels")
    if len(targets) == 0:
        raise DataError(f"{label}: there are no examples")
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= classes:
        raise DataError(f"{label}: label {low if low < 0 else high} is out of range, expected 0 to {classes - 1}")
    own = np.require(inputs, requirements=["C", "W"])  # a copy if it is a view into a file's read-only bytes
    return Examples(torch.from_numpy(own), torch.from_numpy(targets.astype(np.int64)))


def as_examples(
    data: Data, label: str, classes: bool = True, collate: Collate | None = None, readers: int = 0
) -> ClientData:
    """Check the examples that a user hands over and return them; `classes`: the targets must be class numbers.

    Tensors stay as they are; arrays and tables become tensors. A Dataset is read once, if it is small and gives the
    same twice; otherwise (or with `collate`) it is read anew whenever examples are needed.
    """
    if isinstance(data, Examples):
        return checked(data, label, classes)
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        data = (data.tensors[0], data.tensors[1])
    if isinstance(data, tuple | list):
        if len(data) != 2:
            raise DataError(
                f"{label}: expected a pair (inputs, targets), got {described(data)}, {len(data)} in all; a list of "
                "examples must be a Dataset, or stacked"
            )
        inputs, targets = (as_batch(side, f"{label}, {name}") for side, name in zip(data, SIDES, strict=True))
        return checked(Examples(inputs, targets), label, classes)
    if columns_of(data):
        raise DataError(
            f"{label}: got a table; give a pair (inputs, targets), such as (table.drop(columns='y'), table['y'])"
        )
    if isinstance(data, DataLoader):
        raise DataError(f"{label}: got a DataLoader; give its Dataset, loader.dataset: batch_size= makes the batches")
    if isinstance(data, Tensor | dict | str) or not (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
        raise DataError(
            f"{label}: got {described(data)}, expected a pair (inputs, targets) or a Dataset that has a length and "
            "gives its items by number"
        )
    if not len(data):
        raise DataError(f"{label}: the data set is empty")
    lazy = LazyExamples(data, label, collate or stacked, Check(label, classes), readers)
    return lazy[:] if collate is None and is_small(lazy) else lazy


@dataclass(frozen=True)
class Check:
    """The check of every batch that is read from a Dataset."""

    label: str
    classes: bool

    def __call__(self, batch: Examples, numbers: Sequence[int]) -> Examples:
        return checked(batch, self.label, self.classes, numbers)


SIDES = ("inputs", "targets")
SMALL_BYTES = 2**26
"""A Dataset whose items take no more than this is held in memory."""
TWICE = 32
"""How many items, spread over a Dataset, are read twice to see whether it gives the same each time."""


def is_small(lazy: LazyExamples) -> bool:
    """Return whether to read a Dataset once and for all: if it takes little memory and draws nothing at random."""
    first = lazy[:1]
    if len(lazy) * sum(tensor.numel() * tensor.element_size() for tensor in first.marks()) > SMALL_BYTES:
        return False
    some = np.unique(np.linspace(0, len(lazy) - 1, TWICE).astype(np.int64))
    read = []
    for purpose in ("once", "twice"):  # two different seeds, the same two in every run
        with global_seed(0, purpose), other_seeds(generator(0, purpose)):
            read.append([lazy.item(number) for number in lazy.numbers(some)])
    pairs = zip(*(lazy.made(items, some.tolist()).marks() for items in read), strict=True)
    return all(torch.equal(one, other) for one, other in pairs)


def columns_of(given: Any) -> list[str]:
    """Return the names of a table's columns, or an empty list for anything else."""
    return [str(name) for name in getattr(given, "columns", ())]


def check_columns(sets: Mapping[str, Any]) -> None:
    """Raise DataError if the inputs of two of these data sets, named by their keys, are tables of different columns."""
    first: tuple[str, list[str]] | None = None
    for label, data in sets.items():
        names = columns_of(data[0]) if isinstance(data, tuple | list) and data else []
        if names and first is None:
            first = label, names
        elif names and first is not None and names != first[1]:
            odd = sorted({*names} ^ {*first[1]})
            what = f"'{odd[0]}' is not in both" if odd else "they are in another order"
            raise DataError(f"{label}: its columns are not those of {first[0]}: {what}")


def as_batch(given: Any, label: str) -> Batch:
    """Convert whatever holds numbers (tensors, arrays, tables, lists) to a tensor, or a tuple or dict of tensors."""
    if isinstance(given, dict):
        return {name: as_tensor(value, f"{label}, {name}") for name, value in given.items()}
    if isinstance(given, tuple):
        return tuple(as_tensor(value, f"{label}, part {number}") for number, value in enumerate(given))
    return as_tensor(given, label)


def as_tensor(given: Any, label: str) -> Tensor:
    """Convert an array, table or list to a tensor; doubles become torch's default type."""
    if isinstance(given, Tensor):
        return given
    try:
        array = np.asarray(given)
    except ValueError:
        raise DataError(f"{label}: its values are not of one shape, so they make no array") from None
    if array.dtype.kind in "US" or (array.ndim == 1 and isinstance(next(iter(array), None), str)):
        raise DataError(
            f"{label}: is text, such as {str(array.flat[0])!r}; give numbers: classes, numbers = numpy.unique(labels, "
            "return_inverse=True), over all clients"
        )
    if array.dtype == object:  # a table whose columns are of several types
        for column, name in enumerate(getattr(given, "columns", ())):
            try:
                array[:, column].astype(np.float64)
            except (TypeError, ValueError):
                raise DataError(f"{label}: column '{name}' is not numeric") from None
    try:
        floating = array.dtype in (object, np.float64)
        array = array.astype(np.float64) if floating else array
        tensor = torch.from_numpy(np.require(array, requirements=["C", "W"]))
        tensor = tensor.to(torch.get_default_dtype()) if floating else tensor
    except (TypeError, ValueError) as error:
        raise DataError(f"{label}: not numbers: {error}") from None
    check_finite(tensor, label, list(getattr(given, "columns", ())))
    return tensor


def checked(data: Examples, label: str, classes: bool, numbers: Sequence[int] | None = None) -> Examples:
    """Check examples and return them, class numbers as int64; raise DataError if they are unsound.

    `numbers`: which of all examples these are.
    """
    if any(not tensor.dim() for tensor in (*leaves(data.inputs), *leaves(data.targets))):
        raise DataError(
            f"{label}: expected inputs and targets whose first axis is the examples, got a single number; single "
            "examples must be stacked, or be a Dataset"
        )
    lengths = {len(tensor) for tensor in leaves(data.inputs)}, {len(tensor) for tensor in leaves(data.targets)}
    if lengths[0] != lengths[1] or len(lengths[0]) > 1:
        found = (" and ".join(f"{length:,}" for length in sorted(each)) for each in lengths)
        raise DataError(f"{label}: {' inputs but '.join(found)} targets")
    for side, name in ((data.inputs, SIDES[0]), (data.targets, SIDES[1])):
        for part, tensor in named_leaves(side):
            check_finite(tensor, ", ".join(filter(None, (label, name, part))), numbers=numbers)
    if not classes:
        return data
    check_classes(data.targets, label)
    return Examples(data.inputs, data.targets.long())


def check_finite(tensor: Tensor, label: str, columns: Sequence[Any] = (), numbers: Sequence[int] | None = None) -> None:
    """Raise DataError, saying where, if a value is not a finite number."""
    if not tensor.is_floating_point() or not len(tensor) or bool(tensor.isfinite().all()):
        return
    example, *place = tensor.isfinite().logical_not().nonzero()[0].tolist()
    value = float(tensor[(example, *place)])
    where = f"example {example if numbers is None else numbers[example]}"
    if len(place) == 1:
        where += f", column {columns[place[0]] if len(columns) else place[0]}"
    raise DataError(f"{label}: {where} is not finite: {value}")


def check_classes(targets: Batch, label: str) -> None:
    """Raise DataError unless targets are class numbers: one for each example, or for each place of a sequence."""
    if not isinstance(targets, Tensor) or targets.dim() == 0 or targets.is_floating_point():
        got = (
            f"{targets.dtype} {tuple(targets.shape)}" if isinstance(targets, Tensor) else f"a {type(targets).__name__}"
        )
        raise DataError(
            f"{label}: targets must be one class number each, got {got}; "
            "for anything else give a loss of your own: loss=function(output, targets)"
        )
    nothing = IGNORED if targets.dim() > 1 else 0  # in a sequence, a place may have no target
    if len(targets) and bool(((targets < 0) & (targets != nothing)).any()):
        raise DataError(f"{label}: a target is negative")
