"""Spoiled files in the plain formats of data sets: idx, CIFAR-10's records, gzip."""

import gzip
import math
import random
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.chaos.mutations import EDGES, spoiled
from benchmarks.chaos.target import Target
from fedaccord.core.errors import FedAccordError
from fedaccord.data import archives, cifar10, idx

MOST = 1 << 12
"""The most bytes of content for which a generated file has as many as its header claims."""


def idx_bytes(shape: Sequence[int], content: bytes, kind: int = 8) -> bytes:
    return bytes((0, 0, kind, len(shape))) + b"".join(struct.pack(">I", each % 2**32) for each in shape) + content


IMAGES, LABELS = idx_bytes((3, 4, 5), bytes(range(60))), idx_bytes((3,), bytes((0, 9, 3)))
RECORDS = b"".join(bytes((label,)) + bytes(cifar10.PIXELS) for label in (0, 9))
SEEDS = (IMAGES, LABELS, idx_bytes((1, 1, 1), b"x"), idx_bytes((0,), b""), idx_bytes((0, 28, 28), b""))


def make_idx(rng: random.Random) -> bytes:
    draw = rng.random()
    if draw < 0.02:
        return spoiled(rng, RECORDS)
    if draw < 0.5:
        return spoiled(rng, rng.choice(SEEDS), SEEDS)
    shape = [rng.choice(EDGES) for _ in range(rng.choice((1, 3)))]
    size = math.prod(shape)
    return idx_bytes(
        shape, bytes(size) if size <= MOST else rng.randbytes(rng.randrange(64)), rng.choice((8, 8, 9, 14))
    )


def read_idx(data: bytes, folder: Path) -> bool:
    accepted = False
    for dimensions in (1, 3):
        try:
            found = idx.parse(data, dimensions, "it")
        except FedAccordError:
            continue
        assert isinstance(found, np.ndarray)
        assert found.dtype == np.uint8
        assert found.ndim == dimensions
        accepted = True
        test = {idx.TEST_IMAGES: IMAGES, idx.TEST_LABELS: LABELS}
        train = {
            idx.TRAIN_IMAGES: data if dimensions == 3 else IMAGES,
            idx.TRAIN_LABELS: data if dimensions == 1 else LABELS,
        }
        try:
            whole = idx.data_set({**train, **test}, tuple("0123456789"))
        except FedAccordError:
            continue
        assert whole.train.inputs.dtype == torch.uint8
        assert whole.train.inputs.dim() == 4
        assert len(whole.train.inputs) == len(whole.train.targets)
        assert int(whole.train.targets.max()) < 10
    if len(data) % (cifar10.PIXELS + 1) == 0:
        examples = cifar10.parse(data, "it")
        assert examples.inputs.shape == (len(data) // (cifar10.PIXELS + 1), 3, 32, 32)
    return accepted


PACKED = tuple(gzip.compress(each, mtime=0) for each in SEEDS)
NAMED = b"\x1f\x8b\x08\x1e" + bytes(6) + struct.pack("<H", 5) + b"extraname\0comment\0" + bytes(2) + PACKED[0][10:]


def make_gz(rng: random.Random) -> bytes:
    draw = rng.random()
    if draw < 0.4:
        return spoiled(rng, rng.choice((*PACKED, NAMED)), PACKED)
    if draw < 0.7:  # an intact gzip file of spoiled content
        return gzip.compress(make_idx(rng), rng.choice((0, 1, 9)), mtime=0)
    if draw < 0.8:
        return b"".join(rng.choices(PACKED, k=rng.randrange(6))) + rng.choice((b"", bytes(9), b"x", PACKED[0][:12]))
    content = make_idx(rng)  # an intact stream with another trailer
    end = struct.pack("<II", zlib.crc32(content) ^ rng.choice((0, 1)), rng.choice((len(content), *EDGES)) % 2**32)
    return gzip.compress(content, mtime=0)[:-8] + end


def read_gz(data: bytes, folder: Path) -> bool:
    found = archives.gunzip(data, "it")
    assert isinstance(found, bytes)
    assert len(found) <= archives.LARGEST
    try:
        read_idx(found, folder)
    except FedAccordError:
        return False
    return True


def worst_gz() -> Sequence[bytes]:
    """Return gzip files: 1 GiB (64 GiB would take long to make), the most that is let through, 10,000 empty streams."""
    part = gzip.compress(bytes(1 << 24), mtime=0)
    return part * 64, part * 8, gzip.compress(b"", mtime=0) * 10_000


TARGETS = {
    "idx": Target(
        "idx", make_idx, read_idx, lambda: [idx_bytes((2**31,) * 3, b""), idx_bytes((0, 2**32 - 1, 2**32 - 1), b"")]
    ),
    "gz": Target("gz", make_gz, read_gz, worst_gz),
}
