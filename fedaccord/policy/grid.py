"""HyperGrid: the allowed values of each hyper-parameter, and the normalised points that stand for them."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedaccord.core.errors import SettingsError
from fedaccord.core.records import WHOLE
from fedaccord.core.settings import Setting


@dataclass(frozen=True)
class Axis:
    """One hyper-parameter: its name in Hyper, its allowed values (rising), and whether its scale is logarithmic."""

    name: str
    values: tuple[float, ...]
    log: bool = False

    def __post_init__(self) -> None:
        if len(self.values) < 2 or sorted(set(self.values)) != list(self.values):
            raise SettingsError(f"grid: {self.name} needs at least two values, each larger than the one before")
        if self.log and self.values[0] <= 0:
            raise SettingsError(f"grid: {self.name} is logarithmic, so its values must be positive")

    @property
    def points(self) -> np.ndarray:
        """The points z = (v - mean) / (2 max|v - mean|): zero mean, inside [-0.5, 0.5], whatever the spacing."""
        v = self.scale(np.array(self.values, np.float64))
        centred = v - v.mean()
        points: np.ndarray = centred / (2 * np.abs(centred).max())
        return points

    def scale(self, values: np.ndarray) -> np.ndarray:
        return np.log(values) if self.log else values

    def value_at(self, z: float) -> float:
        """Return the hyper-parameter's value at a normalised point, which may lie between those of the grid."""
        v = self.scale(np.array(self.values, np.float64))
        scaled = v.mean() + 2 * np.abs(v - v.mean()).max() * z
        return float(math.exp(scaled) if self.log else scaled)

    def point_of(self, value: float) -> float:
        """Return the normalised point of a value; raise SettingsError if it is outside the axis."""
        if not self.values[0] <= value <= self.values[-1]:
            raise SettingsError(
                f"start: {self.name} = {value:g} is outside the grid, {self.values[0]:g} to {self.values[-1]:g}"
            )
        v = self.scale(np.array(self.values, np.float64))
        return float((self.scale(np.array(value)) - v.mean()) / (2 * np.abs(v - v.mean()).max()))

    def typed(self, number: int) -> float | int:
        """Return the value with this number, in the type that Hyper wants."""
        value = self.values[number]
        return round(value) if self.name in WHOLE else float(value)


@dataclass(frozen=True)
class HyperGrid:
    """The D-dimensional grid of all combinations of the axes' values."""

    axes: tuple[Axis, ...]

    def __post_init__(self) -> None:
        names = [axis.name for axis in self.axes]
        if not names or len(set(names)) != len(names):
            raise SettingsError("grid: expected at least one hyper-parameter, each once")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(axis.name for axis in self.axes)

    def check(self, tunable: Iterable[str]) -> None:
        """Raise SettingsError if an axis is not among the hyper-parameters that can be tuned."""
        names = list(tunable)
        for axis in self.axes:
            if axis.name not in names:
                raise SettingsError(f"grid: '{axis.name}' cannot be tuned; expected one of {', '.join(names)}")

    def obey(self, rules: Mapping[str, Setting]) -> None:
        """Raise SettingsError if an axis has a value that the setting of its name does not take."""
        for axis in self.axes:
            if rule := rules.get(axis.name):
                for value in axis.values:
                    try:
                        rule.validate(int(value) if rule.kind is int and value.is_integer() else value)
                    except SettingsError as error:
                        raise SettingsError(f"grid: {error}") from None

    def choice(self, index: tuple[int, ...]) -> dict[str, Any]:
        """Return the hyper-parameters at a grid point, by name."""
        return {axis.name: axis.typed(number) for axis, number in zip(self.axes, index, strict=True)}

    def place(self, text: str) -> tuple[float, ...]:
        """Parse 'lr = 0.1, steps = 20' as a normalised point, 0 on axes that are not named; empty text gives ()."""
        if not text.strip():
            return ()
        named: dict[str, float] = {}
        for part in text.split(","):
            name, _, value = (piece.strip() for piece in part.partition("="))
            try:
                named[name] = float(value)
            except ValueError:
                raise SettingsError(f"start: '{part.strip()}': expected name = value, ...") from None
        if unknown := sorted(named.keys() - set(self.names)):
            raise SettingsError(f"start: '{unknown[0]}' is not in the grid, which has {', '.join(self.names)}")
        return tuple(axis.point_of(named[axis.name]) if axis.name in named else 0.0 for axis in self.axes)

    @classmethod
    def parse(cls, text: str) -> "HyperGrid":
        """Parse 'lr = 0.01..1/9 log; steps = 5, 10, 20': lists of values, or low..high/count, even or logarithmic."""
        return cls(tuple(parse_axis(part) for part in text.split(";") if part.strip()))


LONGEST = 10_000
"""The most values of an axis."""
RANGE = re.compile(r"(?P<low>\S+?)\s*\.\.\s*(?P<high>\S+?)\s*/\s*(?P<count>\d+)$")


def parse_axis(text: str) -> Axis:
    name, sign, rest = (part.strip() for part in text.partition("="))
    log = rest.endswith("log")
    rest = rest.removesuffix("log").strip()
    try:
        if found := RANGE.match(rest):
            low, high, count = float(found["low"]), float(found["high"]), int(found["count"])
            if count > LONGEST:
                raise SettingsError(f"grid: {name}: {found['count']} values, at most {LONGEST:,}")
            if log and not (low > 0 and high > 0):
                raise SettingsError(f"grid: {name} is logarithmic, so its values must be positive")
            with np.errstate(invalid="ignore", over="ignore"):  # whatever is not finite is refused below
                values = np.geomspace(low, high, count) if log else np.linspace(low, high, count)
        else:
            values = np.array([float(value) for value in rest.split(",")])
    except ValueError:
        sign = ""
    if not sign:
        raise SettingsError(f"grid: '{text.strip()}': expected name = low..high/count, or name = value, value, ...")
    numbers = [float(f"{value:.6g}") for value in values.tolist()]
    if not all(map(math.isfinite, numbers)):
        raise SettingsError(f"grid: {name} has a value that is not finite")
    if name in WHOLE:
        numbers = [float(round(value)) for value in numbers]
    return Axis(name, tuple(numbers), log)
