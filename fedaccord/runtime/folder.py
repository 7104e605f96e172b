"""The run folder: settings, one JSON line a round, checkpoints. A kill at any instant loses at most one round.

    settings.toml              every setting
    rounds.jsonl               append-only
    metrics.json               what is measured, and which way is better
    classes.json               labels by client, and what the model gets right of each class; see classes.py
    code.json                  hashes of the user's own code that it began with, and the package's version
    rounds.csv                 its plain figures, for a spreadsheet; made again from rounds.jsonl on every start
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
import hashlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast

import torch

from fedaccord import config
from fedaccord.config import Settings
from fedaccord.core.errors import RunError, SettingsError, UpdateRefused
from fedaccord.core.files import (
    NOTE,
    cannot_be_written,
    clear_rests,
    flush_folder,
    lock_folder,
    make_durably,
    parse_json,
    read_json,
    read_up_to,
    remove,
    write_durably,
)
from fedaccord.core.packages import decode, encode, flatten, unflatten
from fedaccord.core.processes import processor_kind
from fedaccord.core.protocols import Method
from fedaccord.core.records import Best, Metric, Params, RoundLog, ServerState, Snapshot
from fedaccord.core.settings import LENGTH, OBSERVATION, OPERATION, SERVER
from fedaccord.methods.registry import find
from fedaccord.runtime.lines import RATIO, UNPACKED, end_of, rounds_in
from fedaccord.server.privacy import SECRET

GENERATIONS = 2
PREVIOUS, KEPT = "previous-", "best"
SETTINGS, ROUNDS, CSV, METRICS, CODE = "settings.toml", "rounds.jsonl", "rounds.csv", "metrics.json", "code.json"
LATER = {
    "keep": "last", "robust": "mean", "trim": 0.1, "dp_noise": 0.0, "dp_delta": 1e-5, "partial": False, "epochs": 0.0,
    "alone": "", "min_examples": 0,
}  # fmt: skip
"""Settings that came after version 2, each with what runs of before did: with that value it does not count."""
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
            self.log = open(path / ROUNDS, "ab", buffering=0)  # nothing is left to be written when it is closed
        except OSError as error:
            self.lock.close()
            raise cannot_be_written(path, error) from error

    @classmethod
    def create(cls, path: Path, settings: Settings) -> "RunFolder":
        """A new folder; it appears under its name only once it is complete."""
        try:
            make_durably(path.parent)
            scratch = Path(tempfile.mkdtemp(prefix=".new-", dir=path.parent))
            scratch.chmod(0o755)
            (scratch / CHECKPOINTS).mkdir()
        except OSError as error:
            raise RunError(f"{path}: cannot be created: {error.strerror}") from None
        try:
            write_durably(scratch / SETTINGS, config.to_toml(settings).encode())
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
        """What the run's code was known by when it began; nothing if that is of before it was noted."""
        try:
            found = read_json(self.path / CODE)
            return {name: known for name, known in found.items() if isinstance(known, str)}
        except (OSError, ValueError, AttributeError):
            return {}

    def note_code(self, code: Mapping[str, str]) -> None:
        """Note what code the run goes on with."""
        if code != self.code():
            write_durably(self.path / CODE, json.dumps(code, indent=1).encode())

    def describe(self, metrics: Sequence[Metric]) -> None:
        """Note what the metrics in the log mean: which way is better, and which are shares."""
        about = [{"name": each.name, "higher": each.higher, "percent": each.percent} for each in metrics]
        write_durably(self.path / METRICS, json.dumps(about).encode())

    def keep(self, fixed: Params) -> None:
        """The part of the model that never changes, which no checkpoint has; nothing if all of it does."""
        if fixed:
            write_durably(self.path / FIXED, encode(fixed))

    def append(self, log: RoundLog) -> None:
        """One line, on disk when this returns."""
        line = json.dumps(dataclasses.asdict(log), separators=(",", ":"), allow_nan=False).encode() + b"\n"
        try:
            while line:  # a disk that fills up may take a part of it
                line = line[self.log.write(line) :]
            os.fsync(self.log.fileno())
        except OSError as error:
            raise cannot_be_written(self.path / ROUNDS, error) from error

    def save(self, state: ServerState, about: str = "") -> None:
        """A checkpoint; the oldest beyond two generations goes. `about`: the fingerprint of the run."""
        folder = self.path / CHECKPOINTS
        stem = f"{state.round:06d}"
        tensors = encode(flatten(packages_of(state)))
        write_durably(folder / f"{stem}.safetensors", tensors)
        body = {
            "version": config.VERSION,
            "round": state.round,
            "loss": state.loss,
            "last_loss": state.last_loss,
            "first_loss": state.first_loss,
            "best_loss": state.best_loss,
            "kept": None if state.kept is None else {"round": state.kept.round, "score": state.kept.score},
            "policy": dict(state.policy),
            "accepted": as_json(state.model),
            "previous_accepted": None if state.previous is None else as_json(state.previous),
            "about": about,
            "processor": processor_kind(),
            "log_bytes": self.log.tell(),
            "tensors_sha256": hashlib.sha256(tensors).hexdigest(),
        }
        write_durably(folder / f"{stem}.json", sealed(body))
        for old in sorted(folder.glob("*.json"))[:-GENERATIONS]:
            remove(old)
        kept = {manifest.stem for manifest in folder.glob("*.json")}
        for tensors_file in folder.glob("*.safetensors"):
            if tensors_file.stem not in kept:
                remove(tensors_file)

    @property
    def private(self) -> Path:
        return self.path / PRIVATE

    def needed(self) -> dict[int, int]:
        """Client -> the oldest round from which a checkpoint that is kept may have to go on."""
        oldest = min((self.path / CHECKPOINTS).glob("*.json"), key=lambda manifest: int(manifest.stem))
        body = read_json(oldest)["body"]
        needed = {int(client): round for client, round in body["accepted"].items()}
        for client, round in (body["previous_accepted"] or {}).items():
            needed[int(client)] = min(round, needed.get(int(client), round))
        return needed

    def load(self) -> "Checkpoint | None":
        """The newest good checkpoint, with the log cut back to it; None if nothing was committed yet.

        The start is a checkpoint too, so a log without any means that something was deleted: then nothing is touched.
        """
        manifests = sorted((self.path / CHECKPOINTS).glob("*.json"), reverse=True)
        if read_raw(self.path).get("version", 1) < config.VERSION:
            raise RunError(
                f"{self.path}: was begun by fedaccord 0.1; it can be shown and compared, but not gone on with"
            )
        written = (self.path / ROUNDS).stat().st_size
        good = (read_checkpoint(manifest) for manifest in manifests)
        found = next((checkpoint for checkpoint in good if checkpoint and checkpoint.log_bytes <= written), None)
        if found is None and (written or any(int(manifest.stem) > 0 for manifest in manifests)):
            raise RunError(
                f"{self.path}: no checkpoint fits {ROUNDS}: files are damaged or missing; nothing was changed"
            )
        try:
            self.log.truncate(found.log_bytes if found else 0)
            self.log.seek(0, os.SEEK_END)
            os.fsync(self.log.fileno())
        except OSError as error:
            raise cannot_be_written(self.path / ROUNDS, error) from error
        return found

    def rounds(self) -> list[dict[str, Any]]:
        return list(read_rounds(self.path))


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    state: ServerState
    about: str
    log_bytes: int
    processor: str  # the kind it was written on


def packages_of(state: ServerState) -> dict[str, Params]:
    """All tensors of the state, by what they are."""
    found = {}
    for start, snapshot in (("", state.model), (PREVIOUS, state.previous)):
        if snapshot is not None:
            found[f"{start}model"] = snapshot.params
            found |= {f"{start}server.{slot}": params for slot, params in snapshot.server.items()}
    return found | ({KEPT: state.kept.params} if state.kept is not None and state.kept.params else {})


def snapshot_of(packages: Mapping[str, Params], start: str, accepted: Mapping[str, int]) -> Snapshot:
    server = {
        slot.removeprefix(f"{start}server."): params
        for slot, params in packages.items()
        if slot.startswith(f"{start}server.")
    }
    return Snapshot(packages[f"{start}model"], server, {int(client): round for client, round in accepted.items()})


def as_json(snapshot: Snapshot) -> dict[str, int]:
    return {str(client): round for client, round in snapshot.accepted.items()}


def read_checkpoint(manifest: Path) -> Checkpoint | None:
    """None if anything about it is damaged, be it a byte that changes no value."""
    try:
        data = read_up_to(manifest, NOTE)
        body = parse_json(data)["body"]
        tensors = manifest.with_suffix(".safetensors").read_bytes()
        if data != sealed(body) or hashlib.sha256(tensors).hexdigest() != body["tensors_sha256"]:
            return None
        check_manifest(body)
        packages = unflatten(decode(tensors))
        model, before = snapshot_of(packages, "", body["accepted"]), None
        if body["previous_accepted"] is not None:
            before = snapshot_of(packages, PREVIOUS, body["previous_accepted"])
        extremes = body.get("first_loss"), body.get("best_loss")  # not in a checkpoint of before the guard knew them
        kept = None if body.get("kept") is None else Best(**body["kept"], params=packages.get(KEPT, {}))
        state = ServerState(
            body["round"], model, body["loss"], body["policy"], before, body["last_loss"], *extremes, kept
        )
        return Checkpoint(state, body["about"], body["log_bytes"], body.get("processor", ""))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, UpdateRefused):
        return None


def check_manifest(body: Mapping[str, Any]) -> None:
    """Raise a ValueError for what is of another type than `save` writes: whoever can seal it may have written it."""
    for name in ("loss", "last_loss", "first_loss", "best_loss"):
        if body.get(name) is not None and type(body[name]) not in (int, float):
            raise ValueError(f"{name} is no number")
    rounds = [body["round"], body["log_bytes"], *body["accepted"].values(), *(body["previous_accepted"] or {}).values()]
    kept = body.get("kept")
    if kept is not None and (type(kept["score"]) not in (int, float) or not isinstance(kept["round"], int)):
        raise ValueError("the best model has no round or score")
    if not all(type(each) is int and 0 <= each < 2**63 for each in rounds):
        raise ValueError("a round is no number of one")
    if not isinstance(body["policy"], dict) or not isinstance(body["about"], str):
        raise ValueError("policy or fingerprint are of the wrong type")
    if not isinstance(body.get("processor", ""), str):
        raise ValueError("the processor has no name")


def sealed(body: dict[str, Any]) -> bytes:
    """The manifest with this body, which carries its checksum."""
    text = json.dumps(body, sort_keys=True).encode()
    return json.dumps({"body": body, "sha256": hashlib.sha256(text).hexdigest()}, indent=1).encode()


def settings_file(path: Path) -> Path:
    """The file that makes a folder a run folder; an error if there is none."""
    if not (path / SETTINGS).is_file():
        raise RunError(f"{path}: not a run folder, it has no {SETTINGS}")
    return path / SETTINGS


def read_raw(path: Path) -> dict[str, Any]:
    """The settings as they are written in a run folder."""
    return config.load_toml(settings_file(path))


def read_settings(path: Path) -> Settings:
    """The settings of a run folder, of this version or an earlier one."""
    file = settings_file(path)
    values = config.read_toml(file)
    try:
        return config.make(values)
    except SettingsError as error:
        raise SettingsError(f"{file}: {error}") from None


@dataclasses.dataclass(frozen=True)
class MetricNote:
    """What a run folder knows of a metric."""

    name: str
    higher: bool = True
    percent: bool = False


def read_metrics(path: Path) -> list[MetricNote]:
    """The metrics of a run folder, the one to judge by first; 0.1 knew the accuracy alone."""
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
    """The log's complete lines. A run that is only kept for its figures may have it compressed (rounds.jsonl.gz)."""
    log, most = open_log(path)
    with log:
        yield from rounds_in(log, path / ROUNDS, most)


def read_end(path: Path) -> tuple[int, dict[str, Any] | None]:
    """How many complete lines the log has, and the last of them."""
    log, most = open_log(path)
    with log:
        return end_of(log, path / ROUNDS, most)


def client_steps(line: Mapping[str, Any], fixed: int) -> int:
    """The SGD iterations of all clients that counted in a round, by its line of the log.

    `fixed`: as many as the settings say, where the log does not: they were neither scheduled nor chosen.
    """
    shared = line["hyper"].get("steps", fixed)
    return sum(int(client.get("hyper", {}).get("steps", shared)) for client in line["clients"].values())


def open_log(path: Path) -> tuple[IO[bytes], float]:
    """The log, compressed or not, and how many bytes it may have. It may be packed at this very moment: then the
    packed one is there before it goes.
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
    """Keep of a finished run what tables and pictures need, settings and log, and let the weights go."""
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
    """runs/2026-11-15-mnist-FA-non-iid-s0, with a number behind it if that is taken."""
    task, method = (Path(text.replace(":", "-")).name for text in (settings.task, settings.method))
    name = f"{datetime.date.today()}-{task}-{method}-{settings.split}-s{settings.seed}"
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


def settings_text(settings: Settings, apart: Collection[str] = (LENGTH, OPERATION), **named: str) -> str:
    """What makes a run this run and no other: its settings, apart from those of these roles, some `named` otherwise.

    The engine may be changed for another that gives the same bits.
    """
    brought = config.table(try_to_find(settings.method))
    kept = {n: v for n, v in settings.values().items() if n not in brought or brought[n].role not in apart}
    kept = {n: v for n, v in kept.items() if n not in LATER or LATER[n] != v}
    engine = "stacked" if settings.engine == "stacked" else "serial"
    return json.dumps({**kept, **named, "engine": engine}, sort_keys=True)


def try_to_find(name: str) -> Method | None:
    """The method of this name; None for one that was given as an object, which no name finds."""
    try:
        return find(name)
    except SettingsError:
        return None


def experiment_of(settings: Settings) -> str:
    """What server and clients of a federation must agree on, as a short name; not where a task's file lies."""
    task, method = (Path(text).name if ":" in text else text for text in (settings.task, settings.method))
    shared = settings_text(settings, (LENGTH, OPERATION, OBSERVATION, SERVER), task=task, method=method)
    return hashlib.sha256(shared.encode()).hexdigest()[:16]


def params_sha256(params: Params) -> str:
    """One hash over names, types, shapes and bytes, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(params):
        digest.update(f"{name}/{params[name].dtype}/{tuple(params[name].shape)}/".encode())
        update(digest, params[name])
    return digest.hexdigest()


def update(digest: "hashlib._Hash", tensor: torch.Tensor) -> None:
    """With the tensor's bytes; an empty one, which cannot be seen as bytes, has none."""
    if tensor.numel():
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)


def log_sha256(rounds: list[dict[str, Any]]) -> str:
    """One hash over all that is deterministic in a log: everything but the seconds."""
    digest = hashlib.sha256()
    for entry in rounds:
        kept = {key: value for key, value in entry.items() if key != "seconds"}
        digest.update(json.dumps(kept, sort_keys=True).encode())
    return digest.hexdigest()
