"""A run's figures by class: the labels that each client holds, and how many of each class its model gets right.

They are noted in a file of their own in the run folder: the labels before the first round, the answers after the last.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fedaccord.core.errors import RunError
from fedaccord.core.files import NOTE, read_json, write_durably
from fedaccord.core.records import ClientData, Examples, Params
from fedaccord.metrics import is_classes
from fedaccord.runtime.parts import Parts, clients_of
from fedaccord.server.evaluate import Evaluator

CLASSES = "classes.json"
NOBODY: Mapping[int, Sequence[int]] = {}
ROOM = 1_000_000
"""The most entries that a table of examples by client and class may have to be noted."""


@dataclass(frozen=True)
class ByClass:
    """The classes' names, and counts for each of them; a list is empty where the counts cannot be known."""

    names: list[str]
    clients: list[list[int]] = dataclasses.field(default_factory=list)  # examples by client and class
    round: int = 0  # the round after which the model was tested
    tested: list[int] = dataclasses.field(default_factory=list)  # test examples by class
    right: list[int] = dataclasses.field(default_factory=list)  # those that the model got right


def by_class(
    parts: Parts, round: int = 0, params: Params | None = None, told: Mapping[int, Sequence[int]] = NOBODY
) -> ByClass | None:
    """Return a run's figures by class: labels, and test results if `params` are given; None if there are no classes.

    `params`: those that are handed out after this round. `told`: the counts of labels that clients of a real federation
    let the server know.
    """
    counts = held(parts)
    rows = [] if counts is None else counts.tolist()
    if not rows and any(told.values()):
        rows = [list(told.get(client, ())) for client in range(clients_of(parts.settings))]
    tested, right = ([], []) if params is None else answers(parts, params)
    width = max(len(tested), *map(len, rows), 0)
    if not width:
        return None
    names = [*parts.classes, *map(str, range(len(parts.classes), width))]

    def padded(row: list[int]) -> list[int]:
        """Fill up with zeros: nobody need hold, or test, an example of every class that the model knows."""
        return row + [0] * (len(names) - len(row)) if row else []

    return ByClass(names, [padded(row) for row in rows], round, padded(tested), padded(right))


def held(parts: Parts) -> np.ndarray | None:
    """Count the examples by client and class; return None if labels are not at hand, or the table would be too large.

    The server of a real federation has no client's data, so it cannot count them.
    """
    if parts.counts is not None:
        return parts.counts if parts.counts.size <= ROOM else None
    if parts.loss is not None:
        return None
    labels = [labels_of(client) for client in parts.clients]
    known = [each for each in labels if each is not None]
    if not known or len(known) < len(labels):
        return None
    width = max(int(each.max()) for each in known if len(each)) + 1
    if width * len(known) > ROOM:
        return None
    return np.stack([np.bincount(each, minlength=width) for each in known])


def labels_of(client: ClientData) -> np.ndarray | None:
    """Return a class number for each example; None if there is none, or if it would have to be read from a disk."""
    targets = client.targets if isinstance(client, Examples) else None
    if not isinstance(targets, torch.Tensor) or targets.dim() != 1 or targets.dtype != torch.int64:
        return None
    numbers: np.ndarray = targets.cpu().numpy()
    return numbers if (numbers >= 0).all() else None


def answers(parts: Parts, params: Params) -> tuple[list[int], list[int]]:
    """Count the test examples of each class, and those that the model gets right.

    Both lists are empty if there is no test set, or not one class for each example.
    """
    if parts.test is None or parts.loss is not None:
        return [], []
    device = next(parts.model.parameters()).device
    tested = right = np.zeros(0, np.int64)
    for output, targets in Evaluator(parts.model, parts.test.to(device), parts.prepare).outputs(params):
        pair = isinstance(output, torch.Tensor) and isinstance(targets, torch.Tensor)
        if not pair or targets.dim() != 1 or not is_classes(output, targets):
            return [], []
        wanted, said = targets.cpu().numpy(), output.argmax(-1).cpu().numpy()
        width = output.shape[-1]
        if not len(tested):
            tested = right = np.zeros(width, np.int64)
        tested = tested + np.bincount(wanted[wanted >= 0], minlength=width)
        right = right + np.bincount(wanted[wanted == said], minlength=width)
    return tested.tolist(), right.tolist()


def write_classes(folder: Path, found: ByClass | None) -> None:
    """Write a run's figures by class, unless there are none, or more than anybody could look at."""
    data = b"" if found is None else json.dumps(dataclasses.asdict(found)).encode()
    if 0 < len(data) <= NOTE:
        write_durably(folder / CLASSES, data)


def read_classes(folder: Path) -> ByClass | None:
    """Read a run's figures by class; return None if it has no classes, or is from before they were noted."""
    try:
        found = ByClass(**read_json(folder / CLASSES))
        rows: Sequence[Sequence[int]] = [*found.clients, found.tested, found.right]
        if not isinstance(found.names, list) or type(found.round) is not int:
            raise ValueError("not the names of classes, and a round")
        if not all(isinstance(row, list) and len(row) in (0, len(found.names)) for row in rows):
            raise ValueError("not a number for each class")
        if not all(type(n) is int and 0 <= n < 2**63 for row in rows for n in row):
            raise ValueError("not a number for each class")
        return found
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise RunError(f"{folder / CLASSES}: damaged: {error}") from None
