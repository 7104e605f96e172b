"""Every round's sentence is true: what it says moved did, what it says stood still did not, and its numbers agree."""

import re
from dataclasses import replace

import numpy as np
from helpers import seen
from hypothesis import given, settings
from hypothesis import strategies as st

from fedaccord.core.records import Hyper, Stretch
from fedaccord.core.seeds import generator
from fedaccord.policy.grid import HyperGrid
from fedaccord.policy.pace import Pace
from fedaccord.policy.reinforce import Reinforce

GRID = HyperGrid.parse("lr = 0.001..1/25 log; steps = 1, 2, 3, 5, 8, 13, 20, 32, 50, 80 log")
NUMBER = {"learning rate": 0, "SGD iterations": 1}
FOLLOWED = re.compile(r"(learning rate) (\S+) to ([^\s:]+): .+")
ABOUT = re.compile(r"(more|fewer|as many) SGD iterations, about (\d+)(: .+)?")
MOVED = re.compile(r"(beyond that )?(learning rate|SGD iterations) moved (up|down), (\S+) to ([^\s:]+): (.+)")
STOOD = re.compile(r"(learning rate|SGD iterations) stood still: (.+)")
ALONE = re.compile(
    r"goes on|nothing to learn from yet|no change: .+|held: round \d+ of \d+ with this choice|no reward yet"
)
EARNED = re.compile(
    r"of the last (\d+) choices, .* a (higher|lower) mean .* \(r = ([+-][\d.]+)(?:, chance ([\d.]+))?\)"
)
AROUND = re.compile(r"round (\d+) with \S+ (gained|lost) ([\d.]+) %, those around it (gained|lost) ([\d.]+) %")
STILL = 1e-4
"""The part of the grid that is no story."""


def shown(text, axis, z):
    """Whether this is the value at a normalised point, to three figures or more."""
    return any(float(f"{axis.value_at(z):.{figures}g}") == float(text) for figures in range(3, 18))


def next_to(axis, z):
    """The grid's value next to a normalised point."""
    return min(axis.values, key=lambda value: abs(axis.point_of(value) - z))


def check(grid, before, after, why):
    """Hold a sentence against the states before and after it, and between them what following did."""
    start, end = before["mu"], after["mu"]
    put = after["pace"]["mu"] if "pace" in after else start
    run_in = before["pending"][-1]["run_in"]
    clauses = why.removeprefix("run-in: ").split("; ")
    assert why.startswith("run-in: ") == run_in
    assert clauses[-1].endswith("is over") == (run_in and not after["pace"]["run_in"])
    followed, moved, stood = set(), set(), set()
    for clause in clauses:
        if found := FOLLOWED.fullmatch(clause):
            assert shown(found[2], grid.axes[0], start[0])
            assert shown(found[3], grid.axes[0], put[0])
            assert (float(found[3]) > float(found[2])) == (put[0] > start[0])
            followed.add(0)
        elif found := ABOUT.fullmatch(clause):
            was, now = (next_to(grid.axes[1], mu[1]) for mu in (start, put))
            assert int(found[2]) == now
            assert found[1] == ("more" if now > was else "fewer" if now < was else "as many")
            followed.add(1)
        elif found := MOVED.fullmatch(clause):
            number = NUMBER[found[2]]
            assert shown(found[4], grid.axes[number], put[number])
            assert shown(found[5], grid.axes[number], end[number])
            up = float(found[5]) > float(found[4])
            assert (found[3] == "up") == up == (end[number] > put[number])
            assert bool(found[1]) == (number in followed)
            check_reason(found[6], number, up, after["window"])
            moved.add(number)
        elif found := STOOD.fullmatch(clause):
            number = NUMBER[found[1]]
            at_edge = abs(grid.axes[number].points[[0, -1]] - end[number]).min() < STILL
            assert at_edge or "edge" not in found[2]
            stood.add(number)
        else:
            assert clause == "it is over" or (ALONE.fullmatch(clause) and len(clauses) == 1), clause
    assert not stood & (followed | moved)
    for number in range(len(grid.axes)):  # whatever it does not say has moved did not
        assert number in followed or abs(put[number] - start[number]) < STILL
        assert number in moved or abs(end[number] - put[number]) < STILL


def check_reason(reason, number, up, window):
    """Its own numbers do not contradict it."""
    alike = len({entry["reward"] for entry in window}) == 1
    assert ("paid alike" in reason) <= alike
    if found := EARNED.fullmatch(reason):
        assert not alike
        assert int(found[1]) == len(window)
        assert (found[2] == "higher") == up == (float(found[3]) > 0)
        assert found[4] is None or float(found[4]) < abs(float(found[3]))
    elif found := AROUND.fullmatch(reason):
        earned, around = (float(found[n + 1]) * (1 if found[n] == "gained" else -1) for n in (2, 4))
        (score,) = (entry["score_mu"][number] for entry in window if entry["round"] == int(found[1]))
        assert earned != around
        assert (earned > around) == (up == (score > 0))
    else:
        assert reason in ("at random", "by what was learned before")


def rounds_of(kind, draw, count):
    """What a policy sees: `kind` says how rewards come, the rest is drawn for each choice of clients anew."""
    cosine, wanted = draw.uniform(-0.1, 0.3), draw.choice([0.5, 1.0, 2.0, 8.0])
    for t in range(1, count + 1):
        reward = {
            "noise": lambda: float(draw.normal(0, 0.05)),
            "tiny": lambda: float(draw.normal(0, 1e-23)),
            "alike": lambda: 0.1,
            "few": lambda: float(draw.choice([0.1, 0.1, 0.1, -0.6, -1.0])),
        }[kind]()
        lost = draw.random() < 0.05
        length = float(wanted * draw.choice([0.5, 1.0, 1.0, 2.0]))
        yield replace(
            seen(None if lost or draw.random() < 0.05 else reward, not lost and draw.random() > 0.05, t),
            cosine=None if lost else float(cosine + draw.normal(0, 0.03)),
            stretch=None if lost or draw.random() < 0.1 else Stretch(max(1.0, length), length, 16.0),
            relative=float(draw.choice([0.001, 0.02, 0.05, 0.3])),
            diverged=float(lost),
            turn=float(draw.uniform(-0.5, 1)),
        )


def play(tuner, rounds, seed=0):
    """The states before and after each round, and what is said of it."""
    state = tuner.start()
    for t, each in enumerate(rounds, 1):
        _, before = tuner.propose(state, t, (0,), generator(seed, "policy", t))
        state = tuner.learn(before, each)
        yield before, state, tuner.describe(before, state)["why"]


@settings(max_examples=100)
@given(
    st.integers(0, 10**6),
    st.sampled_from(["ascent", "adam", "scaled", "walk"]),
    st.sampled_from(["noise", "tiny", "alike", "few"]),
    st.sampled_from(["", "server", "clients"]),
    st.fixed_dictionaries(
        {
            "baseline": st.sampled_from(["causal", "centred"]),
            "hold": st.sampled_from([1, 2]),
            "interval": st.sampled_from([1, 3, 10]),
            "hyper_lr": st.sampled_from([0.0, 1e-3, 0.05, 5.0]),
            "diagonal": st.booleans(),
            "start_at": st.sampled_from([(), *(GRID.place(f"lr = {lr}, steps = 80") for lr in (0.001, 0.999, 1))]),
        }
    ),
)
def test_whatever_happens_every_sentence_is_true(seed, psi, kind, evaluate, changes):
    """`evaluate`: who measures where the rate follows, or nobody, and it does not."""
    draw = np.random.default_rng(seed)
    pace = Pace(GRID, int(draw.integers(1, 4)), evaluate == "clients") if evaluate else None
    tuner = Reinforce(Hyper(lr=0.1, steps=10), GRID, psi=psi, late=evaluate == "clients", pace=pace, **changes)
    for before, after, why in play(tuner, rounds_of(kind, draw, 40), seed):
        check(GRID, before, after, why)
