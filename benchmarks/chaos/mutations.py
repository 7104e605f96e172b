"""Ways to spoil bytes and JSON values so that most of them still look like what they were."""

import copy
import random
from collections.abc import Sequence
from typing import Any

EDGES = (0, 1, 2, 3, 7, 8, 127, 128, 255, 256, 32767, 65535, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1)
"""Numbers at which sizes and counts tend to go wrong."""
ODD = (
    None, True, False, 0, -1, 1, 3, 2**31, 2**63, -(2**63) - 1, 10**30, 10**400, 0.0, -0.5, 1e308, 1e-320, float("inf"),
    float("nan"), "", "x", "NaN", "\0", "../../x", "a" * 300, [], {}, [[]], [1, "a"], {"": {}}, [None] * 50,
)  # fmt: skip
"""Values that a file may hold in place of what is expected."""


def spoiled(rng: random.Random, data: bytes, others: Sequence[bytes] = ()) -> bytes:
    """Return the bytes with up to four changes: flips, edge numbers, cuts, copies, splices with one of the others."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        if not found:
            return bytes(found)
        place, kind = rng.randrange(len(found)), rng.randrange(9)
        length = min(rng.choice((1, 2, 4, 8, 16, 64)), len(found) - place)
        if kind <= 1:
            found[place] ^= 1 << rng.randrange(8)
        elif kind == 2:
            found[place] = rng.randrange(256)
        elif kind == 3:
            size = rng.choice((1, 2, 4, 8))
            number = (rng.choice(EDGES) + rng.choice((-1, 0, 0, 1))) % 256**size
            found[place : place + size] = number.to_bytes(size, rng.choice(("big", "little")))
        elif kind == 4:
            del found[place:]
        elif kind == 5:
            del found[place : place + length]
        elif kind == 6:
            found[place:place] = rng.randbytes(length)
        elif kind == 7:
            found[place:place] = found[place : place + length] * rng.choice((1, 2, 50))
        elif others:
            other = rng.choice(others)
            found[place:] = other[rng.randrange(len(other) + 1) :]
    return bytes(found)


def changed(rng: random.Random, value: Any) -> Any:
    """Return a copy of a JSON value with one or two places in it changed: another value, no value, or one too many."""
    found = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 2))):
        found = changed_once(rng, found)
    return found


def changed_once(rng: random.Random, value: Any) -> Any:
    if not isinstance(value, dict | list) or not value or rng.random() < 0.1:
        return copy.deepcopy(rng.choice(ODD))
    key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
    draw = rng.random()
    if draw < 0.1:
        del value[key]
    elif draw < 0.2 and isinstance(value, dict):
        value[rng.choice(("", "x", "round", "version", "own", "../x", str(key) * 2))] = rng.choice(ODD)
    elif draw < 0.3 and isinstance(value, list):
        value += [value[key]] * rng.choice((1, 30))
    elif draw < 0.4 and isinstance(value[key], int | float) and not isinstance(value[key], bool):
        value[key] = rng.choice((-1, 1)) * rng.choice(EDGES)
    else:
        value[key] = changed_once(rng, value[key])
    return value
