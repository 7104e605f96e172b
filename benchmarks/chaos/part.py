"""A kind of trouble: how often it is made, and the outcome of an attempt."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Outcome:
    """The outcome of an attempt: how many trials there were, in how many something was lost, and what."""

    tried: int
    lost: int
    told: str = ""  # what was lost, or what else there is to know
    figures: Mapping[str, float] = field(default_factory=dict)  # by name; the table has the largest of each


@dataclass(frozen=True)
class Part:
    """A kind of trouble: `attempt` makes it once, with a number as seed, in an empty folder that is removed later."""

    name: str
    what: str  # a sentence for the table
    attempt: Callable[[int, Path], Outcome]
    sample: int  # attempts of `make chaos`
    full: int  # and of `make chaos-full`
