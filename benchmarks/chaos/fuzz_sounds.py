"""Spoiled recordings: .wav files of every encoding but MPEG, changed chunk by chunk."""

import io
import random
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import soundfile

from benchmarks.chaos.mutations import EDGES, spoiled
from benchmarks.chaos.target import Target
from fedaccord.data import speech_commands as speech


def recording(subtype: str, rate: int = 16000, channels: int = 1) -> bytes:
    buffer = io.BytesIO()
    wave = np.sin(np.arange(600 * channels).reshape(600, channels) / 9).astype(np.float32) / 2
    soundfile.write(buffer, wave, rate, format="wav", subtype=subtype)
    return buffer.getvalue()


SOUNDS = (
    *(recording(kind) for kind in sorted(soundfile.available_subtypes("WAV")) if "MPEG" not in kind),
    recording("PCM_16", channels=2),
)


def make_wav(rng: random.Random) -> bytes:
    data = rng.choice(SOUNDS)
    if rng.random() < 0.4:
        return spoiled(rng, data, SOUNDS)
    place, chunks = 12, []
    while place + 8 <= len(data):
        (length,) = struct.unpack("<I", data[place + 4 : place + 8])
        chunks.append([data[place : place + 4], length, data[place + 8 : place + 8 + length]])
        place += 8 + length + length % 2
    for _ in range(rng.choice((1, 2))):
        chunk, kind = rng.choice(chunks), rng.randrange(5)
        if kind == 0:
            chunk[1] = rng.choice(EDGES) % 2**32
        elif kind == 1:
            chunk[2] = spoiled(rng, chunk[2])
        elif kind == 2:
            chunks.insert(rng.randrange(len(chunks) + 1), chunk)
        elif kind == 3:
            chunk[0] = rng.choice((b"LIST", b"fact", b"cue ", b"smpl", b"bext", b"PEAK", b"xxxx", b"data", b"fmt "))
        elif len(chunks) > 1:
            chunks.remove(chunk)
    body = b"".join(name + struct.pack("<I", length) + content for name, length, content in chunks)
    return b"RIFF" + struct.pack("<I", rng.choice((len(body) + 4, 2**32 - 1))) + b"WAVE" + body


def read_wav(data: bytes, folder: Path) -> bool:
    found = speech.sound(data, "it")
    assert found.dtype == np.float32
    assert found.ndim == 1
    assert len(found) <= speech.RATE
    assert bool(np.isfinite(found).all())
    return True


def worst_wav() -> Sequence[bytes]:
    """Return recordings whose headers claim 2 GiB of data, or as many frames as a codec can."""
    found = []
    for seed in SOUNDS:
        place = seed.rindex(b"data") + 4
        found.append(seed[:place] + struct.pack("<I", 2**31 - 1) + seed[place + 4 :])
        if b"fact" in seed:
            place = seed.index(b"fact") + 8
            found.append(seed[:place] + struct.pack("<I", 2**32 - 1) + seed[place + 4 :])
    return found


TARGETS = {"wav": Target("wav", make_wav, read_wav, worst_wav)}
