"""A map-style Dataset that is read as it is needed: its items are never all in memory."""

import os
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from fedaccord.core.batches import count, is_batch, mapped
from fedaccord.core.errors import DataError, FedAccordError, first_line
from fedaccord.core.files import let_go_of_locks
from fedaccord.core.modules import described
from fedaccord.core.processes import die_with
from fedaccord.core.records import Examples
from fedaccord.core.seeds import generator, global_seed, other_seeds

Collate = Callable[[list[Any]], Any]
"""A function from a list of a Dataset's items to the (inputs, targets) of a batch."""


def stacked(items: list[Any]) -> Any:
    """Stack pairs (input, target) into a pair of batches; doubles, the default of Python and NumPy, become floats."""
    first = items[0]
    if not (isinstance(first, tuple | list) and len(first) == 2):
        raise DataError(
            f"an item is {described(first)}, expected a pair (input, target); give collate=function(items) -> "
            "(inputs, targets) of a batch"
        )
    for side, name, do in zip(first, ("an input", "a target"), ("a tensor", "classes.index(label)"), strict=True):
        if isinstance(side, str):
            raise DataError(f"{name} is text, {side[:20]!r}: the Dataset must give numbers, such as {do}")
    try:
        inputs, targets = default_collate(items)
    except RuntimeError as error:
        raise DataError(f"its items are not of one shape, so give a collate function: {first_line(error)}") from None
    except (TypeError, ValueError):
        raise DataError(f"an item is {described(first)}, expected a pair of tensors, arrays or numbers") from None
    return singles(inputs), singles(targets)


def singles(batch: Any) -> Any:
    """Convert the tensors of double precision in a batch to torch's default type."""
    batch = tuple(batch) if isinstance(batch, list) else batch
    floats = torch.get_default_dtype()
    return mapped(lambda x: x.to(floats) if x.dtype == torch.float64 else x, batch) if is_batch(batch) else batch


@dataclass(frozen=True)
class LazyExamples:
    """Examples that a Dataset reads, one item at a time, in the order in which they are asked for.

    label    whose examples they are, for error messages
    check    called with each batch that was read and the numbers of its items; raises DataError if it is not sound
    readers  how many processes read ahead while a client trains; 0: the client reads what it needs when it needs it
    """

    dataset: Dataset[Any]
    label: str
    collate: Collate = stacked
    check: Callable[[Examples, Sequence[int]], Examples] = lambda batch, numbers: batch
    readers: int = 0
    chosen: np.ndarray | None = None  # the numbers of the items that belong to these examples; None: all
    device: torch.device | str = "cpu"

    def __len__(self) -> int:
        return len(self.dataset) if self.chosen is None else len(self.chosen)  # type: ignore[arg-type]

    def __getitem__(self, index: Any) -> Examples:
        """Read these examples under fixed seeds, so that what the Dataset draws is the same at every measurement."""
        numbers = self.numbers(index)
        purpose = f"items {numbers[0]} {len(numbers)}" if numbers else "items"
        with global_seed(0, purpose), other_seeds(generator(0, purpose)):
            return self.read(numbers)

    def read(self, numbers: list[int]) -> Examples:
        return self.made([self.item(number) for number in numbers], numbers)

    def batches(self, index: Tensor, draw: torch.Generator) -> Generator[Examples, None, None]:
        if self.readers:
            begin = partial(begin_reading, os.getpid())
            made = iter(
                DataLoader(
                    Rows(replace(self, device="cpu"), index),
                    batch_size=None,
                    collate_fn=as_is,
                    num_workers=self.readers,
                    generator=draw,
                    worker_init_fn=begin,
                )
            )
            try:
                for each in made:
                    yield unwrapped(each).to(self.device)
            finally:
                del made  # which ends the processes
            return
        with other_seeds(draw):
            yield from (self.read(self.numbers(row)) for row in index)

    def part(self, index: Any) -> "LazyExamples":
        return replace(self, chosen=np.asarray(self.numbers(index), np.int64))

    def to(self, device: torch.device | str) -> "LazyExamples":
        return replace(self, device=device)

    def marks(self) -> Iterable[Tensor]:
        """Return the tensors by which this data is known again: its length, and its first and last items."""
        ends = self[torch.tensor([0, len(self) - 1])].marks() if len(self) else ()
        return (torch.tensor(len(self)), *ends)

    def numbers(self, index: Any) -> list[int]:
        """Return the numbers, in the Dataset, of the items that an index (slice, numbers or mask) selects."""
        if isinstance(index, slice):
            index = range(len(self))[index]
        wanted = np.asarray(index)
        if wanted.dtype == bool:
            wanted = np.flatnonzero(wanted)
        result: list[int] = (wanted if self.chosen is None else self.chosen[wanted.astype(np.int64)]).tolist()
        return result

    def item(self, number: int) -> Any:
        try:
            return self.dataset[number]
        except FedAccordError:
            raise
        except Exception as error:  # whatever a user's Dataset raises
            told = f"{type(error).__name__}: {first_line(error)}"
            raise DataError(f"{self.label}: item {number} cannot be read: {told}") from error

    def made(self, items: list[Any], numbers: Sequence[int]) -> Examples:
        """Collate items into a batch, check it and return it; `numbers`: the items' numbers in the Dataset."""
        try:
            made = self.collate(items)
        except FedAccordError as error:
            raise DataError(f"{self.label}: {error}") from None
        except Exception as error:  # whatever a user's function raises
            raise DataError(f"{self.label}: collate failed: {type(error).__name__}: {first_line(error)}") from error
        if not (isinstance(made, tuple | list) and len(made) == 2 and all(map(is_batch, made))):
            raise DataError(
                f"{self.label}: collate gives {described(made)}, expected a pair (inputs, targets), each a tensor or "
                "a tuple or dict of tensors"
            )
        inputs, targets = made
        if count(inputs) != count(targets):
            raise DataError(f"{self.label}: collate gives {count(inputs)} inputs and {count(targets)} targets")
        return self.check(Examples(inputs, targets), numbers).to(self.device)


class Rows(Dataset[Any]):
    """A Dataset of batches, one for each row of numbers, for reading processes; an error is handed over as a value."""

    def __init__(self, data: LazyExamples, index: Tensor):
        self.data, self.index = data, index

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, row: int) -> Examples | FedAccordError:
        try:
            return self.data.read(self.data.numbers(self.index[row]))
        except FedAccordError as error:
            return error


def begin_reading(parent: int, number: int) -> None:
    """Set up a reading process so that it ends with its parent and holds none of the run's locks."""
    die_with(parent)
    let_go_of_locks()


def unwrapped(made: Examples | FedAccordError) -> Examples:
    if isinstance(made, FedAccordError):
        raise made
    return made


def as_is(made: Any) -> Any:
    return made
