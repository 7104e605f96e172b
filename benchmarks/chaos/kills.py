"""SIGKILL a simulation, resume it, and compare with the undisturbed run; the attempt's number chooses the engine.

`kills` come at random instants. `kills-in-writes` come just after something happened to a file of the run, and count
only if they left a round half committed.
"""

import contextlib
import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from benchmarks.chaos.events import Events
from benchmarks.chaos.part import Outcome, Part
from benchmarks.chaos.runs import ENGINES, ROUNDS, appear, begin, resume, run_words, undisturbed
from fedaccord.runtime.checkpoints import GENERATIONS
from fedaccord.runtime.folder import CHECKPOINTS

TRIES = 50
"""The most runs of an attempt, which ends with the first kill that hits: others come after a run or between commits."""
EVENTS = 10
"""About how many events there are in the run folder and its checkpoints in each round."""
LATER = 0.002
"""The most seconds from an event to the kill: a flush takes about as long."""

Wait = Callable[[Path, BaseProcess, float, random.Random], None]


@dataclass(frozen=True)
class Left:
    """What a run folder holds, read without fedaccord's help."""

    log: bytes
    round: int  # of the newest manifest: up to it, rounds are committed
    committed: int  # the length of the log at that round, in bytes
    half: bool  # whether something was in the midst of being committed

    @property
    def lines(self) -> int:
        return self.log.count(b"\n")


def left(folder: Path) -> Left:
    log = (folder / "rounds.jsonl").read_bytes() if (folder / "rounds.jsonl").exists() else b""
    manifests = sorted((folder / CHECKPOINTS).glob("*.json"))
    body = json.loads(manifests[-1].read_bytes())["body"] if manifests else {"round": -1, "log_bytes": 0}
    stems = {file.stem for file in manifests}
    half = bool(parts(folder)) or len(stems) > GENERATIONS or len(log) > body["log_bytes"]
    half = half or stems != {file.stem for file in (folder / CHECKPOINTS).glob("*.safetensors")}
    return Left(log, body["round"], body["log_bytes"], half)


def parts(folder: Path) -> list[Path]:
    """Return the temporary files of writes that were under way."""
    return list(folder.rglob(".*.part"))


def by_the_clock(folder: Path, process: BaseProcess, seconds: float, draw: random.Random) -> None:
    time.sleep(draw.uniform(0, seconds))


def in_a_write(folder: Path, process: BaseProcess, seconds: float, draw: random.Random) -> None:
    """Kill a run's process a moment after a random number of events in its folder."""
    number = draw.randrange(1, EVENTS * ROUNDS)
    with Events([folder, folder / CHECKPOINTS]) as events, at_once():
        while number and process.is_alive():
            for _ in events.within(0.05):
                number -= 1
                if not number:
                    break
        until = time.perf_counter() + draw.uniform(0, LATER)
        while time.perf_counter() < until:
            pass
        process.kill()


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """Give this process real-time priority, where permitted; otherwise a busy machine would wake it up too late."""
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        yield
        return
    try:
        yield
    finally:
        os.sched_setscheduler(0, *before)


def kill(number: int, scratch: Path, wait: Wait, midst: bool) -> Outcome:
    """Kill runs until a kill hits one; then judge what is left of it, and what comes of resuming it."""
    engine, draw = ENGINES[number % len(ENGINES)], random.Random(f"{wait.__name__} {number}")
    calm = undisturbed(engine)
    for attempt in range(TRIES):
        folder = scratch / str(attempt)
        process = begin(run_words(folder, engine), scratch / f"{attempt}-killed")
        appear(folder, process)
        wait(folder, process, calm.seconds, draw)
        process.kill()
        process.join()
        if process.exitcode == -signal.SIGKILL and folder.exists():
            before = left(folder)
            if before.half or not midst:
                told = judge(folder, before, calm.hashes)
                told = f"{engine}, killed after round {before.round}: {told}" if told else ""
                return Outcome(1, int(bool(told)), told, {"rounds at the kill": before.lines})
    return Outcome(0, 0, f"none of {TRIES} kills hit the run")


def judge(folder: Path, before: Left, hashes: tuple[str, str]) -> str:
    """Resume a killed run, and return what was lost, or "" if nothing was."""
    if before.lines - max(before.round, 0) > 1:
        return f"{before.lines} rounds in the log, but the newest checkpoint is of round {before.round}"
    ended = resume(folder)
    if ended.hashes is None:
        return f"resume ended with {ended.code}: {ended.complained[-300:]}"
    after = left(folder)
    if after.log[: before.committed] != before.log[: before.committed] or after.lines != ROUNDS:
        return "committed rounds are not in the log as they were"
    if rest := parts(folder):
        return f"{rest[0].name} stayed behind"
    return "" if ended.hashes == hashes else f"{ended.hashes} instead of {hashes}"


PARTS = (
    Part(
        "kills",
        "SIGKILL of a simulation at a random instant; resumed to the undisturbed bits, no committed round lost",
        lambda number, scratch: kill(number, scratch, by_the_clock, midst=False),
        sample=9,
        full=150,
    ),
    Part(
        "kills-in-writes",
        "the same, in the midst of committing a round",
        lambda number, scratch: kill(number, scratch, in_a_write, midst=True),
        sample=9,
        full=150,
    ),
)
