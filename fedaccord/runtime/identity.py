"""The identity of a run and of its results: hashes of settings, data, weights and logs."""

import hashlib
import json
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import torch

from fedaccord import config
from fedaccord.config import Settings
from fedaccord.core.errors import SettingsError
from fedaccord.core.protocols import Method
from fedaccord.core.records import Params
from fedaccord.core.settings import LENGTH, OBSERVATION, OPERATION, SERVER
from fedaccord.methods.registry import find, is_file, words_of

LATER = {
    "keep": "last", "robust": "mean", "trim": 0.1, "dp_noise": 0.0, "dp_delta": 1e-5, "partial": False, "epochs": 0.0,
    "alone": "", "min_examples": 0, "readers": 0,
}  # fmt: skip
"""Settings that came after version 2, each with what earlier runs did: with that value it is left out of the hash."""


def fingerprint(settings: Settings, params: Params, data: Iterable[torch.Tensor]) -> str:
    """Hash all that a resumed run must share with its beginning: settings, model, data."""
    digest = hashlib.sha256(settings_text(settings).encode())
    digest.update(repr([(name, str(value.dtype), tuple(value.shape)) for name, value in params.items()]).encode())
    for tensor in data:
        update(digest, tensor)
    return digest.hexdigest()


def settings_text(settings: Settings, apart: Collection[str] = (LENGTH, OPERATION), **named: str) -> str:
    """Return the settings that identify a run as text, without those whose role is in `apart`.

    `named` replaces the values of some. The engine may be changed for another that gives the same bits.
    """
    brought = config.table(try_to_find(settings.method))
    kept = {n: v for n, v in settings.values().items() if n not in brought or brought[n].role not in apart}
    kept = {n: v for n, v in kept.items() if n not in LATER or LATER[n] != v}
    engine = "stacked" if settings.engine == "stacked" else "serial"
    return json.dumps({**kept, **named, "engine": engine}, sort_keys=True)


def try_to_find(name: str) -> Method | None:
    """Return the method of this name; None for one that was given as an object, which no name finds."""
    try:
        return find(name)
    except SettingsError:
        return None


def experiment_of(settings: Settings) -> str:
    """Return a short hash of what server and clients of a federation must agree on.

    Where the files of task and method lie does not count, only their names do.
    """
    task = Path(settings.task).name
    method = "+".join(Path(word).name if is_file(word) else word for word in words_of(settings.method))
    shared = settings_text(settings, (LENGTH, OPERATION, OBSERVATION, SERVER), task=task, method=method)
    return hashlib.sha256(shared.encode()).hexdigest()[:16]


def params_sha256(params: Params) -> str:
    """Return one hash over names, types, shapes and bytes, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(params):
        digest.update(f"{name}/{params[name].dtype}/{tuple(params[name].shape)}/".encode())
        update(digest, params[name])
    return digest.hexdigest()


def update(digest: "hashlib._Hash", tensor: torch.Tensor) -> None:
    """Add the tensor's bytes to the digest; an empty tensor, which cannot be viewed as bytes, has none."""
    if tensor.numel():
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)


def log_sha256(rounds: list[dict[str, Any]]) -> str:
    """Return one hash over all that is deterministic in a log: everything but the seconds."""
    digest = hashlib.sha256()
    for entry in rounds:
        kept = {key: value for key, value in entry.items() if key != "seconds"}
        digest.update(json.dumps(kept, sort_keys=True).encode())
    return digest.hexdigest()
