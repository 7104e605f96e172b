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
    return sum(float(row["accuracy"]) < ABOVE_CHANCE * float(row["chance"]) < float(row["oracle"]) for row in rows)


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
    opposed = ["kws16-one-C1", "kws16-one-C0.5", "cifar16-one-C1", "cifar16-one-C0.5"]
    kws, kws_half, cifar, cifar_half = (f"{cells[problem]:.1f}" for problem in opposed)
    text = f"(keywords {kws} points and {kws_half}, CIFAR-10 {cifar} and {cifar_half}, one class a client: the tuner "
    return f"{text}does three)"


def ahead() -> str:
    """All but those that are level, behind, or whose oracle failed."""
    cells = {name: -points for name, points in regrets().items() if name != "kws16-natural"}
    found = sorted(points for name, points in cells.items() if points > 0.2)
    return f"ahead by {found[0]:.1f} to {found[-1]:.0f} points elsewhere"


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
]


@pytest.mark.parametrize(("page", "claim"), CLAIMS, ids=lambda each: getattr(each, "__name__", each))
def test_a_page_says_what_the_results_say(page, claim):
    assert claim() in " ".join((ROOT / page).read_text().split())


def test_what_a_part_is_said_to_cost_is_what_was_measured():
    measured = json.loads((RESULTS / "bench" / "rounds-mnist.json").read_text())["rounds"]["mnist"]
    told = {name: part.cost for name, part in PARTS.items() if name in measured}
    assert told == pytest.approx({name: measured[name]["to_FA"] for name in told}, rel=0.1)
