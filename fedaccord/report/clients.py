"""The clients of a run: who took part, who is missing, what each holds, and how well the model does for it."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fedaccord.report.runs import Run, Trained
from fedaccord.report.tuner import CURVE, MAPS, evenly, number
from fedaccord.runtime.attendance import Attendance

CLIENTS = 50


def attended(run: Run) -> Attendance:
    """Return which clients counted in the rounds of the log, and which were missing at its end."""
    found = Attendance()
    for line, trained in zip(run.lines, run.trained, strict=True):
        names = (run.clients[client] for client in trained.clients)
        present = {int(name) for name in names if name.isdecimal()}
        reasons = {entry.get("client"): str(entry.get("why")) for entry in line.get("refused") or ()}
        found.note(line["round"], line.get("cohort") or (), present, reasons)
    return found


def divergences(run: Run, kept: Sequence[int]) -> dict[str, Any]:
    """Return how far apart the clients' updates were, by round, or under `missing` why that is not known."""
    if not any(line.get("step_norm") is not None for line in run.lines):
        return {"missing": "this log was written before the length of the mean step (step_norm) was kept"}
    found = []
    for i in kept:
        line, length = run.lines[i], 1.0
        if "method" not in line:  # 0.1 kept the length of the server's step, not that of the mean
            if run.settings["weighting"] == "population" and run.settings["fraction"] < 1:
                return {"missing": "in 0.1, weighting = population shortened the step that was kept"}
            length = line["hyper"].get("server_lr", run.settings.get("server_lr", 1.0))
        found.append(divergence(run.trained[i], line.get("step_norm"), length))
    return {"rounds": [run.lines[i]["round"] for i in kept], "values": [number(value) for value in found]}


def divergence(trained: Trained, step_norm: float | None, length: float = 1.0) -> float | None:
    """Compute sum_i p_i ||w_i - w||^2 / ||mean - w||^2, where p_i is a client's share of the round's examples.

    w_i is as it was averaged. The result is 1 if all clients made the same step, and None if it is no finite number.
    `step_norm` is `length` times ||mean - w||.
    """
    if not step_norm or not trained.examples.sum():
        return None
    shares = trained.examples / trained.examples.sum()
    norms = trained.norms if trained.entered is None else trained.entered
    value = float(shares @ norms**2) / (step_norm / length) ** 2
    return value if math.isfinite(value) else None


def contribution(run: Run, missing: Attendance, detail: float) -> dict[str, Any]:
    """Return which clients took part, their shares of the examples, and how far each update went.

    If there are many clients, those that are missing at the end are kept first, then those with the most examples.
    """
    gone = {str(client): {"since": each.since, "why": each.why} for client, each in missing.absent.items()}
    everyone = [*run.clients, *(name for name in gone if name not in set(run.clients))]
    examples, rounds = np.zeros(len(everyone), np.int64), np.zeros(len(everyone), np.int64)
    for trained in run.trained:
        examples[trained.clients] += trained.examples
        rounds[trained.clients] += 1
    rank = sorted(range(len(everyone)), key=lambda c: (everyone[c] not in gone, -examples[c], natural(everyone[c])))
    shown = sorted(rank[:CLIENTS], key=lambda c: natural(everyone[c]))
    kept = evenly(len(run.lines), MAPS, detail)
    norms = np.full((len(everyone), len(kept)), np.nan)
    for column, i in enumerate(kept):
        norms[run.trained[i].clients, column] = run.trained[i].norms
    total = max(1, int(examples.sum()))
    names = [everyone[c] for c in shown]
    return {
        "clients": names,
        "share": [number(examples[c] / total) for c in shown],
        "took_part": rounds[shown].tolist(),
        "everyone": len(everyone),
        "missing": [gone.get(name) for name in names],
        "labels": [labels_of(run, name) for name in names],
        "rounds": [run.lines[i]["round"] for i in kept],
        "norms": [[number(value, 3) for value in norms[c].tolist()] for c in shown],
        **own_accuracy(run, names),
    }


def labels_of(run: Run, client: str) -> list[int] | None:
    """Return how many examples of each class a client holds, or None where nobody can know."""
    rows = run.classes.clients if run.classes else []
    return (rows[int(client)] or None) if client.isdecimal() and int(client) < len(rows) else None


def class_rates(run: Run) -> list[float | None]:
    """Return the share of each class's test examples that the model gets right; None for a class without any."""
    known = run.classes
    pairs = zip(known.right, known.tested, strict=True) if known else ()
    return [number(right / tested) if tested else None for right, tested in pairs]


def own_accuracy(run: Run, clients: Sequence[str]) -> dict[str, Any]:
    """Return the model's accuracy for each client, and how that is known (`by`).

    `measured`: the client's own newest figure. `mixed`: the classes' test accuracy, weighted by the client's labels.
    """
    newest = {
        run.clients[client]: value
        for trained in run.trained
        for client, value in zip(trained.clients, trained.measured, strict=bool(trained.measured))
        if value is not None
    }
    if newest:
        return {"by": "measured", "accuracy": [newest.get(client) for client in clients]}
    rates = class_rates(run)
    mixed = [weighted(rates, labels_of(run, client)) for client in clients]
    return {"by": "mixed" if any(value is not None for value in mixed) else "", "accuracy": mixed}


def weighted(rates: Sequence[float | None], weights: Sequence[int] | None) -> float | None:
    """Return the weighted mean of the known rates, or None if there is none."""
    known = [(rate, weight) for rate, weight in zip(rates, weights or (), strict=False) if rate is not None and weight]
    return number(sum(rate * weight for rate, weight in known) / sum(weight for _, weight in known)) if known else None


def spread(run: Run, detail: float) -> dict[str, Any]:
    """Return how the first metric is distributed over the clients that measured it, by round.

    A round has five values: the least, the quartiles and the most.
    """
    known = [[each for each in trained.measured if each is not None] for trained in run.trained]
    there = [(line["round"], values) for line, values in zip(run.lines, known, strict=True) if values]
    kept = [there[i] for i in evenly(len(there), CURVE, detail)]
    ends = [np.percentile(values, (0, 25, 50, 75, 100)).tolist() for _, values in kept]
    values = [[number(each) for each in five] for five in ends]
    named = run.metrics[0].name if run.metrics else ""
    return {"metric": named, "rounds": [round for round, _ in kept], "values": values}


def natural(name: str) -> tuple[int, str]:
    """Return a sort key by which client 10 comes after client 9."""
    return (int(name), "") if name.isdecimal() else (1 << 62, name)
