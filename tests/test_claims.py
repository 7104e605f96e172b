"""Figures in running text: each sentence is made again from `results/` and must stand on its page, word for word."""

import csv
import json
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest

from fedaccord.experiments.lab import PROBLEMS
from fedaccord.methods.registry import PARTS
from fedaccord.report.regret import ABOVE_CHANCE

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"

Cells = dict[str, float]
"""Problem -> points."""


def regrets(column: str = "regret", part: str = "FA", candidate: str = "default") -> Cells:
    """The mean over the seeds."""
    found: dict[str, list[float]] = {}
    for row in runs(part, candidate):
        found.setdefault(row["problem"], []).append(float(row[column]))
    return {problem: statistics.fmean(values) for problem, values in found.items()}


def runs(part: str = "FA", candidate: str = "default") -> list[dict[str, str]]:
    with (RESULTS / "tuner" / "runs.csv").open() as file:
        return [row for row in csv.DictReader(file) if (row["part"], row["candidate"]) == (part, candidate)]


def missed(cells: Cells) -> float:
    """On average, with what is ahead as 0."""
    return statistics.fmean(max(0.0, points) for points in cells.values())


def at_chance(rows: list[dict[str, str]]) -> int:
    return sum(float(row["accuracy"]) < ABOVE_CHANCE * float(row["chance"]) < float(row["best"]) for row in rows)


def bare_loop() -> str:
    times = json.loads((RESULTS / "bench" / "shares.json").read_text())["shares"]["mnist"]["times_the_bare_loop"]
    return f"on MNIST {times:.1f} times a bare PyTorch loop"


def rounds_of_all_methods() -> str:
    found = json.loads((RESULTS / "bench" / "rounds-mnist.json").read_text())["rounds"]["mnist"]
    rows = (
        f"| {name} | " + " | ".join(f"{each[what]:.2f}" for each in found.values()) for name, what in RATIOS.items()
    )
    return " | ".join(["| to FA", *found]) + " | " + "|---" * (len(found) + 1) + "| " + " | ".join(rows) + " |"


RATIOS = {"time": "to_FA", "bytes": "bytes_to_FA"}


def kills_in_a_federation() -> str:
    lines = (RESULTS / "chaos" / "federation-kills.jsonl").read_text().splitlines()
    tried, lost = (sum(json.loads(line)[what] for line in lines) for what in ("tried", "lost"))
    process = "(node, SuperLink, server, a client's process)"
    return f"of {tried} kills in a real federation {process} {tried - lost} ended with the undisturbed bits"


def regret_on_average() -> str:
    cells = regrets()
    worst = max(cells.values())
    return f"misses {missed(cells):.2f} points on average (what is ahead counts as 0) and {worst:.1f} at worst"


def no_run_at_chance() -> str:
    assert at_chance(runs()) == 0
    return f"none of {len(runs())} runs is at chance"


def the_promise() -> str:
    cells = regrets()
    assert len(cells) == len(PROBLEMS) == 16
    worst = max(cells.values())
    return f"misses it by {missed(cells):.2f} points on average (what is ahead counts as 0) and {worst:.1f} at worst"


def regret_by_steps() -> str:
    cells = regrets("equal_regret")
    behind = ["kws16-one-C1", "cifar16-one-C1", "cifar16-one-C0.5", "digits-iid"]
    assert {name for name, points in cells.items() if points > 1} == {*behind}
    kws, cifar, cifar_half, digits = (f"{cells[problem]:.1f}" for problem in behind)
    everyone = f"one class a client, all of them in a round: keywords {kws} points, CIFAR-10 {cifar}"
    half = f"half of them: CIFAR-10 {cifar_half}; the tuner does three"
    return f"({everyone}; {half}) or few where clients are alike (digits {digits})"


LEVEL = 0.2
"""Points up to which two results are called level."""


def ahead() -> str:
    found = sorted(-points for points in regrets().values() if -points > LEVEL)
    return f"ahead by {found[0]:.1f} to {found[-1]:.0f} points on {len(found)}"


def level() -> str:
    found = [points for points in regrets().values() if abs(points) <= LEVEL]
    return f"level within {LEVEL} points on {len(found)} of the sixteen"


def beside_the_default(candidate: str) -> tuple[float, float, int]:
    """Return by how much a candidate misses more where both ran, what it misses at worst, and on how many problems."""
    own, default = regrets(candidate=candidate), regrets()
    return missed(own) - missed({name: default[name] for name in own}), max(own.values()), len(own)


def other_places() -> str:
    low, high, wide = (beside_the_default(each) for each in ("low", "high", "wide"))
    assert low[2] == high[2] == wide[2] == 9
    more = f"{low[0]:.2f} and {high[0]:.2f} points more than from its middle"
    corners = f"it misses {more}, {low[1]:.1f} and {high[1]:.1f} at worst"
    return f"{corners}; with rates ten times wider at each end {wide[0]:.2f} more, {wide[1]:.1f} at worst"


def as_printed() -> str:
    cells, rows = regrets(candidate="paper"), runs(candidate="paper")
    assert len(cells) == 10
    worst = f"{missed(cells):.1f} points on ten of the sixteen and {max(cells.values()):.1f} at worst"
    return f"misses {worst}, with {at_chance(rows)} of {len(rows)} runs at chance"


CLAIMS: list[tuple[str, Callable[[], str]]] = [
    ("README.md", bare_loop),
    ("README.md", the_promise),
    ("README.md", no_run_at_chance),
    ("README.md", kills_in_a_federation),
    ("docs/results.md", rounds_of_all_methods),
    ("docs/tuner.md", regret_on_average),
    ("docs/tuner.md", no_run_at_chance),
    ("docs/tuner.md", regret_by_steps),
    ("docs/tuner.md", ahead),
    ("docs/tuner.md", level),
    ("docs/tuner.md", other_places),
    ("docs/tuner.md", as_printed),
]


@pytest.mark.parametrize(("page", "claim"), CLAIMS, ids=lambda each: getattr(each, "__name__", each))
def test_a_page_says_what_the_results_say(page, claim):
    assert claim() in " ".join((ROOT / page).read_text().split())


def test_what_a_part_is_said_to_cost_is_what_was_measured():
    measured = json.loads((RESULTS / "bench" / "rounds-mnist.json").read_text())["rounds"]["mnist"]
    told = {name: part.cost for name, part in PARTS.items() if name in measured}
    assert told == pytest.approx({name: measured[name]["to_FA"] for name in told}, rel=0.1)
