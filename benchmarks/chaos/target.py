"""A parser under test: how inputs are made for it, how it is called, and what it promises of what it accepts."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Target:
    """A parser under test, with the functions that make inputs for it and give them to it.

    `make` makes an input from seeds of its own; `read` gives it to fedaccord, as a file in a folder if need be. `read`
    returns whether the input was accepted; it raises an AssertionError if what it got is not as promised, and lets all
    exceptions of fedaccord through. `worst` returns inputs that were built to take memory or time.
    """

    what: str
    make: Callable[[random.Random], bytes]
    read: Callable[[bytes, Path], bool]
    worst: Callable[[], Iterable[bytes]] = tuple
