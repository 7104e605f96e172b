"""Fill a run's disk or make it read-only: one line of error must say so, and the run must be resumed afterwards.

Both need root: to mount a small file system (tmpfs) that fills up, or the run folder read-only.
"""

import contextlib
import os
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.chaos.part import Outcome, Part
from benchmarks.chaos.runs import ENGINES, ROUNDS, Ended, appear, begin, end, resume, run, run_words, undisturbed
from fedaccord.cli.outcome import WRONG_USE

SIZES = (60, 684)
"""The range of a small disk's size in KiB: from too little for the first checkpoint to nearly enough for all rounds."""
ROOM = 16 * 1024
"""The size in KiB of a disk on which there is plenty of room."""
PAGE = 4096
EARLY = 0.8
"""The share of an undisturbed run's time within which its disk is filled or made read-only."""
TRIES = 20
"""The most runs of an attempt, which ends with the first that loses its disk: a run may be over before."""


def mount(*words: str) -> bool:
    """Call mount with these arguments, and return whether it succeeded."""
    return subprocess.run(["mount", *words], capture_output=True).returncode == 0


@contextlib.contextmanager
def small_disk(place: Path, kib: int) -> Iterator[bool]:
    """Mount a file system of this size, to be unmounted at the end; yield False if that is not permitted."""
    place.mkdir()
    mounted = os.geteuid() == 0 and mount("-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(place))
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", str(place)], check=True)


def fill(place: Path, leave: int) -> None:
    """Write a file until the disk is full, then free `leave` pages again."""
    with (place / "filler").open("wb", buffering=0) as filler:
        with contextlib.suppress(OSError):
            while filler.write(bytes(PAGE)):
                pass
        filler.truncate(max(0, filler.tell() - leave * PAGE))


def full(number: int, scratch: Path) -> Outcome:
    """Run on a disk that is too small or is filled in mid-run, then make room and resume."""
    engine, draw = ENGINES[number % len(ENGINES)], random.Random(f"full {number}")
    small = number % 2 == 0
    for attempt in range(TRIES):
        place = scratch / str(attempt)
        with small_disk(place, draw.randrange(*SIZES, 4) if small else ROOM) as mounted:
            if not mounted:
                return Outcome(0, 0, "skipped: a file system cannot be mounted here (it takes root)")
            folder, said = place / "run", scratch / f"said-{attempt}"
            process = begin(run_words(folder, engine), said)
            if not small:
                appear(folder, process)
                time.sleep(draw.uniform(0, undisturbed(engine).seconds * EARLY))
                fill(place, draw.randrange(4))
            ended = end(process, said)
            if ended.code == 0:
                continue
            (place / "filler").unlink(missing_ok=True)
            if not mount("-o", f"remount,size={ROOM}k", str(place)):
                return Outcome(0, 0, "skipped: no room can be made here")
            return outcome(ended, "No space left on device", folder, engine)
    return Outcome(0, 0, f"none of {TRIES} runs ran out of room")


def read_only(number: int, scratch: Path) -> Outcome:
    """Make the folder of a run read-only at a random instant, then writable again, and resume."""
    engine, draw = ENGINES[number % len(ENGINES)], random.Random(f"read-only {number}")
    for attempt in range(TRIES):
        folder, said = scratch / str(attempt), scratch / f"said-{attempt}"
        process = begin(run_words(folder, engine), said)
        appear(folder, process)
        time.sleep(draw.uniform(0, undisturbed(engine).seconds * EARLY))
        if os.geteuid() != 0 or not mount("--bind", str(folder), str(folder)):
            end(process, said)
            return Outcome(0, 0, "skipped: a folder cannot be mounted read-only here (it takes root)")
        try:
            mount("-o", "remount,bind,ro", str(folder))
            ended = end(process, said)
        finally:
            subprocess.run(["umount", str(folder)], check=True)
        if ended.code != 0:
            return outcome(ended, "Read-only file system", folder, engine)
    return Outcome(0, 0, f"none of {TRIES} runs met the read-only folder")


def outcome(ended: Ended, reason: str, folder: Path, engine: str) -> Outcome:
    told = judge(ended, reason, folder, engine)
    return Outcome(1, int(bool(told)), f"{engine}: {told}" if told else "")


def judge(ended: Ended, reason: str, folder: Path, engine: str) -> str:
    """Return what is wrong with how a run ended, or with how it resumes on a good disk, or "" if nothing is."""
    lines = [line for line in ended.complained.splitlines() if reason in line]
    if ended.code != WRONG_USE or len(lines) != 1 or ended.complained.splitlines()[-1] != lines[0]:
        return f"ended with {ended.code}: {ended.complained[-400:]}"
    if not lines[0].startswith("fedaccord: /"):
        return f"the line does not say where: {lines[0]}"
    again = resume(folder) if folder.exists() else run(folder, engine)
    if again.hashes != undisturbed(engine).hashes:
        return f"going on ended with {again.code}, {again.hashes}: {again.complained[-300:]}"
    rounds = (folder / "rounds.jsonl").read_bytes().count(b"\n")
    return "" if rounds == ROUNDS else f"{rounds} rounds in the log"


PARTS = (
    Part("disk-full", "the disk full in mid-run: one line, exit code 2, resumed to the undisturbed bits", full, 3, 30),
    Part("read-only", "the same with a folder that becomes read-only", read_only, 3, 30),
)
