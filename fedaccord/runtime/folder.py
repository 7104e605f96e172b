"""The run folder: settings, one JSON line a round, checkpoints. A kill at any instant loses at most one round.

    settings.toml              every setting
    rounds.jsonl               append-only
    rounds.csv                 its plain figures, for a spreadsheet; made again from rounds.jsonl on every start
    checkpoints/000012.json    the manifest of round 12, written last: with it, the checkpoint exists
    checkpoints/000012.safetensors
    private/3/000012-*.safetensors   what client 3 keeps to itself (theta_i), if anything; see client/store.py

A round is committed in this order: its log line, the tensors, the manifest, each flushed to disk. The manifest
carries the SHA-256 of the tensors and of itself and the length of the log, so a reader finds the newest checkpoint
that is whole and cuts the log back to it.
"""

import dataclasses
import datetime
import fcntl
import gzip
import hashlib
import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError

from fedaccord import config
from fedaccord.config import Settings
from fedaccord.core.errors import RunError, SettingsError
from fedaccord.core.files import flush_folder, write_durably
from fedaccord.core.processes import processor_kind
from fedaccord.core.records import Params, RoundLog, ServerState

GENERATIONS = 2
PREVIOUS = "previous/"
SETTINGS, ROUNDS, CSV, CHECKPOINTS, PRIVATE = "settings.toml", "rounds.jsonl", "rounds.csv", "checkpoints", "private"


class RunFolder:
    """An open run folder. Only one process at a time may hold one; the lock dies with the process."""

    def __init__(self, path: Path):
        if not (path / SETTINGS).is_file():
            raise RunError(f"{path}: not a run folder, it has no {SETTINGS}")
        if (path / f"{ROUNDS}.gz").is_file():
            raise RunError(f"{path}: is finished, and its weights were let go; only its figures are there")
        self.path = path
        try:
            self.lock = open(path / ".lock", "w")
        except OSError as error:
            raise RunError(f"{path}: cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.lock.close()
            raise RunError(f"{path}: another process is working on this run") from None
        self.log = open(path / ROUNDS, "ab")

    @classmethod
    def create(cls, path: Path, settings: Settings) -> "RunFolder":
        """A new folder; it appears under its name only once it is complete."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            scratch = Path(tempfile.mkdtemp(prefix=".new-", dir=path.parent))
        except OSError as error:
            raise RunError(f"{path}: cannot be created: {error.strerror}") from None
        scratch.chmod(0o755)
        (scratch / CHECKPOINTS).mkdir()
        write(scratch / SETTINGS, config.to_toml(settings).encode())
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
        try:
            return config.make(config.read_toml(self.path / SETTINGS))
        except SettingsError as error:
            raise SettingsError(f"{self.path / SETTINGS}: {error}") from None

    def append(self, log: RoundLog) -> None:
        """One line, on disk when this returns."""
        line = json.dumps(dataclasses.asdict(log), separators=(",", ":"), allow_nan=False)
        try:
            self.log.write(line.encode() + b"\n")
            self.log.flush()
            os.fsync(self.log.fileno())
        except OSError as error:
            raise RunError(f"{self.path / ROUNDS}: cannot be written: {error.strerror}") from error

    def save(self, state: ServerState, private: Mapping[int, int] | None = None, about: str = "") -> None:
        """A checkpoint; the oldest beyond two generations goes.

        `private`: the round in which each client last kept something. `about`: the fingerprint of the run.
        """
        folder = self.path / CHECKPOINTS
        stem = f"{state.round:06d}"
        held = dict(state.params) | {f"{PREVIOUS}{name}": value for name, value in (state.previous or {}).items()}
        tensors = safetensors.torch.save({name: value.cpu().contiguous() for name, value in held.items()})
        write(folder / f"{stem}.safetensors", tensors)
        body = {
            "round": state.round,
            "loss": state.loss,
            "policy": dict(state.policy),
            "private": {str(client): round for client, round in (private or {}).items()},
            "about": about,
            "processor": processor_kind(),
            "log_bytes": self.log.tell(),
            "tensors_sha256": hashlib.sha256(tensors).hexdigest(),
        }
        write(folder / f"{stem}.json", json.dumps(sealed(body), indent=1).encode())
        for old in sorted(folder.glob("*.json"))[:-GENERATIONS]:
            old.unlink()
        kept = {manifest.stem for manifest in folder.glob("*.json")}
        for tensors_file in folder.glob("*.safetensors"):
            if tensors_file.stem not in kept:
                tensors_file.unlink()

    @property
    def private(self) -> Path:
        return self.path / PRIVATE

    def oldest(self) -> int:
        """The round of the oldest checkpoint."""
        return min(int(manifest.stem) for manifest in (self.path / CHECKPOINTS).glob("*.json"))

    def load(self) -> "Checkpoint | None":
        """The newest good checkpoint, with the log cut back to it; None if nothing was committed yet.

        The start is a checkpoint too, so a log without any means that something was deleted: then nothing is touched.
        """
        manifests = sorted((self.path / CHECKPOINTS).glob("*.json"), reverse=True)
        written = (self.path / ROUNDS).stat().st_size
        good = (read_checkpoint(manifest) for manifest in manifests)
        found = next((checkpoint for checkpoint in good if checkpoint and checkpoint.log_bytes <= written), None)
        if found is None and (written or any(int(manifest.stem) > 0 for manifest in manifests)):
            raise RunError(
                f"{self.path}: no checkpoint fits {ROUNDS}: files are damaged or missing; nothing was changed"
            )
        self.log.truncate(found.log_bytes if found else 0)
        self.log.seek(0, os.SEEK_END)
        os.fsync(self.log.fileno())
        return found

    def rounds(self) -> list[dict[str, Any]]:
        return list(read_rounds(self.path))


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    state: ServerState
    private: dict[int, int]
    about: str
    log_bytes: int
    processor: str  # the kind it was written on; empty in a checkpoint from before this was recorded


def read_checkpoint(manifest: Path) -> Checkpoint | None:
    """None if anything about it is damaged."""
    try:
        content = json.loads(manifest.read_bytes())
        body = content["body"]
        tensors = manifest.with_suffix(".safetensors").read_bytes()
        if content != sealed(body) or hashlib.sha256(tensors).hexdigest() != body["tensors_sha256"]:
            return None
        held = safetensors.torch.load(tensors)
        previous = {name.removeprefix(PREVIOUS): held.pop(name) for name in list(held) if name.startswith(PREVIOUS)}
        state = ServerState(body["round"], held, body["loss"], body["policy"], previous or None)
        private = {int(client): round for client, round in body["private"].items()}
        return Checkpoint(state, private, body["about"], body["log_bytes"], body.get("processor", ""))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError):
        return None


def sealed(body: dict[str, Any]) -> dict[str, Any]:
    text = json.dumps(body, sort_keys=True).encode()
    return {"body": body, "sha256": hashlib.sha256(text).hexdigest()}


def read_rounds(path: Path) -> Iterator[dict[str, Any]]:
    """The log's complete lines. A run that is only kept for its figures may have it compressed (rounds.jsonl.gz)."""
    packed = path / f"{ROUNDS}.gz"
    try:
        data = gzip.decompress(packed.read_bytes()) if packed.is_file() else (path / ROUNDS).read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise RunError(f"{path / ROUNDS}: {getattr(error, 'strerror', None) or f'damaged: {error}'}") from None
    for number, line in enumerate(data.split(b"\n")[:-1], 1):
        try:
            yield json.loads(line)
        except ValueError:
            raise RunError(f"{path / ROUNDS}: line {number} is damaged") from None


def pack(path: Path) -> None:
    """Keep of a finished run what tables and pictures need, settings and log, and let the weights go."""
    log = path / ROUNDS
    if log.is_file():
        write(path / f"{ROUNDS}.gz", gzip.compress(log.read_bytes(), 9, mtime=0))  # no time of day: same log, same file
        log.unlink()
    for name in (CHECKPOINTS, PRIVATE):
        shutil.rmtree(path / name, ignore_errors=True)
    (path / ".lock").unlink(missing_ok=True)


def write(path: Path, data: bytes) -> None:
    try:
        write_durably(path, data)
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror}") from error


def free_name(root: Path, settings: Settings) -> Path:
    """runs/2026-11-15-mnist-FA-non-iid-s0, with a number behind it if that is taken."""
    task = Path(settings.task.replace(":", "-")).name
    name = f"{datetime.date.today()}-{task}-{settings.method}-{settings.split}-s{settings.seed}"
    path, number = root / name, 2
    while path.exists():
        path, number = root / f"{name}-{number}", number + 1
    return path


def fingerprint(settings: Settings, params: Params, data: Iterable[torch.Tensor]) -> str:
    """Of all that a resumed run must share with its beginning: settings, model, data."""
    digest = hashlib.sha256(settings_text(settings).encode())
    digest.update(repr([(name, str(value.dtype), tuple(value.shape)) for name, value in params.items()]).encode())
    for tensor in data:
        update(digest, tensor)
    return digest.hexdigest()


FREE: dict[str, Any] = {
    "rounds": 1, "workers": None, "address": "", "deadline": 1.0, "tensorboard": False, "mlflow": False
}  # fmt: skip
"""Settings that a resumed run may have otherwise."""


def settings_text(settings: Settings) -> str:
    """What makes a run this run and no other. The engine may be changed for another that gives the same bits."""
    bits = "stacked" if settings.engine == "stacked" else "serial"
    return config.to_toml(dataclasses.replace(settings, **FREE, engine=bits))


def experiment_of(settings: Settings) -> str:
    """What server and clients of a federation must agree on, as a short name; not where a task's file lies."""
    task = settings.task if ":" not in settings.task else Path(settings.task).name
    shared = dataclasses.replace(settings, task=task, min_replies=1, test_every=1, checkpoint_every=1)
    return hashlib.sha256(settings_text(shared).encode()).hexdigest()[:16]


def params_sha256(params: Params) -> str:
    """One hash over names, types, shapes and bytes, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(params):
        digest.update(f"{name}/{params[name].dtype}/{tuple(params[name].shape)}/".encode())
        update(digest, params[name])
    return digest.hexdigest()


def update(digest: "hashlib._Hash", tensor: torch.Tensor) -> None:
    """With the tensor's bytes."""
    digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)


def log_sha256(rounds: list[dict[str, Any]]) -> str:
    """One hash over all that is deterministic in a log: everything but the seconds."""
    digest = hashlib.sha256()
    for entry in rounds:
        kept = {key: value for key, value in entry.items() if key != "seconds"}
        digest.update(json.dumps(kept, sort_keys=True).encode())
    return digest.hexdigest()
