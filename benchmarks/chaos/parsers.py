"""Give spoiled inputs to every parser of bytes from outside: only typed errors, bounded memory, no hang."""

import json
import os
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from benchmarks.chaos.fuzz import CURRENT, MEMORY, MODULES, keep
from benchmarks.chaos.part import Outcome, Part

COUNT = 20_000
"""The number of inputs in an attempt."""
PATIENCE = 60.0
"""A process that gets no new input for this many seconds, its start included, counts as hanging."""
FOUND = Path("build/chaos/found")
"""The folder that keeps inputs that were not answered as promised."""

WHAT = {
    "idx": "idx files and CIFAR-10's records",
    "gz": "gzip files, with idx files in them",
    "tar": "tar archives, plain and gzipped",
    "npz": ".npz files: own data, spectrograms",
    "png": "PNG pictures and CIFAR-10's sheets",
    "pictures": "JPEG, GIF, BMP, TIFF and WebP",
    "wav": "recordings",
    "safetensors": "tensors: checkpoints, wire, clients' disks",
    "toml": "settings",
    "rounds": "logs of rounds, plain and gzipped",
    "checkpoints": "checkpoints: manifest and tensors",
    "notes": "a run folder's other JSON files",
    "wire": "messages of a federation, both ends",
    "keys": "keys and certificates of a federation",
}


def attempt(name: str, number: int, scratch: Path, count: int = COUNT) -> Outcome:
    """Let another process try the inputs, and watch that it goes on and stays alive."""
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.chaos.fuzz", name, str(number), str(count), str(scratch)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    last, since = b"", time.monotonic()
    while True:
        try:
            out, errors = child.communicate(timeout=1)
            break
        except subprocess.TimeoutExpired:
            now = at_hand(scratch)[:8]
            if now != last:
                last, since = now, time.monotonic()
            elif time.monotonic() - since > PATIENCE:
                child.kill()
    if child.returncode != 0:
        tried, size = (int.from_bytes(at_hand(scratch)[place : place + 8], "little") for place in (0, 8))
        file = keep(name, at_hand(scratch)[16 : 16 + size], scratch)
        saved(scratch)
        last_words = (errors.strip().splitlines() or ["no word"])[-1]
        return Outcome(max(tried, 1), 1, f"the process ended with {child.returncode} at {file}: {last_words}")
    told = json.loads(out.splitlines()[-1])
    saved(scratch)
    lost = [f"{file}: {why}" for file, why in told["lost"].items()]
    figures = {"peak MiB": told["peak"], "inputs/s": round(told["rate"]), "accepted %": 100 * told["accepted"] / count}
    return Outcome(told["tried"], len(lost), "; ".join(lost[:5]), figures)


def at_hand(scratch: Path) -> bytes:
    """Return the content of the file with the current input; zeros if the process has not come so far."""
    file = scratch / CURRENT
    return file.read_bytes() if file.exists() else bytes(16)


def saved(scratch: Path) -> None:
    """Keep the inputs that were not answered as promised, for a test that is to include them."""
    for file in (scratch / "lost").glob("*") if (scratch / "lost").exists() else ():
        FOUND.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, FOUND / file.name)


PARTS = tuple(
    Part(
        f"parsers-{name}",
        f"{WHAT[name]}: spoiled inputs; lost: an untyped error, more than {MEMORY} MiB, a hang, a file written",
        partial(attempt, name),
        1,
        -(-(10**6) // COUNT),
    )
    for name in MODULES
)
