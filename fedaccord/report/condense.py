"""Run folders condensed to what the report page shows: plain JSON values, about 2 MB of them at most."""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedaccord import config
from fedaccord.config import FIELDS, Settings
from fedaccord.core.errors import RunError, SettingsError
from fedaccord.core.protocols import Method, Part
from fedaccord.core.settings import EXPERIMENT, Setting
from fedaccord.methods.registry import find
from fedaccord.report.tuner import CURVE, MAPS, evenly, number, story
from fedaccord.runtime.attendance import Attendance
from fedaccord.runtime.folder import ROUNDS, MetricNote, read_metrics, read_raw, read_rounds, read_settings

LIMIT = 2_000_000  # characters of JSON
CLIENTS = 50
EVENTS = 500  # refused updates, and guards' actions, that are listed
PARTS = ("train", "aggregate", "evaluate", "policy")
FIRST = ("task", "method", "split", "fraction", "clients", "seed")  # what runs are told apart by, if it differs


@dataclass(frozen=True)
class Trained:
    """One round's accepted updates as arrays: a thousand rounds of a thousand clients must fit into memory."""

    clients: np.ndarray  # numbers into Run.clients
    examples: np.ndarray
    norms: np.ndarray  # ||w_i - w||, NaN where the log has none
    measured: Sequence[float] = ()  # the metric to judge by, of each client that measured it


@dataclass(frozen=True)
class Run:
    """A run folder, read."""

    name: str
    settings: dict[str, Any]  # by name; which ones there are depends on the method
    method: Method | None  # None: it cannot be found any more
    metrics: list[MetricNote]
    lines: list[dict[str, Any]]  # the log, without its clients
    trained: list[Trained]
    clients: list[str]
    sentences: list[str]  # what the method says about the run

    @property
    def method_name(self) -> str:
        return self.method.name if self.method else Path(self.settings["method"]).name


def page_data(runs: Sequence[Path]) -> dict[str, Any]:
    """All that the page shows of these runs. What is too much for a page is thinned, and says so."""
    if not runs:
        raise SettingsError("report: name at least one run folder")
    read = [read_run(Path(path)) for path in runs]
    names = labels(read)
    metrics = list(dict.fromkeys(note for run in read for note in run.metrics))
    detail = 1.0
    while True:
        data = {
            "metrics": [dataclasses.asdict(note) for note in metrics],
            "runs": [condensed(run, label, metrics, detail) for run, label in zip(read, names, strict=True)],
            "settings": settings_table(read),
        }
        size = len(json.dumps(data, separators=(",", ":")))
        if size < LIMIT or detail < 1e-3:
            return data
        detail *= 0.9 * LIMIT / size


def read_run(path: Path) -> Run:
    """A log that is not there yet is an empty one: a run is watched from its first moment."""
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
                [value for entry in entries.values() if (value := own_metric(entry, metrics)) is not None],
            )
        )
        lines.append({"hyper": {}, **line})
    said = sentences(method, path) if method and lines else []
    return Run(path.resolve().name, settings, method, metrics, lines, trained, list(numbers), said)


def own_metric(entry: Mapping[str, Any], metrics: Sequence[MetricNote]) -> float | None:
    """What a client measured of the metric to judge by; None if it was not asked."""
    measured = entry.get("metrics") or {}
    return number(measured.get(metrics[0].name)) if measured and metrics else None


def method_of(path: Path) -> Method | None:
    """The run's method; None if it cannot be found any more, such as one whose file is gone or broken."""
    try:
        return find(read_raw(path).get("method", FIELDS["method"].default))
    except Exception:  # it may come from anybody's file, and the run's figures can be shown without it
        return None


def settings_of(path: Path, method: Method | None) -> dict[str, Any]:
    """The run's settings by name; those of a method that cannot be found any more are taken as they are written."""
    try:
        if method is not None:
            return read_settings(path).values()
        written = read_raw(path)
        own = {name: value for name, value in written.items() if name not in FIELDS and name != "version"}
        return Settings(**{name: value for name, value in written.items() if name in FIELDS}, own=own).values()
    except (OSError, ValueError, SettingsError) as error:
        raise RunError(f"{path}: its settings cannot be read: {error}") from None


def sentences(method: Method, path: Path) -> list[str]:
    """What the method's parts say about the run. They see the whole log, with its clients."""
    telling = [part for part in method.parts if type(part).report is not Part.report]
    lines = list(read_rounds(path)) if telling else []
    found: list[str] = []
    for part in telling:
        try:
            found += map(str, part.report(lines))
        except Exception as error:  # anybody's code: it shall not cost the page
            found.append(f"the report of {part.name} failed: {error!r}")
    return found


def described(runs: Sequence[Run]) -> dict[str, Setting]:
    """Every setting that any of the runs has."""
    there = {name: type(value) for run in runs for name, value in run.settings.items()}
    known: dict[str, Setting] = {}
    for run in reversed(runs):
        known |= config.table(run.method)
    bare = {name: Setting(name, kind, None, "") for name, kind in there.items() if name not in known}
    return {name: each for name, each in {**known, **bare}.items() if name in there}


def labels(runs: Sequence[Run]) -> list[str]:
    """What tells a run from the others, in few words: 'iid · seed 1'. Folder names only as a last resort."""
    table = described(runs)
    others = [name for name in table if name not in FIRST]
    order = [*FIRST, *sorted(others, key=lambda name: table[name].role != EXPERIMENT)]
    words: list[tuple[str, ...]] = [() for _ in runs]
    for name in order:
        more = [(*said, phrase(table[name], run, bool(said))) for said, run in zip(words, runs, strict=True)]
        if len(set(more)) > len(set(words)):
            words = more
    for extra in ([run.name for run in runs], [str(place) for place in range(1, len(runs) + 1)]):
        if len(set(words)) < len(runs):
            words = [(*said, word) for said, word in zip(words, extra, strict=True)]
    return [" · ".join(filter(None, said)) or run.method_name for said, run in zip(words, runs, strict=True)]


def phrase(setting: Setting, run: Run, told_apart: bool) -> str:
    """One part of a label; a minor setting that is as it always is goes without saying, unless nothing else is said."""
    name = setting.name
    if name not in run.settings:
        return ""
    value = run.settings[name]
    if name == "method":
        return run.method_name
    if name in ("task", "split"):
        return Path(value).name
    if told_apart and name not in FIRST and value == setting.default:
        return ""
    said = f"{value:g}" if isinstance(value, float) else shown(value)
    return f"{({'fraction': 'C', 'clients': 'K'}).get(name, name)} {said}"


def shown(value: Any) -> str:
    """A setting's value in words."""
    if value is None or value == "":
        return "–"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def settings_table(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Every setting with its sentence and its value in each run; those that differ come first.

    Only runs that have a setting can differ in it: others have a method that does not know it.
    """
    rows = []
    for name, setting in described(runs).items():
        values = [shown(run.settings.get(name)) for run in runs]
        differs = len({value for value, run in zip(values, runs, strict=True) if name in run.settings}) > 1
        rows.append({"name": name, "help": setting.help, "values": values, "differs": differs})
    return sorted(rows, key=lambda row: not row["differs"])


def condensed(run: Run, label: str, metrics: Sequence[MetricNote], detail: float) -> dict[str, Any]:
    """A log that is not what a run writes is told as such."""
    try:
        return condense(run, label, metrics, detail)
    except (TypeError, KeyError, AttributeError, ValueError, OverflowError, np.linalg.LinAlgError) as error:
        raise RunError(f"{run.name}: its log is not what a run writes: {error!r}") from None


def condense(run: Run, label: str, metrics: Sequence[MetricNote], detail: float) -> dict[str, Any]:
    """One run's part of the page."""
    kept = evenly(len(run.lines), CURVE, detail)
    guards = [{"round": line["round"], "text": line["guard"]} for line in run.lines if line.get("guard")]
    refused = [
        {"round": line["round"], "client": str(entry.get("client")), "why": str(entry.get("why"))}
        for line in run.lines
        for entry in line.get("refused") or ()
    ]
    loss = [number(line.get("loss")) for line in run.lines]
    return {
        "label": label,
        "name": run.name,
        **{name: run.settings[name] for name in FIRST},
        "task": Path(run.settings["task"]).name,
        "method": run.method_name,
        "clients": run.settings["clients"] or len(run.clients),
        "finished": run.lines[-1]["round"] if run.lines else 0,
        "rounds": run.settings["rounds"],
        "metrics": [measured(run, note, detail) if note in run.metrics else None for note in metrics],
        "loss": next((value for value in reversed(loss) if value is not None), None),
        "curves": {"rounds": [run.lines[i]["round"] for i in kept], "loss": [loss[i] for i in kept]},
        "sentences": run.sentences,
        "scalars": scalars(run, detail),
        "tuner": story(run.lines, run.settings["grid"], detail),
        "guards": guards[-EVENTS:],
        "guarded": len(guards),
        "refused": refused[-EVENTS:],
        "refusals": len(refused),
        "absent": absent(run),
        "divergence": divergences(run, kept),
        "contribution": contribution(run, detail),
        "spread": spread(run, detail),
        "bytes": sum(int(number(line.get("bytes"), 17) or 0) for line in run.lines),
        "time": spent(run, kept),
    }


def measured(run: Run, note: MetricNote, detail: float) -> dict[str, Any]:
    """One metric of a run: its last and its best value, and the curve."""
    found = series(run, "metrics", note.name)
    best = (max if note.higher else min)(found.values(), default=None)
    return {"last": next(reversed(found.values()), None), "best": best, **thinned(found, detail)}


def scalars(run: Run, detail: float) -> list[dict[str, Any]]:
    """The curves of what the method logs, by name."""
    names = dict.fromkeys(name for line in run.lines for name in line.get("method") or {})
    return [{"name": name, **thinned(series(run, "method", name), detail)} for name in names]


def series(run: Run, field: str, name: str) -> dict[int, float]:
    """The rounds in whose log line this field has a number of this name, and the numbers."""
    found = {line["round"]: number((line.get(field) or {}).get(name)) for line in run.lines}
    return {round: value for round, value in found.items() if value is not None}


def thinned(values: Mapping[int, float], detail: float) -> dict[str, Any]:
    """A curve of no more points than a page needs."""
    kept, points = evenly(len(values), CURVE, detail), list(values.items())
    return {"rounds": [points[i][0] for i in kept], "values": [points[i][1] for i in kept]}


def absent(run: Run) -> list[str]:
    """Who did not count at the end of the log, since when and why."""
    found = Attendance()
    for line, trained in zip(run.lines, run.trained, strict=True):
        names = (run.clients[client] for client in trained.clients)
        present = {int(name) for name in names if name.isdecimal()}
        reasons = {entry.get("client"): str(entry.get("why")) for entry in line.get("refused") or ()}
        found.note(line["round"], line.get("cohort") or (), present, reasons)
    return found.sentences()


def divergences(run: Run, kept: Sequence[int]) -> dict[str, Any]:
    """By round; `missing` says why there is none."""
    if not any(line.get("step_norm") is not None for line in run.lines):
        return {"missing": "this log was written before the length of the mean step (step_norm) was kept"}
    found = []
    for i in kept:
        line, length = run.lines[i], 1.0
        if "method" not in line:  # 0.1 kept the length of the server's step, not of the mean's
            if run.settings["weighting"] == "population" and run.settings["fraction"] < 1:
                return {"missing": "in 0.1, weighting = population shortened the step that was kept"}
            length = line["hyper"].get("server_lr", run.settings.get("server_lr", 1.0))
        found.append(divergence(run.trained[i], line.get("step_norm"), length))
    return {"rounds": [run.lines[i]["round"] for i in kept], "values": [number(value) for value in found]}


def divergence(trained: Trained, step_norm: float | None, length: float = 1.0) -> float | None:
    """sum_i p_i ||w_i - w||^2 / ||mean - w||^2, p_i a client's share of the round's examples.

    1 if all clients made the same step. `step_norm` is `length` times ||mean - w||.
    """
    if not step_norm or not trained.examples.sum():
        return None
    shares = trained.examples / trained.examples.sum()
    value = float(shares @ trained.norms**2) / (step_norm / length) ** 2
    return value if math.isfinite(value) else None


def contribution(run: Run, detail: float) -> dict[str, Any]:
    """Who took part, with how much, and how far each update went; of many clients those that brought the most."""
    examples, rounds = np.zeros(len(run.clients), np.int64), np.zeros(len(run.clients), np.int64)
    for trained in run.trained:
        examples[trained.clients] += trained.examples
        rounds[trained.clients] += 1
    by_size = sorted(range(len(run.clients)), key=lambda c: (-examples[c], natural(run.clients[c])))
    clients = sorted(by_size[:CLIENTS], key=lambda c: natural(run.clients[c]))
    kept = evenly(len(run.lines), MAPS, detail)
    norms = np.full((len(run.clients), len(kept)), np.nan)
    for column, i in enumerate(kept):
        norms[run.trained[i].clients, column] = run.trained[i].norms
    total = max(1, int(examples.sum()))
    return {
        "clients": [run.clients[c] for c in clients],
        "share": [number(examples[c] / total) for c in clients],
        "took_part": rounds[clients].tolist(),
        "seen": len(run.clients),
        "rounds": [run.lines[i]["round"] for i in kept],
        "norms": [[number(value, 3) for value in norms[c].tolist()] for c in clients],
    }


def spread(run: Run, detail: float) -> dict[str, Any]:
    """How the metric to judge by is distributed over the clients that measured it: least, quartiles, most, by round."""
    there = [(line["round"], trained.measured) for line, trained in zip(run.lines, run.trained, strict=True)]
    there = [(round, values) for round, values in there if values]
    kept = [there[i] for i in evenly(len(there), CURVE, detail)]
    ends = [np.percentile(values, (0, 25, 50, 75, 100)).tolist() for _, values in kept]
    values = [[number(each) for each in five] for five in ends]
    named = run.metrics[0].name if run.metrics else ""
    return {"metric": named, "rounds": [round for round, _ in kept], "values": values}


def natural(name: str) -> tuple[int, str]:
    """Client 10 comes after client 9."""
    return (int(name), "") if name.isdecimal() else (1 << 62, name)


def spent(run: Run, kept: Sequence[int]) -> dict[str, Any]:
    """Seconds by part: of each round, and in all."""
    seconds: list[Mapping[str, Any]] = [line.get("seconds") or {} for line in run.lines]
    parts = [*PARTS, *sorted({part for each in seconds for part in each} - set(PARTS))]
    return {
        "rounds": [run.lines[i]["round"] for i in kept],
        "parts": [
            {
                "name": part,
                "seconds": [number(seconds[i].get(part, 0.0), 4) for i in kept],
                "total": number(sum(number(each.get(part), 17) or 0.0 for each in seconds)),
            }
            for part in parts
        ],
    }
