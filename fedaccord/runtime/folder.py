"""The run folder: settings, a log with one JSON line for each round, and checkpoints.

A kill at any instant loses only the rounds since the last checkpoint: with checkpoint_every = 1, the default, at most
the one in progress.

    settings.toml              every setting
    rounds.jsonl               append-only
    metrics.json               what is measured, and which way is better
    classes.json               labels by client, and how much of each class the model gets right; see classes.py
    code.json                  hashes of the user's own code, and the package's version
    rounds.csv                 the log's plain figures, for a spreadsheet; made again from it on every start
    checkpoints/000012.json    the manifest of round 12, written last: with it, the checkpoint exists
    checkpoints/000012.safetensors
    noise.secret               with dp_noise: what the noise is drawn from; for its owner alone
    private/3/000012-*.safetensors   what client 3 keeps to itself, if anything; see client/store.py

A round is committed in this order: its log line, the tensors, the manifest, each flushed to disk. The manifest
carries the SHA-256 of the tensors and of itself and the length of the log, so a reader finds the newest checkpoint
that is whole and cuts the log back to it.
"""

import dataclasses
import datetime
import gzip
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast

from fedaccord import config
from fedaccord.config import Settings
from fedaccord.core.errors import RunError, SettingsError
from fedaccord.core.files import (
    cannot_be_written,
    clear_rests,
    flush_folder,
    lock_folder,
    make_durably,
    read_json,
    remove,
    write_durably,
)
from fedaccord.core.packages import encode
from fedaccord.core.records import Metric, Params, RoundLog, ServerState
from fedaccord.runtime.checkpoints import Checkpoint, manifests, oldest_needed, read_checkpoint, write_checkpoint
from fedaccord.runtime.lines import LINE, RATIO, UNPACKED, end_of, rounds_in
from fedaccord.server.privacy import SECRET

SETTINGS, ROUNDS, CSV, METRICS, CODE = "settings.toml", "rounds.jsonl", "rounds.csv", "metrics.json", "code.json"
CHECKPOINTS, PRIVATE, FIXED = "checkpoints", "private", "fixed.safetensors"


class RunFolder:
    """An open run folder. Only one process at a time may hold one; the lock dies with the process."""

    def __init__(self, path: Path):
        settings_file(path)
        if (path / f"{ROUNDS}.gz").is_file():
            raise RunError(f"{path}: is finished, and its weights were let go; only its figures are there")
        self.path = path
        self.lock = lock_folder(path, "another process is working on this run")
        try:
            clear_rests(path, path / CHECKPOINTS, *(path / PRIVATE).glob("*"))
            self.log = open(path / ROUNDS, "ab", buffering=0)  # unbuffered: closing it has nothing left to write
        except OSError as error:
            self.lock.close()
            raise cannot_be_written(path, error) from error

    @classmethod
    def create(cls, path: Path, settings: Settings) -> "RunFolder":
        """Create a run folder, which appears under its name only once it is complete."""
        text = config.to_toml(settings).encode()
        config.check_size(text, path / SETTINGS)
        try:
            make_durably(path.parent)
            scratch = Path(tempfile.mkdtemp(prefix=".new-", dir=path.parent))
            scratch.chmod(0o755)
            (scratch / CHECKPOINTS).mkdir()
        except OSError as error:
            raise RunError(f"{path}: cannot be created: {error.strerror}") from None
        try:
            write_durably(scratch / SETTINGS, text)
        except RunError:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
        try:
            scratch.rename(path)
        except OSError:
            shutil.rmtree(scratch)
            raise RunError(f"{path}: exists already; resume it or choose another name") from None
        flush_folder(path.parent)
        return cls(path)

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self.log.close()
        self.lock.close()

    def settings(self) -> Settings:
        return read_settings(self.path)

    def settle(self, settings: Settings) -> None:
        """Note the settings that the run goes on with: some may change, such as the number of rounds."""
        text = config.to_toml(settings).encode()
        if text != (self.path / SETTINGS).read_bytes():
            write_durably(self.path / SETTINGS, text)

    def code(self) -> dict[str, str]:
        """Return what identifies the run's code; an empty dict if that was not noted, or cannot be read."""
        try:
            found = read_json(self.path / CODE)
            return {name: known for name, known in found.items() if isinstance(known, str)}
        except (OSError, ValueError, AttributeError):
            return {}

    def note_code(self, code: Mapping[str, str]) -> None:
        """Note what identifies the code with which the run goes on."""
        if code != self.code():
            write_durably(self.path / CODE, json.dumps(code, indent=1).encode())

    def describe(self, metrics: Sequence[Metric]) -> None:
        """Note what the metrics in the log mean: which way is better, and which are shares."""
        about = [{"name": each.name, "higher": each.higher, "percent": each.percent} for each in metrics]
        write_durably(self.path / METRICS, json.dumps(about).encode())

    def keep(self, fixed: Params) -> None:
        """Write the part of the model that never changes, which no checkpoint has; write nothing if there is none."""
        if fixed:
            write_durably(self.path / FIXED, encode(fixed))

    def append(self, log: RoundLog) -> None:
        """Append a round to the log as one line, which is on disk when this returns."""
        line = json.dumps(dataclasses.asdict(log), separators=(",", ":"), allow_nan=False).encode() + b"\n"
        if len(line) > LINE:
            clients = len(log.clients)
            raise RunError(f"a round's line of {len(line):,} bytes, {LINE:,} at most: {clients:,} clients are too many")
        try:
            while line:  # a disk that fills up may take a part of it
                line = line[self.log.write(line) :]
            os.fsync(self.log.fileno())
        except OSError as error:
            raise cannot_be_written(self.path / ROUNDS, error) from error

    def save(self, state: ServerState, about: str = "") -> None:
        """Write a checkpoint, and delete the oldest beyond two generations. `about`: the fingerprint of the run."""
        write_checkpoint(self.path / CHECKPOINTS, state, about, self.log.tell())

    @property
    def private(self) -> Path:
        return self.path / PRIVATE

    def needed(self) -> dict[int, int]:
        """Return for each client the oldest of its rounds from which a checkpoint in the folder may have to go on."""
        return oldest_needed(self.path / CHECKPOINTS)

    def load(self) -> Checkpoint | None:
        """Return the newest good checkpoint and cut the log back to it; None if nothing was committed yet.

        The start is a checkpoint too, so a log without any means that something was deleted: then nothing is touched.
        """
        newest_first = manifests(self.path / CHECKPOINTS)[::-1]
        if read_raw(self.path).get("version", 1) < config.VERSION:
            raise RunError(f"{self.path}: was begun by fedaccord 0.1; it can be shown and compared, but not resumed")
        written = (self.path / ROUNDS).stat().st_size
        good = (read_checkpoint(manifest) for manifest in newest_first)
        found = next((checkpoint for checkpoint in good if checkpoint and checkpoint.log_bytes <= written), None)
        if found is None and (written or any(int(manifest.stem) > 0 for manifest in newest_first)):
            raise RunError(
                f"{self.path}: no checkpoint fits {ROUNDS}: files are damaged or missing; nothing was changed"
            )
        for manifest in newest_first:  # a damaged one would count as a generation, and be read for what clients keep
            if found is not None and int(manifest.stem) > found.state.round:
                remove(manifest)
        try:
            self.log.truncate(found.log_bytes if found else 0)
            self.log.seek(0, os.SEEK_END)
            os.fsync(self.log.fileno())
        except OSError as error:
            raise cannot_be_written(self.path / ROUNDS, error) from error
        return found

    def rounds(self) -> list[dict[str, Any]]:
        return list(read_rounds(self.path))


def settings_file(path: Path) -> Path:
    """Return the file that makes a folder a run folder; raise RunError if it is missing."""
    if not (path / SETTINGS).is_file():
        raise RunError(f"{path}: not a run folder, it has no {SETTINGS}")
    return path / SETTINGS


def read_raw(path: Path) -> dict[str, Any]:
    """Return the settings as they are written in a run folder."""
    return config.load_toml(settings_file(path))


def read_settings(path: Path) -> Settings:
    """Return the settings of a run folder, of this version or an earlier one."""
    file = settings_file(path)
    values = config.read_toml(file)
    try:
        return config.make(values)
    except SettingsError as error:
        raise SettingsError(f"{file}: {error}") from None


@dataclasses.dataclass(frozen=True)
class MetricNote:
    """A metric as a run folder describes it."""

    name: str
    higher: bool = True
    percent: bool = False


def read_metrics(path: Path) -> list[MetricNote]:
    """Return the metrics of a run folder, the one to judge by first; 0.1 knew the accuracy alone."""
    try:
        found = [MetricNote(**each) for each in read_json(path / METRICS)]
        if not all(isinstance(each.name, str) for each in found):
            raise ValueError("a metric has no name")
        return found
    except FileNotFoundError:
        return [MetricNote("accuracy", percent=True)]
    except (OSError, ValueError, TypeError) as error:
        raise RunError(f"{path / METRICS}: damaged: {error}") from None


def read_rounds(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rounds in the log's complete lines.

    A run that is only kept for its figures may have its log compressed (rounds.jsonl.gz).
    """
    log, most = open_log(path)
    with log:
        yield from rounds_in(log, path / ROUNDS, most)


def read_end(path: Path) -> tuple[int, dict[str, Any] | None]:
    """Return how many complete lines the log has, and the round in the last of them."""
    log, most = open_log(path)
    with log:
        return end_of(log, path / ROUNDS, most)


def client_steps(line: Mapping[str, Any], fixed: int) -> int:
    """Sum the SGD iterations that all clients that counted did in a round, by its line of the log.

    `fixed`: the number in the settings, for a log that has none because it was neither scheduled nor chosen.
    """
    shared = line["hyper"].get("steps", fixed)
    asked = ((client, int(client.get("hyper", {}).get("steps", shared))) for client in line["clients"].values())
    return sum(round(client.get("done", 1.0) * steps) for client, steps in asked)


def open_log(path: Path) -> tuple[IO[bytes], float]:
    """Open the log, compressed or not; return it, and how many bytes it may have.

    It may be packed at this very moment: then the packed one is there before it goes.
    """
    packed = path / f"{ROUNDS}.gz"
    try:
        try:
            return open(path / ROUNDS, "rb"), math.inf
        except FileNotFoundError:
            if not packed.is_file():
                raise
            return cast(IO[bytes], gzip.open(packed)), max(UNPACKED, RATIO * packed.stat().st_size)
    except OSError as error:
        raise RunError(f"{path / ROUNDS}: {error.strerror}") from None


def pack(path: Path) -> None:
    """Keep of a finished run the settings and the log, which tables and pictures need, and delete its weights."""
    log = path / ROUNDS
    if log.is_file():
        packed = gzip.compress(log.read_bytes(), 9, mtime=0)  # no time of day: the same log, the same file
        write_durably(path / f"{ROUNDS}.gz", packed)
        log.unlink()
    for name in (CHECKPOINTS, PRIVATE):
        shutil.rmtree(path / name, ignore_errors=True)
    for name in (".lock", FIXED, SECRET):
        (path / name).unlink(missing_ok=True)


def free_name(root: Path, settings: Settings) -> Path:
    """Return a free path such as runs/2026-11-15-mnist-FA-non-iid-s0, with a number behind it if that is taken."""
    task, method = (Path(text.replace(":", "-")).name for text in (settings.task, settings.method))
    name = f"{datetime.date.today()}-{task}-{method}-{settings.split}-s{settings.seed}"
    path, number = root / name, 2
    while path.exists():
        path, number = root / f"{name}-{number}", number + 1
    return path
