"""Damage the newest checkpoint: it must be noticed, and the one before it used."""

import random
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.chaos.part import Outcome, Part
from benchmarks.chaos.runs import ROUNDS, resume, run, undisturbed
from fedaccord.core.errors import FedAccordError
from fedaccord.runtime.folder import CHECKPOINTS, RunFolder
from fedaccord.runtime.identity import params_sha256

BATCH = 50
ENGINE = "serial"

Damage = Callable[[bytes, random.Random], bytes]


def truncated(data: bytes, draw: random.Random) -> bytes:
    return data[: draw.randrange(len(data))]


def flipped(data: bytes, draw: random.Random) -> bytes:
    """Return the data with a random bit flipped."""
    place, bit = draw.randrange(len(data)), draw.randrange(8)
    return data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]


@dataclass(frozen=True)
class Good:
    """The files of a finished run, and what its last but one checkpoint holds."""

    files: Mapping[str, bytes]  # by path in the run folder
    params: str  # the hash of that checkpoint's parameters
    log: int  # the length of the log at that checkpoint, in bytes


@cache
def good() -> Good:
    with tempfile.TemporaryDirectory(prefix="good-") as scratch:
        folder = Path(scratch) / "run"
        run(folder, ENGINE)
        files = {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
        (folder / newest(".json")).unlink()
        with RunFolder(folder) as opened:
            found = opened.load()
        assert found is not None
        return Good(files, params_sha256(found.state.params), found.log_bytes)


def newest(suffix: str) -> str:
    return f"{CHECKPOINTS}/{ROUNDS:06d}{suffix}"


def batch(number: int, scratch: Path, damage: Damage) -> Outcome:
    """Damage the manifest and the tensors in turn, each time of whole files, and finally resume the run."""
    draw, kept = random.Random(f"{damage.__name__} {number}"), good()
    folder = scratch / "run"
    for name, data in kept.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    faults = []
    for trial in range(BATCH):
        for name in (newest(".json"), newest(".safetensors"), "rounds.jsonl"):
            (folder / name).write_bytes(kept.files[name])
        name = newest((".json", ".safetensors")[trial % 2])
        (folder / name).write_bytes(damage(kept.files[name], draw))
        if told := judge(folder, kept):
            faults.append(f"{name} {damage.__name__}: {told}")
            shutil.copy(folder / name, scratch / "unnoticed")
    if not faults and resume(folder).hashes != undisturbed(ENGINE).hashes:
        faults.append("going on from the one before did not end with the undisturbed bits")
    return Outcome(BATCH, len(faults), "; ".join(faults[:3]))


def judge(folder: Path, kept: Good) -> str:
    """Return what goes wrong when a run folder is opened, or "" if its last but one checkpoint is loaded."""
    try:
        with RunFolder(folder) as opened:
            found = opened.load()
    except FedAccordError as error:
        return f"refused: {error}"
    if found is None or found.state.round != ROUNDS - 1:
        return f"not noticed: round {None if found is None else found.state.round}"
    same = params_sha256(found.state.params) == kept.params and (folder / "rounds.jsonl").stat().st_size == kept.log
    return "" if same else "the one before is not as it was"


PARTS = (
    Part(
        "checkpoints-truncated",
        "the newest checkpoint cut off somewhere; noticed, the one before used",
        lambda number, scratch: batch(number, scratch, truncated),
        sample=4,
        full=1_000 // BATCH,
    ),
    Part(
        "checkpoints-flipped",
        "the newest checkpoint with one bit flipped; noticed, the one before used",
        lambda number, scratch: batch(number, scratch, flipped),
        sample=4,
        full=1_000 // BATCH,
    ),
)
