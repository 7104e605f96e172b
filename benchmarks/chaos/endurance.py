"""Run thousands of rounds of a tiny task in one process: memory, open files and the run folder must stay bounded."""

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.chaos.part import Outcome, Part
from benchmarks.chaos.runs import run_words
from fedaccord.runtime.checkpoints import GENERATIONS
from fedaccord.runtime.folder import CHECKPOINTS

TINY = ("digits", "--method", "FA", "--clients", "2", "--split", "iid", "--steps", "1", "--batch-size", "8")
LENGTHS = (3_000, 10_000)
"""Rounds of the first attempt, which is the sample, and of the second."""
WARM = 2_000
"""Rounds after which the allocator has seen every size that it will be asked for."""
SLOPE = 1.0
"""The limit on the growth of memory, in MiB for 1,000 rounds."""
FLUSHING = 1
"""How many more descriptors may be open while something is written."""
SLACK = 1.5
"""The limit on the mean length of the log's last 100 lines, as a multiple of the shortest line's.

Lines differ in length by the round's number and by a metric now and then.
"""


@dataclass(frozen=True)
class Sample:
    """What a process uses after a number of rounds."""

    round: int
    memory: float  # MiB
    files: int  # descriptors
    checkpoints: int  # files in their folder


def watched(process: "subprocess.Popen[bytes]", folder: Path) -> Iterator[Sample]:
    """Yield, about ten times a second, a sample of what a process uses, until it ends."""
    log, read, rounds = folder / "rounds.jsonl", 0, 0
    while process.poll() is None:
        time.sleep(0.1)
        if not log.exists():
            continue
        with log.open("rb") as lines:
            lines.seek(read)
            new = lines.read()
        read, rounds = read + len(new), rounds + new.count(b"\n")
        try:
            pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
            files = len(os.listdir(f"/proc/{process.pid}/fd"))
        except (OSError, IndexError):  # the process has just ended
            return
        names = [name for name in os.listdir(folder / CHECKPOINTS) if not name.startswith(".")]
        yield Sample(rounds, pages * resource.getpagesize() / 2**20, files, len(names))


def endure(rounds: int, warm: int, scratch: Path) -> Outcome:
    """Run this many rounds, and judge the samples that are taken after `warm` of them."""
    folder = scratch / "run"
    words = run_words(folder, "serial", (*TINY, "--test-every", "100", "--rounds", str(rounds)))
    with (scratch / "said").open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "fedaccord.cli", *words], stdout=subprocess.DEVNULL, stderr=said
        )
        samples = [sample for sample in watched(process, folder) if warm <= sample.round < rounds]
    if process.returncode or len(samples) < 3:
        return Outcome(rounds, rounds, f"ended with {process.returncode}: {(scratch / 'said').read_text()[-300:]}")
    slope = 1_000 * statistics.linear_regression([s.round for s in samples], [s.memory for s in samples]).slope
    files = {sample.files for sample in samples}
    lines = [len(line) for line in (folder / "rounds.jsonl").read_bytes().splitlines()]
    most = max(sample.checkpoints for sample in samples)
    faults = [
        *([f"{slope:.2f} MiB for 1,000 rounds"] if slope >= SLOPE else []),
        *([f"from {min(files)} to {max(files)} descriptors"] if max(files) - min(files) > FLUSHING else []),
        *([f"{most} files of checkpoints"] if most > 2 * (GENERATIONS + 1) else []),  # one more while it is written
        *([f"{len(lines)} lines in the log"] if len(lines) != rounds else []),
        *(["lines of the log grow longer"] if statistics.mean(lines[-100:]) > SLACK * min(lines) else []),
    ]
    figures = {"MiB for 1,000 rounds": slope, "descriptors": max(files), "checkpoint files": most}
    return Outcome(rounds, rounds if faults else 0, "; ".join(faults), {**figures, "bytes a line": max(lines)})


PARTS = (
    Part(
        "endurance",
        "rounds of a tiny task in one process: memory, descriptors, log and checkpoints bounded",
        lambda number, scratch: endure(LENGTHS[min(number, len(LENGTHS) - 1)], WARM, scratch),
        sample=1,
        full=len(LENGTHS),
    ),
)
