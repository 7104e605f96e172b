"""What one setting is: its type, its default, the rule it obeys, the sentence that explains it, and its role.

The fields of `config.Settings` and the settings that a method brings are both described by this one class, so the
command line, TOML files, resume, compare and the report treat them alike.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from fedaccord.core.errors import SettingsError

EXPERIMENT = "experiment"
"""Part of the experiment: it stays the same on resume and in a comparison. This is the role unless another is given."""
LENGTH = "length"
"""How long the run goes on: it may be changed on resume, but runs of different length are different experiments."""
NUMERICS = "numerics"
"""How the run is computed: it may change the last bits, so it stays on resume, but does not make another experiment."""
OPERATION = "operation"
"""How the run is operated: it changes no result, so it may be changed at any time."""
SERVER = "server"
"""The server's own affair: part of the experiment, but its clients need not know."""
OBSERVATION = "observation"
"""What the server looks at and keeps: it stays on resume, but changes the log and the checkpoints only."""


@dataclass(frozen=True)
class Setting:
    """One setting. `optional`: it may be left open (None). `hyper`: it is sent to the clients as part of h_t."""

    name: str
    kind: type
    default: Any
    help: str
    check: Callable[[Any], bool] | None = None
    expected: str = ""
    optional: bool = False
    role: str = EXPERIMENT
    hyper: bool = False
    axis: str = ""  # a sensible axis of a grid that tunes it
    printed: Any = None  # the paper's choice, where the default differs: for --paper, and what 0.1 did

    def validate(self, value: Any) -> None:
        """Raise a SettingsError that says what was expected, unless the value is valid."""
        if value is None and self.optional:
            return
        right = isinstance(value, self.kind) and not (isinstance(value, bool) and self.kind is not bool)
        if self.kind is float:
            right = isinstance(value, float | int) and not isinstance(value, bool) and math.isfinite(value)
        if not right:
            raise SettingsError(f"{self.name} = {value!r}: expected {WORDS[self.kind]}")
        if self.check is not None and not self.check(value):
            raise SettingsError(f"{self.name} = {value!r}: expected {self.expected}")

    def checked(self, value: Any) -> Any:
        """Return a valid value in the setting's own type: a whole number given for a float becomes one, as on disk."""
        self.validate(value)
        return float(value) if self.kind is float and value is not None else value

    def parse(self, text: str) -> Any:
        """Return the value that a text on the command line stands for; raise SettingsError if it is none."""
        if self.kind is str:
            return text
        if self.kind is bool:
            if text.lower() in ("true", "yes", "on", "1"):
                return True
            if text.lower() in ("false", "no", "off", "0"):
                return False
            raise SettingsError(f"{self.name} = {text!r}: expected true or false")
        try:
            return self.kind(text)
        except ValueError:
            raise SettingsError(f"{self.name} = {text!r}: expected {WORDS[self.kind]}") from None


WORDS = {int: "a whole number", float: "a number", str: "a word", bool: "true or false"}


def setting(name: str, default: Any, help: str, **more: Any) -> Setting:
    """Make a setting of its default's type; a rule may be given as `check` and `expected`."""
    return Setting(name, more.pop("kind", type(default)), default, help, **more)


def at_least(low: float, name: str, default: Any, help: str, **more: Any) -> Setting:
    return setting(name, default, help, check=lambda v: v >= low, expected=f"{low} or more", **more)


def above(low: float, name: str, default: Any, help: str, **more: Any) -> Setting:
    return setting(name, default, help, check=lambda v: v > low, expected=f"more than {low}", **more)


def share(name: str, default: float, help: str, **more: Any) -> Setting:
    return setting(name, default, help, check=lambda v: 0 < v <= 1, expected="more than 0, at most 1", **more)


def below_one(name: str, default: float, help: str, **more: Any) -> Setting:
    return setting(name, default, help, check=lambda v: 0 <= v < 1, expected="in [0, 1)", **more)


def one_of(choices: tuple[str, ...], name: str, default: str, help: str, **more: Any) -> Setting:
    listed = ", ".join(choices)
    return setting(
        name, default, f"{help} ({listed})", check=lambda v: v in choices, expected=f"one of {listed}", **more
    )


def hyper(made: Setting, axis: str = "") -> Setting:
    """Make a hyper-parameter of a setting: it is sent to the clients in h_t, and a grid may tune it.

    `axis`: the values to try, as a grid writes them, where nothing is known about the task.
    """
    told = f"{made.help} To tune it, add to grid: {made.name} = {axis}." if axis else made.help
    return replace(made, hyper=True, axis=axis, help=told)
