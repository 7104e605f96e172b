"""SIGKILL a process of a real federation: node, SuperLink, server and a client's process in turn."""

import contextlib
import os
import random
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.chaos.part import Outcome, Part
from benchmarks.kill_federation import WHAT, killer, run, settings_of

ROUNDS = 6
DEADLINE = 300.0
TRIES = 5
"""The most federations of an attempt, which ends with the first that is hit: one may be over when the kill comes."""


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Discard standard output, to which the servers write."""
    out, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        os.dup2(out, 1)
        os.close(out)
        os.close(nowhere)


@cache
def undisturbed() -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="calm-") as folder, silence():
        return run(Path(folder), settings_of("digits", ROUNDS, DEADLINE))


def kill(number: int, scratch: Path) -> Outcome:
    """Run federations until a kill hits one, which must recover by itself and end with the undisturbed bits."""
    what, draw = WHAT[number % len(WHAT)], random.Random(f"federation {number}")
    calm = undisturbed()
    for attempt in range(TRIES):
        told: dict[str, bool] = {}
        folder = scratch / str(attempt)
        folder.mkdir()
        with silence():
            delay = draw.uniform(0, calm["after"])
            found = run(folder, settings_of("digits", ROUNDS, DEADLINE), killer(what, delay, False, told))
        if told:
            same = all(found[key] == calm[key] for key in ("status", "params", "psi", "theta", "rounds"))
            figures = {"seconds": found["seconds"], "undisturbed": calm["seconds"]}
            return Outcome(1, int(not same), "" if same else f"{what} killed: {found} instead of {calm}", figures)
    return Outcome(0, 0, f"{what}: none of {TRIES} kills hit the federation")


PARTS = (
    Part(
        "federation-kills",
        "SIGKILL of a node, the SuperLink, the server, a client's process; the undisturbed bits in the end",
        kill,
        sample=len(WHAT),
        full=40,
    ),
)
