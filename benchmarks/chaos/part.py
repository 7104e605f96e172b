"""One kind of trouble: how often it is made, and what came of an attempt."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Outcome:
    """What came of one attempt, which may be many trials: how many, in how many something was lost, and what."""

    tried: int
    lost: int
    told: str = ""  # of what was lost, or of what is to be known besides
    figures: Mapping[str, float] = field(default_factory=dict)  # by name; the table has their largest


@dataclass(frozen=True)
class Part:
    """`attempt` makes the trouble once: its number is its seed, its folder is empty and removed afterwards."""

    name: str
    what: str  # a sentence for the table
    attempt: Callable[[int, Path], Outcome]
    sample: int  # attempts of `make chaos`
    full: int  # and of `make chaos-full`
