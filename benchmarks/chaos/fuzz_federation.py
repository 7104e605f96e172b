"""Spoiled inputs of a federation: messages at both ends, keys and certificates."""

import base64
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from flwr.app import ConfigRecord

from benchmarks.chaos.fuzz_folder import make_tensors, worst_tensors
from benchmarks.chaos.mutations import changed, spoiled
from benchmarks.chaos.target import Target
from fedaccord.core.errors import FedAccordError
from fedaccord.core.records import ClientUpdate, Hyper, Order, Refusal
from fedaccord.flower import wire
from fedaccord.flower.adapter import key_bytes
from fedaccord.flower.certificates import Link, certificate, names_of, private_pem, renew

HYPER = Hyper(steps=5, lr=0.1, batch_size=16, own={"rm_weight": 0.5})
PARAMS = {"w": torch.ones(3)}
ORDER = Order(2, (0,), PARAMS, HYPER, {}, {"server": PARAMS}, {0: 1}, True, PARAMS, True, 5.0)
SEEDS = (
    {**wire.order_record(ORDER, "x", {0: 1}), "own_hyper": wire.written(HYPER), "seconds": 3.0},
    dict(wire.update_record(ClientUpdate(0, PARAMS, 7, 0.5, {"c": PARAMS}, 0.5, 0.6, {"accuracy": 0.5}, 2, 0.5))),
    dict(wire.identity_record(3, [1, 2, 3], 6)),
    dict(wire.refusal_record("no")),
)
ODD = (
    True,
    0,
    -1,
    2**62,
    -(2**62),
    0.5,
    float("nan"),
    float("inf"),
    1e308,
    "",
    "x",
    "[]",
    "{}",
    "null",
    "3",
    "NaN",
    b"",
    b"x",
    [],
    [1],
    [1.5],
    ["a"],
    [b"a"],
    [True],
    '{"lr": 1e999}',
    '{"lr": "x"}',
    "[" * 3000,
    '{"a":' * 3000,
    "9" * 5000,
)


def make_message(rng: random.Random) -> bytes:
    """Return a record in which a few values are missing, of another kind, or spoiled tensors or texts."""
    record: dict[str, Any] = dict(rng.choice(SEEDS[:2] if rng.random() < 0.8 else SEEDS))
    for _ in range(rng.choice((1, 1, 2, 3))):
        name = rng.choice([*record, "why", "version", "labels"])
        value, draw = record.get(name), rng.random()
        if draw < 0.1:
            record.pop(name, None)
        elif isinstance(value, bytes) and draw < 0.8:
            record[name] = make_tensors(rng)
        elif isinstance(value, str) and value.startswith('{"') and len(value) < 500 and draw < 0.8:
            record[name] = json.dumps(changed(rng, json.loads(value)))
        else:
            record[name] = rng.choice(ODD)
    return bytes(ConfigRecord(record).deflate())


def read_message(data: bytes, folder: Path) -> bool:
    """Read a message as all who may be sent it do: as an identity, an update and an order.

    How Flower reads bytes is not ours to test, so they are those of a well-formed record.
    """
    record = dict(ConfigRecord.inflate(data))
    client, labels, examples = wire.read_identity(record)
    assert client is None or type(client) is int
    assert type(examples) is int
    assert all(type(each) is int and each >= 0 for each in labels)
    update = wire.read_update(0, ORDER, record, ("accuracy",))
    assert isinstance(update, ClientUpdate | Refusal)
    if isinstance(update, Refusal):
        assert isinstance(update.why, str)
    else:
        assert (update.client, update.round) == (0, 2)
        assert isinstance(update.loss, float)
    try:
        order = wire.read_order(record, 0)
    except FedAccordError:
        return isinstance(update, ClientUpdate)
    assert type(order.round) is int
    assert 0 <= order.since[0] < order.round
    assert type(order.hyper.steps) is int
    assert isinstance(order.hyper.lr, int | float)
    return True


def worst_messages() -> Sequence[bytes]:
    found = []
    for tensors in worst_tensors()[:6]:
        found += [bytes(ConfigRecord({**SEEDS[place], "params": tensors}).deflate()) for place in (0, 1)]
    for text in ("[" * 100_000, '{"a":' * 100_000, "[" + "[]," * 500_000 + "1]", "9" * 100_000):
        found += [bytes(ConfigRecord({**SEEDS[0], "hyper": text}).deflate())]
        found += [bytes(ConfigRecord({**SEEDS[1], "metrics": text}).deflate())]
    return found


# --- keys ---

PEM, OPENSSH = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH
CURVE = ec.generate_private_key(ec.SECP384R1())
PRIVATE = tuple(key.private_bytes(PEM, OPENSSH, serialization.NoEncryption()) for key in (
    CURVE, ec.generate_private_key(ec.SECP256R1()), ed25519.Ed25519PrivateKey.generate(),
    rsa.generate_private_key(65537, 2048),
))  # fmt: skip
PUBLIC = tuple(
    key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    for key in (CURVE, ed25519.Ed25519PrivateKey.generate())
)
LOCKED = CURVE.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"secret"))
AUTHORITY = certificate(CURVE, CURVE, 30)
CERTIFICATE = certificate(CURVE, CURVE, 30, names_of(["localhost", "127.0.0.1"]))


def inner(rng: random.Random, data: bytes) -> bytes:
    """Return a key whose base64 text is decoded, spoiled and encoded again."""
    lines = data.strip().split(b"\n")
    armoured = len(lines) > 2
    body = b"".join(lines[1:-1]) if armoured else data.split()[1]
    spoilt = base64.b64encode(spoiled(rng, base64.b64decode(body)))
    return b"\n".join((lines[0], spoilt, lines[-1], b"")) if armoured else data.split()[0] + b" " + spoilt


def make_key(rng: random.Random) -> bytes:
    seed = rng.choice((*PRIVATE[:3], *PUBLIC, *PUBLIC, LOCKED, AUTHORITY, CERTIFICATE, private_pem(CURVE)))
    return inner(rng, seed) if rng.random() < 0.7 else spoiled(rng, seed, (*PRIVATE, *PUBLIC))


def read_key(data: bytes, folder: Path) -> bool:
    """Read a certificate or private key in PEM as files of the authority, anything else as a node's keys."""
    file = folder / "key"
    file.write_bytes(data)
    accepted = False
    if data.startswith((b"-----BEGIN C", b"-----BEGIN P")):
        for name in ("ca.key", "server.key"):
            (folder / name).write_bytes(private_pem(CURVE) if data.startswith(b"-----BEGIN C") else data)
        for name, whole in (("ca.pem", AUTHORITY), ("server.pem", CERTIFICATE)):
            (folder / name).write_bytes(data if data.startswith(b"-----BEGIN C") else whole)
        renew(folder)
        return True
    for read in (Link("x", None, file).key_pair, lambda: key_bytes(file)):
        try:
            found = read()
        except FedAccordError:
            continue
        assert isinstance(found, bytes) or isinstance(found[0], ec.EllipticCurvePrivateKey)
        accepted = True
    return accepted


def worst_keys() -> Sequence[bytes]:
    return [*PRIVATE, LOCKED, CERTIFICATE, private_pem(CURVE), PRIVATE[0] * 100_000, bytes(1 << 24)]


TARGETS = {
    "wire": Target("wire", make_message, read_message, worst_messages),
    "keys": Target("keys", make_key, read_key, worst_keys),
}
