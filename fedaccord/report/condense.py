"""Run folders condensed to what the report page shows: plain JSON values, of limited length."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedaccord import config
from fedaccord.core.algorithm import out_of_patience
from fedaccord.core.errors import RunError, SettingsError
from fedaccord.core.settings import EXPERIMENT, NUMERICS, OBSERVATION, OPERATION, Setting
from fedaccord.report.clients import attended, class_rates, contribution, divergences, spread
from fedaccord.report.runs import Run, read_run
from fedaccord.report.tuner import CURVE, evenly, number, story
from fedaccord.report.words import explained, summary
from fedaccord.runtime.folder import MetricNote

LIMIT = 850_000
"""The most characters of JSON: with its scripts, the page stays below 1.5 MB."""
EVENTS = 500  # the most refused updates, and guards' actions, that are listed
PARTS = ("train", "aggregate", "evaluate", "policy")
FIRST = ("task", "method", "split", "fraction", "clients", "seed")  # runs are told apart by these first, if they differ


def page_data(runs: Sequence[Path]) -> dict[str, Any]:
    """Return all that the page shows of these runs; what is too much for a page is thinned, and says so."""
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
            "names": explained([run.method for run in read]),
        }
        data["summary"] = summary(data, groups(read))
        size = len(json.dumps(data, separators=(",", ":")))
        if size < LIMIT or detail < 1e-3:
            return data
        detail *= 0.9 * LIMIT / size


def described(runs: Sequence[Run]) -> dict[str, Setting]:
    """Return every setting that any of the runs has, by name."""
    there = {name: type(value) for run in runs for name, value in run.settings.items()}
    known: dict[str, Setting] = {}
    for run in reversed(runs):
        known |= config.table(run.method)
    bare = {name: Setting(name, kind, None, "") for name, kind in there.items() if name not in known}
    return {name: each for name, each in {**known, **bare}.items() if name in there}


def groups(runs: Sequence[Run]) -> list[int]:
    """Return a number for each run; runs that differ only in the seed, or in how they are operated, share it."""
    table = described(runs)
    apart = (NUMERICS, OPERATION, OBSERVATION)
    told = [name for name, setting in table.items() if name != "seed" and setting.role not in apart]
    keys = [tuple(shown(run.settings.get(name)) for name in told) for run in runs]
    return [keys.index(key) for key in keys]


def labels(runs: Sequence[Run]) -> list[str]:
    """Return a short label for each run that tells it from the others, such as 'iid · seed 1'.

    Folder names are used only as a last resort.
    """
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
    """Return a setting's part of a label: nothing for a minor one at its default, unless the label is still empty."""
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
    """Return a setting's value in words."""
    if value is None or value == "":
        return "–"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def settings_table(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return every setting with its sentence and its value in each run; those that differ come first.

    Only runs that have a setting can differ in it: the method of the others does not know it.
    """
    rows = []
    for name, setting in described(runs).items():
        values = [shown(run.settings.get(name)) for run in runs]
        differs = len({value for value, run in zip(values, runs, strict=True) if name in run.settings}) > 1
        rows.append({"name": name, "help": setting.help, "values": values, "differs": differs})
    return sorted(rows, key=lambda row: not row["differs"])


def condensed(run: Run, label: str, metrics: Sequence[MetricNote], detail: float) -> dict[str, Any]:
    """Return one run's part of the page; raise RunError if its log is not what a run writes."""
    try:
        return condense(run, label, metrics, detail)
    except (TypeError, KeyError, AttributeError, ValueError, OverflowError, np.linalg.LinAlgError) as error:
        raise RunError(f"{run.name}: its log is not what a run writes: {error!r}") from None


def condense(run: Run, label: str, metrics: Sequence[MetricNote], detail: float) -> dict[str, Any]:
    """Return one run's part of the page, given a log as a run writes it."""
    kept = evenly(len(run.lines), CURVE, detail)
    guards = [{"round": line["round"], "text": line["guard"]} for line in run.lines if line.get("guard")]
    refused = [
        {"round": line["round"], "client": str(entry.get("client")), "why": str(entry.get("why"))}
        for line in run.lines
        for entry in line.get("refused") or ()
    ]
    loss = [number(line.get("loss")) for line in run.lines]
    present = attended(run)
    finished = run.lines[-1]["round"] if run.lines else 0
    best = run.lines[-1].get("best") if run.lines else None
    return {
        "label": label,
        "name": run.name,
        **{name: run.settings[name] for name in FIRST},
        "task": Path(run.settings["task"]).name,
        "method": run.method_name,
        "clients": 1 if run.settings.get("alone") else run.settings["clients"] or len(run.clients),
        "finished": finished,
        "rounds": run.settings["rounds"],
        "best": best,
        "stopped": out_of_patience(run.settings["patience"], finished, best),
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
        "absent": present.sentences(),
        "missing": len(present.absent),
        "classes": classes_of(run),
        "divergence": divergences(run, kept),
        "contribution": contribution(run, present, detail),
        "spread": spread(run, detail),
        "bytes": sum(int(number(line.get("bytes"), 17) or 0) for line in run.lines),
        "time": spent(run, kept),
    }


def classes_of(run: Run) -> dict[str, Any] | None:
    """Return the classes' names and the handed-out model's accuracy on each, or None for a run without classes."""
    known = run.classes
    if known is None:
        return None
    return {"names": known.names, "round": known.round, "tested": known.tested, "accuracy": class_rates(run)}


def measured(run: Run, note: MetricNote, detail: float) -> dict[str, Any]:
    """Return one metric of a run: its last and its best value, and its curve."""
    found = series(run, "metrics", note.name)
    best = (max if note.higher else min)(found.values(), default=None)
    return {"last": next(reversed(found.values()), None), "best": best, **thinned(found, detail)}


def scalars(run: Run, detail: float) -> list[dict[str, Any]]:
    """Return the curve of each number that the method logs, with its name."""
    names = dict.fromkeys(name for line in run.lines for name in line.get("method") or {})
    return [{"name": name, **thinned(series(run, "method", name), detail)} for name in names]


def series(run: Run, field: str, name: str) -> dict[int, float]:
    """Return round -> number, for the rounds in whose log line this field has a number of this name."""
    found = {line["round"]: number((line.get(field) or {}).get(name)) for line in run.lines}
    return {round: value for round, value in found.items() if value is not None}


def thinned(values: Mapping[int, float], detail: float) -> dict[str, Any]:
    """Return a curve with no more points than a page needs."""
    kept, points = evenly(len(values), CURVE, detail), list(values.items())
    return {"rounds": [points[i][0] for i in kept], "values": [points[i][1] for i in kept]}


def spent(run: Run, kept: Sequence[int]) -> dict[str, Any]:
    """Return the seconds that each part of the work took, by round and in all."""
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
