"""Run folders as the report page reads them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedaccord.config import FIELDS, RECOMMENDED, Settings
from fedaccord.core.errors import RunError, SettingsError
from fedaccord.core.protocols import Method, Part
from fedaccord.methods.registry import find
from fedaccord.report.tuner import number
from fedaccord.runtime.classes import ByClass, read_classes
from fedaccord.runtime.folder import ROUNDS, MetricNote, read_metrics, read_raw, read_rounds, read_settings
from fedaccord.runtime.spent import privacy_sentence

CLASSES = 200
"""The most classes that a page shows one by one; of a run with more it shows none."""


@dataclass(frozen=True)
class Trained:
    """One round's accepted updates as arrays: a thousand rounds of a thousand clients must fit into memory."""

    clients: np.ndarray  # numbers into Run.clients
    examples: np.ndarray
    norms: np.ndarray  # ||w_i - w||, NaN where the log has none
    measured: Sequence[float | None] = ()  # the first metric, as each client measured it; None if it was not asked
    entered: np.ndarray | None = None  # the norms of what entered the mean; None: the same as norms


@dataclass(frozen=True)
class Run:
    """The contents of a run folder."""

    name: str
    settings: dict[str, Any]  # by name; which ones there are depends on the method
    method: Method | None  # None: it cannot be found any more
    metrics: list[MetricNote]
    lines: list[dict[str, Any]]  # the log, without its clients
    trained: list[Trained]
    clients: list[str]
    sentences: list[str]  # what the method says about the run
    classes: ByClass | None = None  # labels by client, and what the model gets right; None: the run noted none

    @property
    def method_name(self) -> str:
        return self.method.name if self.method else Path(self.settings["method"]).name


def read_run(path: Path) -> Run:
    """Read a run folder; a log that is not there yet is an empty one, since a run is watched from its first moment."""
    method = method_of(path)
    settings = settings_of(path, method)
    metrics = [MetricNote(str(note.name), bool(note.higher), bool(note.percent)) for note in read_metrics(path)]
    numbers: dict[str, int] = {}
    lines, trained = [], []
    begun = (path / ROUNDS).is_file() or (path / f"{ROUNDS}.gz").is_file()
    for place, line in enumerate(read_rounds(path) if begun else (), 1):
        if not isinstance(line, dict) or not isinstance(line.get("round"), int):
            raise RunError(f"{path / ROUNDS}: line {place} is not a round's")
        entries = line.pop("clients", None) or {}
        trained.append(
            Trained(
                np.array([numbers.setdefault(client, len(numbers)) for client in entries], np.int64),
                np.array([entry.get("examples") or 0 for entry in entries.values()], np.int64),
                np.array([number(entry.get("update_norm"), 17) for entry in entries.values()], np.float64),
                [own_metric(entry, metrics) for entry in entries.values()],
                entered_norms(list(entries.values())),
            )
        )
        lines.append({"hyper": {}, **line})
    private = privacy_sentence(lines, settings) if lines else None
    said = [*(sentences(method, path) if method and lines else []), *([private] if private else [])]
    known = read_classes(path)
    known = known if known and len(known.names) <= CLASSES else None
    return Run(path.resolve().name, settings, method, metrics, lines, trained, list(numbers), said, known)


def entered_norms(entries: Sequence[Mapping[str, Any]]) -> np.ndarray | None:
    """Return the norms of what entered the mean, or None if that is what the clients sent.

    It differs where updates were clipped, or scaled by the method.
    """
    if not any("moved" in entry for entry in entries):
        return None
    return np.array([number(entry.get("moved", entry.get("update_norm")), 17) for entry in entries], np.float64)


def own_metric(entry: Mapping[str, Any], metrics: Sequence[MetricNote]) -> float | None:
    """Return the first metric as a client measured it, or None if it was not asked."""
    measured = entry.get("metrics") or {}
    return number(measured.get(metrics[0].name)) if measured and metrics else None


def method_of(path: Path) -> Method | None:
    """Return the run's method, or None if it cannot be found any more, such as one whose file is gone or broken."""
    try:
        return find(read_raw(path).get("method", RECOMMENDED))
    except Exception:  # it may come from anybody's file, and the run's figures can be shown without it
        return None


def settings_of(path: Path, method: Method | None) -> dict[str, Any]:
    """Return the run's settings by name; those of a method that cannot be found any more are taken as written."""
    try:
        if method is not None:
            return read_settings(path).values()
        written = read_raw(path)
        own = {name: value for name, value in written.items() if name not in FIELDS and name != "version"}
        return Settings(**{name: value for name, value in written.items() if name in FIELDS}, own=own).values()
    except (OSError, ValueError, SettingsError) as error:
        raise RunError(f"{path}: its settings cannot be read: {error}") from None


def sentences(method: Method, path: Path) -> list[str]:
    """Return what the method's parts say about the run; they see the whole log, with its clients."""
    telling = [part for part in method.parts if type(part).report is not Part.report]
    lines = list(read_rounds(path)) if telling else []
    found: list[str] = []
    for part in telling:
        try:
            found += map(str, part.report(lines))
        except Exception as error:  # it may be anybody's code, and must not cost the page
            found.append(f"the report of {part.name} failed: {error!r}")
    return found
