"""Shakespeare's plays, one client per speaking role: predict the next character (LEAF, Caldas et al. 2018)."""

import json
from functools import cache

import numpy as np
import torch

from fedaccord.core.batches import IGNORED
from fedaccord.core.errors import DataError
from fedaccord.core.records import Examples
from fedaccord.data import sources
from fedaccord.data.sets import DataSet
from fedaccord.data.sources import Source

SOURCE = Source("shakespeare", {"roles.json": "a699c364ad7856764dc2588a0531e12abfe5dd25b462f19e83833b88df252f45"})
"""A JSON object, role -> {"train": [texts], "test": [texts]}. There is no address that would give these very bytes."""

CHARACTERS = "\n !\"&'(),-.123456789:;?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
PAD, BEGIN, END = 0, 1, 2
"""Three more tokens: padding, and the two ends of a text."""
TOKENS = 3 + len(CHARACTERS)
PLACES = 80
"""Characters per example; a longer text is cut, a shorter one padded."""


@cache
def numbers() -> dict[str, int]:
    return {character: 3 + place for place, character in enumerate(CHARACTERS)}


def load() -> DataSet:
    """Load 715 roles; an example is 80 characters, and its targets are the characters that follow each of them."""
    try:
        roles = json.loads(sources.load(SOURCE)["roles.json"])
        train = [(owner, text) for owner, role in enumerate(roles.values()) for text in role["train"]]
        test = [(owner, text) for owner, role in enumerate(roles.values()) for text in role["test"]]
        (inputs, owners), (others, _) = windows(train), windows(test)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"shakespeare: roles.json is not what it should be: {error}") from None
    return DataSet(examples(inputs), examples(others), (), owners)


def windows(texts: list[tuple[int, str]]) -> tuple[torch.Tensor, np.ndarray]:
    """Cut texts into windows of 81 tokens, each beginning with the last of the one before.

    Returns the tokens, (windows, 81), and the owner of each window.
    """
    rows, owners = [], []
    for owner, text in texts:
        tokens = [BEGIN, *(numbers()[character] for character in text), END]
        for first in range(0, len(tokens) - 1, PLACES):
            part = tokens[first : first + PLACES + 1]
            rows.append(part + [PAD] * (PLACES + 1 - len(part)))
            owners.append(owner)
    return torch.tensor(rows), np.array(owners)


def examples(rows: torch.Tensor) -> Examples:
    targets = rows[:, 1:]
    return Examples(rows[:, :-1].contiguous(), torch.where(targets == PAD, IGNORED, targets))
