"""Spoiled JSON files of a run folder: the manifests of checkpoints, with their tensors, and other notes."""

import hashlib
import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.chaos.fuzz_folder import make_tensors, worst_tensors
from benchmarks.chaos.mutations import ODD, changed, spoiled
from benchmarks.chaos.target import Target
from fedaccord.core.packages import encode
from fedaccord.runtime.checkpoints import Checkpoint, read_checkpoint, sealed
from fedaccord.runtime.classes import CLASSES, read_classes
from fedaccord.runtime.folder import CODE, METRICS, RunFolder, read_metrics
from fedaccord.runtime.status import clients_by_node
from fedaccord.server.sizes import SIZES, read_sizes

# --- checkpoints ---

PARAMS = encode({"model/w": torch.ones(3), "server.m/w": torch.zeros(3), "previous-model/w": torch.ones(3)})
BODY: dict[str, Any] = {
    "version": 2,
    "round": 3,
    "loss": 0.5,
    "last_loss": 0.5,
    "first_loss": 1.0,
    "best_loss": 0.5,
    "kept": {"round": 2, "score": 0.9},
    "policy": {"mean": [1.0]},
    "accepted": {"0": 3},
    "previous_accepted": {"0": 2},
    "about": "x",
    "processor": "y",
    "log_bytes": 10,
    "tensors_sha256": hashlib.sha256(PARAMS).hexdigest(),
}


def make_checkpoint(rng: random.Random) -> bytes:
    """Return a manifest and tensors, a mark between them; mostly sealed again, so that more than the seal is tested."""
    tensors = PARAMS if rng.random() < 0.6 else make_tensors(rng)
    body = {**BODY, "tensors_sha256": hashlib.sha256(tensors).hexdigest()}
    if rng.random() < 0.8:
        body = changed(rng, body)
    try:
        text = sealed(body) if rng.random() < 0.9 else json.dumps({"body": body, "sha256": "0" * 64}).encode()
    except TypeError:  # names of two types cannot be sorted
        text = b"{}"
    return (spoiled(rng, text) if rng.random() < 0.2 else text) + MARK + tensors


MARK = b"\n--tensors--\n"


def read_both(data: bytes, folder: Path) -> bool:
    text, _, tensors = data.partition(MARK)
    (folder / "000003.json").write_bytes(text)
    (folder / "000003.safetensors").write_bytes(tensors)
    found = read_checkpoint(folder / "000003.json")
    if found is None:
        return False
    assert isinstance(found, Checkpoint)
    assert type(found.state.round) is int
    assert type(found.log_bytes) is int
    assert all(type(client) is int and type(round) is int for client, round in found.state.model.accepted.items())
    assert isinstance(found.about, str)
    assert isinstance(found.state.policy, dict)
    assert found.state.loss is None or isinstance(found.state.loss, int | float)
    return True


def worst_checkpoints() -> Sequence[bytes]:
    deep = b'{"body": ' + b"[" * 100_000
    wide = sealed({**BODY, "policy": {"x": [[]] * 1_200_000}})
    return [deep + MARK + PARAMS, wide + MARK + PARAMS, *(b"{}" + MARK + each for each in worst_tensors()[:2])]


# --- the other notes ---

NOTES: dict[str, Any] = {
    SIZES: {"0": 100, "3": 1200},
    "nodes.json": {"0": 12345678901234567890, "1": 7},
    CODE: {"fedaccord": "0.2", "the model": "ab"},
    METRICS: [
        {"name": "accuracy", "higher": True, "percent": True},
        {"name": "loss", "higher": False, "percent": False},
    ],
    CLASSES: {"names": ["a", "b"], "clients": [[1, 2], []], "round": 3, "tested": [5, 5], "right": [1, 2]},
}


def make_notes(rng: random.Random) -> bytes:
    name = rng.choice(list(NOTES))
    value = rng.choice(ODD) if rng.random() < 0.05 else changed(rng, NOTES[name])
    text = json.dumps(value).encode()
    return name.encode() + b"\n" + (spoiled(rng, text) if rng.random() < 0.3 else text)


def read_notes(data: bytes, folder: Path) -> bool:
    """Read a note with its own reader; the first line of the data is the name of its file."""
    name, _, text = data.partition(b"\n")
    file = folder / name.decode()
    file.write_bytes(text)
    if file.name == SIZES:
        assert all(type(client) is int and type(size) is int for client, size in read_sizes(file).items())
    elif file.name == METRICS:
        assert all(isinstance(each.name, str) for each in read_metrics(folder))
    elif file.name == CLASSES:
        found = read_classes(folder)
        assert found is not None
        np.array([*found.clients, found.tested, found.right], object)
    elif file.name == CODE:
        reader = RunFolder.__new__(RunFolder)  # without the lock and the log of an open folder
        reader.path = folder
        assert all(isinstance(each, str) for pair in reader.code().items() for each in pair)
    else:
        assert all(type(node) is int and type(client) is int for node, client in clients_by_node(folder).items())
    return True


def worst_notes() -> Iterable[bytes]:
    texts = b"[" * 100_000, b"[" + b"[]," * 2_440_000 + b"1]", b"[" + b"1," * (1 << 23), b"9" * 100_000
    return (name.encode() + b"\n" + text for name in NOTES for text in texts)


TARGETS = {
    "checkpoints": Target("checkpoints", make_checkpoint, read_both, worst_checkpoints),
    "notes": Target("notes", make_notes, read_notes, worst_notes),
}
