"""Checkpoints of a run: all tensors of the server's state, and a manifest that says what they are.

The manifest is written last: once it is there, the checkpoint exists. It carries the SHA-256 of the tensors and of
itself, and the length that the log had. A damaged checkpoint counts as absent.
"""

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedaccord import config
from fedaccord.core.errors import RunError, UpdateRefused
from fedaccord.core.files import NOTE, parse_json, read_json, read_up_to, remove, write_durably
from fedaccord.core.packages import decode, encode, flatten, unflatten
from fedaccord.core.processes import processor_kind
from fedaccord.core.records import Best, Params, ServerState, Snapshot

GENERATIONS = 2
PREVIOUS, KEPT = "previous-", "best"


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    state: ServerState
    about: str
    log_bytes: int
    processor: str  # the kind that it was written on


def write_checkpoint(folder: Path, state: ServerState, about: str, log_bytes: int) -> None:
    """Write a checkpoint, which is on disk when this returns, and delete the oldest beyond GENERATIONS."""
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
        "log_bytes": log_bytes,
        "tensors_sha256": hashlib.sha256(tensors).hexdigest(),
    }
    manifest = sealed(body)
    if len(manifest) > NOTE:
        raise RunError(
            f"a checkpoint's manifest of {len(manifest):,} bytes, {NOTE:,} at most: there are too many clients"
        )
    write_durably(folder / f"{stem}.json", manifest)
    found = manifests(folder)
    for old in found[:-GENERATIONS]:
        remove(old)
    kept = {manifest.stem for manifest in found[-GENERATIONS:]}
    for file in by_round(folder, "safetensors"):
        if file.stem not in kept:
            remove(file)


def manifests(folder: Path) -> list[Path]:
    """Return the manifests of all checkpoints, oldest first."""
    return by_round(folder, "json")


def by_round(folder: Path, kind: str) -> list[Path]:
    """Return the files of this kind that are named by a round, oldest first; others are somebody else's."""
    found = (path for path in folder.glob(f"*.{kind}") if re.fullmatch("[0-9]+", path.stem))
    return sorted(found, key=lambda path: int(path.stem))


def oldest_needed(folder: Path) -> dict[int, int]:
    """Return for each client the oldest of its rounds from which a checkpoint in the folder may have to go on."""
    body = read_json(manifests(folder)[0])["body"]
    needed = {int(client): round for client, round in body["accepted"].items()}
    for client, round in (body["previous_accepted"] or {}).items():
        needed[int(client)] = min(round, needed.get(int(client), round))
    return needed


def packages_of(state: ServerState) -> dict[str, Params]:
    """Return all tensors of the state, in packages named by what they are."""
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
    """Read a checkpoint; return None if anything about it is damaged, even a byte that changes no value."""
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
        extremes = body.get("first_loss"), body.get("best_loss")  # not in a checkpoint from before the guard knew them
        kept = None if body.get("kept") is None else Best(**body["kept"], params=packages.get(KEPT, {}))
        state = ServerState(
            body["round"], model, body["loss"], body["policy"], before, body["last_loss"], *extremes, kept
        )
        return Checkpoint(state, body["about"], body["log_bytes"], body.get("processor", ""))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, UpdateRefused):
        return None


def check_manifest(body: Mapping[str, Any]) -> None:
    """Raise ValueError for a field of the wrong type: a right checksum does not prove who wrote the manifest."""
    for name in ("loss", "last_loss", "first_loss", "best_loss"):
        if body.get(name) is not None and type(body[name]) not in (int, float):
            raise ValueError(f"{name} is no number")
    rounds = [body["round"], body["log_bytes"], *body["accepted"].values(), *(body["previous_accepted"] or {}).values()]
    kept = body.get("kept")
    if kept is not None:
        rounds.append(kept["round"])
        if type(kept["score"]) not in (int, float):
            raise ValueError("the best model has no score")
    if not all(type(each) is int and 0 <= each < 2**63 for each in rounds):
        raise ValueError("a round is no count")
    if not isinstance(body["policy"], dict) or not isinstance(body["about"], str):
        raise ValueError("policy or fingerprint are of the wrong type")
    if not isinstance(body.get("processor", ""), str):
        raise ValueError("the processor has no name")


def sealed(body: dict[str, Any]) -> bytes:
    """Return the bytes of the manifest with this body and its checksum."""
    text = json.dumps(body, sort_keys=True).encode()
    return json.dumps({"body": body, "sha256": hashlib.sha256(text).hexdigest()}, indent=1).encode()
