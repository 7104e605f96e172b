"""What happened, in two sentences for somebody who has not read the paper."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedaccord.core.protocols import Method

SPLITS = {
    "iid": "whose examples are alike",
    "non-iid": "each with examples of one class only",
    "dirichlet": "each with its own mix of classes",
    "dirichlet-capped": "each with its own mix of classes",
    "quantity": "some with far more examples than others",
}
PYTHON = "python"
"""The name by which `federate()` calls a task that has none."""
COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def summary(data: Mapping[str, Any], groups: Sequence[int]) -> list[str]:
    """Return a sentence on what was trained, where and how well, then one on what went wrong.

    Runs of a group differ by their seed alone.
    """
    runs = data["runs"]
    if not any(run["finished"] for run in runs):
        return [f"{trained(runs)}: no round has finished yet."]
    said = result(runs, groups, data["metrics"])
    return [f"{trained(runs)}{': ' if said else ''}{said}.", f"{trouble(runs)}."]


def trained(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return words such as 'A model for digits was trained for 150 rounds on 10 clients, each ..., by two methods'."""
    tasks, clients, rounds = ({run[name] for run in runs} for name in ("task", "clients", "finished"))
    what, were = f"Models for {', '.join(sorted(tasks))}", "were"
    if len(tasks) == 1:
        what, were = "A model" if tasks == {PYTHON} else f"A model for {tasks.pop()}", "was"
    where = f"{span(clients)} client{'' if clients == {1} else 's'}"
    split = {run["split"] for run in runs}
    how = SPLITS.get(split.pop(), "") if len(split) == 1 else ""
    length = f"for {span(rounds)} round{'' if rounds == {1} else 's'}"
    methods = len({run["method"] for run in runs})
    ways = f", by {in_words(methods)} methods" if methods > 1 else f", in {in_words(len(runs))} runs"
    ways = ways if len(runs) > 1 else ""
    return f"{what} {were} trained {length} on {where}{f', {how}' if how else ''}{ways}"


def result(runs: Sequence[Mapping[str, Any]], groups: Sequence[int], metrics: Sequence[Mapping[str, Any]]) -> str:
    """Return words on which group of runs did best, by its mean, and by how much.

    They are empty where nobody tested, or tasks differ.
    """
    if not metrics or len({run["task"] for run in runs}) > 1:
        return ""
    metric = metrics[0]
    values: dict[int, list[float]] = {}
    for run, group in zip(runs, groups, strict=True):
        value = run["metrics"][0] and run["metrics"][0]["last"]
        if value is not None:
            values.setdefault(group, []).append(value)
    if not values:
        return ""
    means = {group: sum(each) / len(each) for group, each in values.items()}
    first, *others = sorted(means, key=lambda group: means[group], reverse=metric["higher"])
    mean = f", the mean of {in_words(len(values[first]))} seeds" if len(values[first]) > 1 else ""
    if not others:
        return f"the {tested(metric)} is {shown(metric, means[first])}{mean}"
    second = name_of(others[0], runs, groups)
    apart = abs(rounded(metric, means[first]) - rounded(metric, means[others[0]]))
    more = f"{gap(metric, apart)} {'more' if metric['higher'] else 'less'} than {second}"
    ahead = f"{more} ({shown(metric, means[others[0]])})" if apart else f"as has {second}"
    best = f"{name_of(first, runs, groups)} did best, with a {tested(metric)} of {shown(metric, means[first])}"
    return f"{best}{mean}, {ahead}"


def tested(metric: Mapping[str, Any]) -> str:
    """Return what a metric on the test set is called."""
    return str(metric["name"]) if metric["name"].startswith("test") else f"test {metric['name']}"


def name_of(group: int, runs: Sequence[Mapping[str, Any]], groups: Sequence[int]) -> str:
    """Return the label of a group's first run without its seed, unless another group would be called the same."""
    short = [" · ".join(w for w in run["label"].split(" · ") if not w.startswith("seed ")) for run in runs]
    alike = {each for each, name in zip(groups, short, strict=True) if name == short[group]}
    return (short[group] or runs[group]["method"]) if len(alike) == 1 else runs[group]["label"]


def trouble(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return a sentence on all that a person should look into, run by run."""
    found = [(run, said) for run in runs if (said := troubles(run))]
    if not found:
        return "Nothing went wrong: no client was missing, no update was refused and no guard had to act"
    several = len(runs) > 1
    told = (f"{run['label']}: {', '.join(said)}" if several else ", ".join(said) for run, said in found)
    return f"To look into: {'; '.join(told)}"


def troubles(run: Mapping[str, Any]) -> list[str]:
    said = []
    if run["finished"] < run["rounds"] and not run["stopped"]:
        said.append(f"only {run['finished']:,} of {run['rounds']:,} rounds have finished")
    if guessing(run):
        said.append("it ended no better than guessing")
    if run["missing"]:
        said.append(f"{run['missing']:,} of {counted(run['clients'], 'client')} missing at the end")
    if run["refusals"]:
        said.append(f"{counted(run['refusals'], 'update')} refused")
    if run["guarded"]:
        said.append(f"a guard acted in {counted(run['guarded'], 'round')}")
    return said


def guessing(run: Mapping[str, Any]) -> bool:
    """Return whether the accuracy is at most three standard errors above always naming the most frequent class."""
    known = run["classes"]
    total = sum(known["tested"]) if known else 0
    if not total:
        return False
    right = sum(n * (rate or 0) for n, rate in zip(known["tested"], known["accuracy"], strict=True)) / total
    chance = max(known["tested"]) / total
    return right <= chance + 3 * math.sqrt(chance * (1 - chance) / total)


def explained(methods: Sequence[Method | None]) -> list[list[str]]:
    """Return the names of the methods' parts, each with its sentence."""
    parts = {part.name: part.about for method in methods if method for part in method.parts}
    return [[name, about] for name, about in parts.items() if name and about]


def span(values: set[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def in_words(count: int) -> str:
    return COUNTS[count] if count < len(COUNTS) else f"{count:,}"


def counted(count: int, word: str) -> str:
    """Return a count with its noun, such as '1 round' or '1,200 rounds'."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def rounded(metric: Mapping[str, Any], value: float) -> float:
    return round(100 * value, 1) if metric["percent"] else float(f"{value:.4g}")


def shown(metric: Mapping[str, Any], value: float) -> str:
    return f"{100 * value:.1f} %" if metric["percent"] else f"{value:.4g}"


def gap(metric: Mapping[str, Any], apart: float) -> str:
    if not metric["percent"]:
        return f"{apart:.3g}"
    return f"{apart:.1f} point{'' if apart == 1 else 's'}"
