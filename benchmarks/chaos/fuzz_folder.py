"""Spoiled files of a run folder: tensors, settings and logs."""

import gzip
import io
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.chaos.mutations import EDGES, changed, spoiled
from benchmarks.chaos.target import Target
from fedaccord import config
from fedaccord.core.packages import decode, encode
from fedaccord.runtime.attendance import Attendance
from fedaccord.runtime.folder import read_rounds
from fedaccord.runtime.lines import RATIO, UNPACKED, round_of, rounds_in

# --- safetensors ---

TENSORS = (
    encode({"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(3), "c": torch.zeros(2, dtype=torch.bfloat16)}),
    encode({"model/w": torch.ones(4, dtype=torch.float64), "model/n": torch.zeros(0, 3)}), encode({}),
)  # fmt: skip
DTYPES = ("F32", "F64", "I64", "BOOL", "U8", "BF16", "F8_E4M3", "F8_E8M0", "F4", "U64", "C64", "X", "", None, 3)


def tensors_with(header: Any, body: bytes, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + body


def make_tensors(rng: random.Random) -> bytes:
    seed = rng.choice(TENSORS)
    if rng.random() < 0.35:
        return spoiled(rng, seed, TENSORS)
    length = int.from_bytes(seed[:8], "little")
    header, body = json.loads(seed[8 : 8 + length]), seed[8 + length :]
    if rng.random() < 0.4 and (names := [name for name in header if name != "__metadata__"]):
        entry = header[rng.choice(names)]
        kind = rng.randrange(3)
        if kind == 0:
            entry["dtype"] = rng.choice(DTYPES)
        elif kind == 1:
            entry["shape"] = [rng.choice(EDGES) for _ in range(rng.randrange(5))]
        else:
            entry["data_offsets"] = [rng.choice(EDGES), rng.choice(EDGES)]
    else:
        header = changed(rng, header)
    said = rng.choice(EDGES) if rng.random() < 0.05 else None
    return tensors_with(header, body if rng.random() < 0.8 else spoiled(rng, body), said)


def read_tensors(data: bytes, folder: Path) -> bool:
    found = decode(data)
    assert all(isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in found.items())
    assert sum(value.numel() * value.element_size() for value in found.values()) <= len(data)
    return True


def worst_tensors() -> Sequence[bytes]:
    """Return files with headers that announce exabytes, as many tensors as fit, and deeply nested values."""
    one = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    many = [tensors_with({f"{name:x}": one for name in range(count)}, b"") for count in (55_000, 200_000)]
    big = [{"a": {"dtype": "F32", "shape": [size], "data_offsets": [0, 4 * size]}} for size in (2**31, 2**62, 2**40)]
    deep = [tensors_with(start * 100_000, b"") for start in (b"[", b'{"a":')]
    return [
        *many,
        *(tensors_with(each, b"") for each in big),
        *deep,
        *(tensors_with(b"{}", b"", edge) for edge in EDGES),
    ]


# --- TOML ---

SETTINGS = (
    'version = 2\nmethod = "FA"\nlr = 0.1\nrounds = 3\n', 'method = "FA+RM+AH"\nfraction = 1\nclients = 10\nseed = 0\n',
    'task = "digits"\nmethod = "SCAFFOLD"\nsplit = "iid"\npartial = true\n', 'rm_store = "disk"\ntask = "mnist"\n',
    'grid = "lr = 0.001..1/25 log"\nstart = "lr = 0.1"\nmethod = "FA+AH"\n',
)  # fmt: skip
NAMES = tuple(config.table())
VALUES = (
    "0", "-1", "1", "3.5", "1e400", "nan", "-inf", "true", '""', '"x"', '"FA"', '"no.py:x"', '"a+b"', '"\\u0000"', "[]",
    "[1, 2]", "{}", '{a = 1}', "1979-05-27T07:32:00Z", "07:32:00", "0x" + "f" * 400, "9" * 5000, "9223372036854775808",
    "[" * 2000, "'''", '"""\n"""', "-0.0", "1e-320", '"../../x"', '"' + "x" * 2000 + '"', "{a." + "b." * 300 + "c = 1}",
)  # fmt: skip


def make_toml(rng: random.Random) -> bytes:
    text = rng.choice(SETTINGS)
    if rng.random() < 0.3:
        return spoiled(rng, text.encode(), [each.encode() for each in SETTINGS])
    lines = text.splitlines()
    for _ in range(rng.choice((1, 1, 2, 4))):
        name = rng.choice((*NAMES, "version", "method", "task", "", "a.b", '"q"'))
        line = f"{name} = {rng.choice(VALUES)}" if rng.random() < 0.9 else rng.choice(("[x]", "[[x]]", "[x", "=", "\0"))
        lines.insert(rng.randrange(len(lines) + 1), line)
        if rng.random() < 0.5:
            del lines[rng.randrange(len(lines))]
    return "\n".join(lines).encode()


def read_settings(data: bytes, folder: Path) -> bool:
    file = folder / "settings.toml"
    file.write_bytes(data)
    found = config.make(config.read_toml(file))
    table = config.table()
    for name, value in found.values().items():
        if name in table:
            table[name].validate(value)
    if len(data) % 20 == 0:
        file.write_text(config.to_toml(found))
        assert config.make(config.read_toml(file)) == found
    return True


def worst_toml() -> Sequence[bytes]:
    return [
        b"a = " + b"[" * 100_000, b"a." * 50_000 + b"b = 1", b"a = '" + b"x" * (1 << 20), bytes(1 << 21),
        b"\n".join(b"k%d = 1" % number for number in range(50_000)), b"a = 0x" + b"f" * 500_000,
    ]  # fmt: skip


# --- rounds.jsonl ---

ROUND: dict[str, Any] = {
    "round": 1,
    "hyper": {"lr": 0.1, "steps": 5},
    "cohort": [0, 1],
    "refused": [{"client": 1, "why": "late"}],
    "loss": 0.5,
    "metrics": {"accuracy": 0.9},
    "reward": None,
    "policy": {"mean": {"lr": 0.1}},
    "guard": None,
    "best": 1,
    "score": 0.9,
    "clients": {"0": {"examples": 3, "update_norm": 0.5, "metrics": {"accuracy": 1.0}, "hyper": {"steps": 5}}},
    "step_norm": 0.1,
    "method": {"a": 1.0},
    "stretch": 1.0,
    "handed": "last",
    "bytes": 10,
    "seconds": {"train": 0.1},
}


def make_rounds(rng: random.Random) -> bytes:
    lines = [
        json.dumps(ROUND if rng.random() < 0.4 else changed(rng, ROUND)).encode() for _ in range(rng.choice((1, 1, 3)))
    ]
    data = b"\n".join(lines) + rng.choice((b"\n", b"\n", b""))
    data = spoiled(rng, data) if rng.random() < 0.3 else data
    if rng.random() < 0.3:
        data = gzip.compress(data, 1, mtime=0)
        data = spoiled(rng, data) if rng.random() < 0.3 else data
    return data


def read_log(data: bytes, folder: Path) -> bool:
    packed = data[:2] == b"\x1f\x8b"
    stream: Any = gzip.GzipFile(fileobj=io.BytesIO(data)) if packed else io.BytesIO(data)
    if len(data) % 50 == 0:  # now and then from a file rather than a stream
        (folder / "rounds.jsonl").unlink(missing_ok=True)
        (folder / ("rounds.jsonl.gz" if packed else "rounds.jsonl")).write_bytes(data)
        stream = None
    count = 0
    for entry in read_rounds(folder) if stream is None else rounds_in(stream, folder, max(UNPACKED, RATIO * len(data))):
        count += 1
        assert type(entry["round"]) is int
        told = list((entry.get("clients") or {}).values())
        np.array([each.get("examples") or 0 for each in told if each], np.int64)
        assert all(value is None or isinstance(value, int | float) for value in (entry.get("metrics") or {}).values())
        Attendance().add(round_of(entry, folder))
    return bool(count)


def worst_rounds() -> Sequence[bytes]:
    """Return logs of up to 256 MiB (empty lines, good lines, one line) and lines of very many values, nested or not."""
    good = json.dumps(ROUND).encode() + b"\n"
    block = good * 20_000
    packed = [gzip.compress(each, 9, mtime=0) * 16 for each in (b"\n" * (1 << 24), block, b'"' + b" " * (1 << 24))]
    full = b'{"round": 1, "policy": [' + b"[]," * 2_440_000 + b"1]}\n"
    return [*packed, full, b"[" * 200_000 + b"\n", b'{"a":' * 200_000 + b"\n", b'{"round": ' + b"9" * 100_000 + b"}\n"]


TARGETS = {
    "safetensors": Target("safetensors", make_tensors, read_tensors, worst_tensors),
    "toml": Target("toml", make_toml, read_settings, worst_toml),
    "rounds": Target("rounds", make_rounds, read_log, worst_rounds),
}
