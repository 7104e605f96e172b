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
from fedaccord.core.errors import RunError, SettingsError
from fedaccord.policy.grid import HyperGrid
from fedaccord.report.tuner import CURVE, MAPS, evenly, number, story
from fedaccord.runtime.attendance import Attendance
from fedaccord.runtime.folder import ROUNDS, SETTINGS, read_rounds

LIMIT = 2_000_000  # characters of JSON
CLIENTS = 50
EVENTS = 500  # refused updates, and guards' actions, that are listed
PARTS = ("train", "aggregate", "evaluate", "policy")
FIRST = ("task", "method", "split", "fraction", "clients", "seed")  # what runs are told apart by, if it differs
LAST = ("rounds", "test_every", "checkpoint_every", "engine", "workers", "address", "device", "threads")


@dataclass(frozen=True)
class Trained:
    """One round's accepted updates as arrays: a thousand rounds of a thousand clients must fit into memory."""

    clients: np.ndarray  # numbers into Run.clients
    examples: np.ndarray
    norms: np.ndarray  # ||w_i - w||, NaN where the log has none


@dataclass(frozen=True)
class Run:
    """A run folder, read."""

    name: str
    settings: dict[str, Any]
    lines: list[dict[str, Any]]  # the log, without its clients
    trained: list[Trained]
    clients: list[str]


def page_data(runs: Sequence[Path]) -> dict[str, Any]:
    """All that the page shows of these runs. What is too much for a page is thinned, and says so."""
    if not runs:
        raise SettingsError("report: name at least one run folder")
    read = [read_run(Path(path)) for path in runs]
    names = labels(read)
    detail = 1.0
    while True:
        data = {
            "runs": [condensed(run, label, detail) for run, label in zip(read, names, strict=True)],
            "settings": settings_table(read),
        }
        size = len(json.dumps(data, separators=(",", ":")))
        if size < LIMIT or detail < 1e-3:
            return data
        detail *= 0.9 * LIMIT / size


def read_run(path: Path) -> Run:
    """A log that is not there yet is an empty one: a run is watched from its first moment."""
    if not (path / SETTINGS).is_file():
        raise RunError(f"{path}: not a run folder, it has no {SETTINGS}")
    try:
        settings = dataclasses.asdict(config.make(config.read_toml(path / SETTINGS)))
    except SettingsError as error:
        raise RunError(f"{path}: its settings cannot be read: {error}") from None
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
            )
        )
        lines.append({"hyper": {}, **line})
    return Run(path.resolve().name, settings, lines, trained, list(numbers))


def labels(runs: Sequence[Run]) -> list[str]:
    """What tells a run from the others, in few words: 'FA+RM · seed 1'. Folder names only as a last resort."""
    order = [*FIRST, *(name for name in config.FIELDS if name not in FIRST + LAST), *LAST]
    words: list[tuple[str, ...]] = [() for _ in runs]
    for name in order:
        more = [(*said, phrase(name, run.settings[name], bool(said))) for said, run in zip(words, runs, strict=True)]
        if len(set(more)) > len(set(words)):
            words = more
    for extra in ([run.name for run in runs], [str(place) for place in range(1, len(runs) + 1)]):
        if len(set(words)) < len(runs):
            words = [(*said, word) for said, word in zip(words, extra, strict=True)]
    return [" · ".join(filter(None, said)) or run.settings["method"] for said, run in zip(words, runs, strict=True)]


def phrase(name: str, value: Any, told_apart: bool) -> str:
    """One part of a label; a minor setting that is as it always is goes without saying, unless nothing else is said."""
    if name in ("task", "method", "split"):
        return Path(value).name
    if told_apart and name not in FIRST and value == config.FIELDS[name].default:
        return ""
    said = f"{value:g}" if isinstance(value, float) else shown(value)
    return f"{({'fraction': 'C', 'clients': 'K'}).get(name, name)} {said}"


def shown(value: Any) -> str:
    """A setting's value in words."""
    if value is None or value == "":
        return "–"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def settings_table(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Every setting with its sentence and its value in each run; those that differ come first."""
    rows = []
    for name, item in config.FIELDS.items():
        values = [shown(run.settings[name]) for run in runs]
        rows.append(
            {"name": name, "help": item.metadata["help"], "values": values, "differs": len(set(values)) > 1}
        )  # fmt: skip
    return sorted(rows, key=lambda row: not row["differs"])


def condensed(run: Run, label: str, detail: float) -> dict[str, Any]:
    """A log that is not what a run writes is told as such."""
    try:
        return condense(run, label, detail)
    except (TypeError, KeyError, AttributeError, ValueError, OverflowError, np.linalg.LinAlgError) as error:
        raise RunError(f"{run.name}: its log is not what a run writes: {error!r}") from None


def condense(run: Run, label: str, detail: float) -> dict[str, Any]:
    """One run's part of the page."""
    kept = evenly(len(run.lines), CURVE, detail)
    accuracy = [(line["round"], value) for line in run.lines if (value := number(line.get("accuracy"))) is not None]
    tested = [accuracy[i] for i in evenly(len(accuracy), CURVE, detail)]
    guards = [{"round": line["round"], "text": line["guard"]} for line in run.lines if line.get("guard")]
    refused = [
        {"round": line["round"], "client": str(entry.get("client")), "why": str(entry.get("why"))}
        for line in run.lines
        for entry in line.get("refused") or ()
    ]
    loss = [number(line.get("loss")) for line in run.lines]
    tuned = "AH" in run.settings["method"].split("+")
    return {
        "label": label,
        "name": run.name,
        **{name: run.settings[name] for name in FIRST},
        "task": Path(run.settings["task"]).name,
        "clients": run.settings["clients"] or len(run.clients),
        "finished": run.lines[-1]["round"] if run.lines else 0,
        "rounds": run.settings["rounds"],
        "accuracy": accuracy[-1][1] if accuracy else None,
        "best": max((value for _, value in accuracy), default=None),
        "loss": next((value for value in reversed(loss) if value is not None), None),
        "curves": {
            "rounds": [run.lines[i]["round"] for i in kept],
            "loss": [loss[i] for i in kept],
            "tested": [round for round, _ in tested],
            "accuracy": [value for _, value in tested],
        },
        "tuner": story(run.lines, HyperGrid.parse(run.settings["grid"]), detail) if tuned else None,
        "guards": guards[-EVENTS:],
        "guarded": len(guards),
        "refused": refused[-EVENTS:],
        "refusals": len(refused),
        "absent": absent(run),
        "divergence": divergences(run, kept),
        "contribution": contribution(run, detail),
        "time": spent(run, kept),
    }


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
    if run.settings["weighting"] == "population" and run.settings["fraction"] < 1:
        return {"missing": "weighting = population shortens the mean step by the share of the data that was seen"}
    found = []
    for i in kept:
        server_lr = run.lines[i]["hyper"].get("server_lr", run.settings["server_lr"])
        found.append(divergence(run.trained[i], run.lines[i].get("step_norm"), server_lr))
    return {"rounds": [run.lines[i]["round"] for i in kept], "values": [number(value) for value in found]}


def divergence(trained: Trained, step_norm: float | None, server_lr: float = 1.0) -> float | None:
    """sum_i p_i ||w_i - w||^2 / ||mean - w||^2, p_i a client's share of the round's examples.

    1 if all clients made the same step. The server's own step is server_lr times that to the mean.
    """
    if not step_norm or not trained.examples.sum():
        return None
    shares = trained.examples / trained.examples.sum()
    value = float(shares @ trained.norms**2) / (step_norm / server_lr) ** 2
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
