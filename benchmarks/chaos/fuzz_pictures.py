"""Spoiled pictures; the checksums of PNG chunks are made right again after their content was spoiled."""

import io
import random
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.chaos.mutations import EDGES, spoiled
from benchmarks.chaos.target import Target
from fedaccord.data import cifar10, pictures

# --- PNG ---

START = b"\x89PNG\r\n\x1a\n"
Chunk = tuple[bytes, bytes]


def picture(mode: str, size: tuple[int, int], kind: str, **options: object) -> bytes:
    made = Image.frombytes("RGB", (6, 5), random.Random(0).randbytes(90)).resize(size)
    buffer = io.BytesIO()
    (made.convert("L").convert("I;16") if mode == "I;16" else made.convert(mode)).save(buffer, kind, **options)
    return buffer.getvalue()


def chunks_of(data: bytes) -> list[Chunk]:
    place, found = len(START), []
    while place + 8 <= len(data):
        (length,) = struct.unpack(">I", data[place : place + 4])
        found.append((data[place + 4 : place + 8], data[place + 8 : place + 8 + length]))
        place += 12 + length
    return found


def png(chunks: Sequence[Chunk]) -> bytes:
    return START + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) for name, body in chunks
    )


PNGS = (
    picture("RGB", (6, 5), "png"),
    picture("L", (6, 5), "png"),
    picture("RGBA", (6, 5), "png"),
    picture("P", (6, 5), "png"),
    picture("1", (6, 5), "png"),
    picture("I;16", (6, 5), "png"),
    picture("RGB", (6, 5), "png", exif=b"Exif\0\0II*\0\x08\0\0\0\0\0", icc_profile=b"profile"),
    png(
        [(b"IHDR", struct.pack(">IIBBBBB", 6, 5, 8, 2, 0, 0, 1)), (b"IDAT", zlib.compress(bytes(400))), (b"IEND", b"")]
    ),
)
SHEETS = (picture("RGB", (1024, 2), "png"), picture("P", (1024, 2), "png"))
OTHERS: tuple[Chunk, ...] = (
    (b"tRNS", bytes(6)),
    (b"PLTE", bytes(9)),
    (b"PLTE", bytes(7)),
    (b"tEXt", b"a\0b"),
    (b"zTXt", b"a\0\0" + zlib.compress(b"b")),
    (b"iTXt", b"a\0\1\0\0\0" + zlib.compress(b"b")),
    (b"iCCP", b"a\0\0" + zlib.compress(b"b")),
    (b"gAMA", b"\0"),
    (b"sRGB", b""),
    (b"pHYs", bytes(3)),
    (b"acTL", struct.pack(">II", 2, 0)),
    (b"fcTL", bytes(26)),
    (b"fdAT", bytes(4) + zlib.compress(b"x")),
    (b"eXIf", b"MM\0*"),
    (b"cHRM", bytes(5)),
    (b"IDAT", b""),
    (b"IEND", b""),
    (b"\xff\xff\xff\xff", b"x"),
    (b"abcd", b""),
)


def unpacked(body: bytes) -> bytes:
    """Return the unpacked scan lines of a chunk, or its body as it is if that was spoiled before."""
    try:
        return zlib.decompress(body)
    except zlib.error:
        return body


def make_png(rng: random.Random) -> bytes:
    seed = rng.choice(PNGS) if rng.random() < 0.95 else rng.choice(SHEETS)
    if rng.random() < 0.25:
        return spoiled(rng, seed, PNGS)
    chunks = chunks_of(seed)
    for _ in range(rng.choice((1, 1, 2, 3))):
        place, kind = rng.randrange(len(chunks)), rng.randrange(7)
        name, body = chunks[place]
        if kind == 0 and name == b"IDAT":
            chunks[place] = (name, zlib.compress(spoiled(rng, unpacked(body))))
        elif kind <= 1:
            sizes = (rng.choice((*EDGES, 6)) % 2**32, rng.choice((*EDGES, 5)) % 2**32)
            fields = (rng.choice((1, 2, 4, 8, 16, 3)), rng.choice((0, 2, 3, 4, 6, 7)), 0, 0, rng.choice((0, 1)))
            chunks[0] = (b"IHDR", struct.pack(">IIBBBBB", *(sizes if rng.random() < 0.5 else (6, 5)), *fields))
        elif kind == 2:
            chunks[place] = (name, spoiled(rng, body))
        elif kind == 3:
            chunks.insert(place, chunks[rng.randrange(len(chunks))])
        elif kind == 4 and len(chunks) > 1:
            del chunks[place]
        else:
            chunks.insert(place, rng.choice(OTHERS))
    return png(chunks)


def read_png(data: bytes, folder: Path) -> bool:
    accepted = read_picture(data, folder)
    if len(data) > 300 and accepted:
        assert len(cifar10.records(data, [0, 9], "it")) == 2 * (cifar10.PIXELS + 1)
    return accepted


def read_picture(data: bytes, folder: Path) -> bool:
    size, mode = (0, 0, 0, 4)[len(data) % 4], (None, "L", "RGB")[len(data) % 3]
    found = pictures.read(io.BytesIO(data), "it", mode, size)
    assert isinstance(found, np.ndarray)
    assert found.dtype == np.uint8
    assert found.size
    assert found.ndim == (3 if mode == "RGB" else 2) or (mode is None and found.ndim in (2, 3))
    assert found.shape[2:] in ((), (3,))
    assert not size or found.shape[:2] == (size, size)
    return True


def flat(width: int, height: int, depth: int, kind: int, channels: int) -> bytes:
    """Return a PNG whose header claims this size, with at most 20,000 lines of zeros."""
    pack, row = zlib.compressobj(9), bytes(1 + (width * depth * channels + 7) // 8)
    lines = min(height, 20_000)
    content = pack.compress(row * lines) + pack.flush()
    head = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)
    return png([(b"IHDR", head), (b"IDAT", content), (b"IEND", b"")])


def worst_png() -> Sequence[bytes]:
    """Return PNGs of 2^31 pixels a side, of the most that is let through in every depth, and with 256 MiB of text."""
    text = zlib.compress(bytes(1 << 28), 9)
    odd = [(b"zTXt", b"a\0\0" + text), (b"iCCP", b"a\0\0" + text), (b"iTXt", b"a\0\1\0\0\0" + text)]
    most = [
        flat(3400, 3500, *form) + bytes(shift)
        for form in ((8, 6, 4), (16, 0, 1), (8, 2, 3), (1, 0, 1))
        for shift in (0, 1)
    ]
    chunks = chunks_of(PNGS[0])
    return [flat(2**31 - 1, 2**31 - 1, 8, 6, 0), flat(30_000, 30_000, 1, 0, 1), *most, *(
        png([chunks[0], each, *chunks[1:]]) for each in odd
    )]  # fmt: skip


# --- the other kinds of pictures ---

KINDS = tuple(
    picture(mode, (6, 5), kind, **options)
    for kind, modes, options in (
        ("jpeg", ("RGB", "L", "CMYK"), {}),
        ("jpeg", ("RGB",), {"progressive": True}),
        ("gif", ("P", "L", "1"), {}),
        ("bmp", ("RGB", "L", "P", "1"), {}),
        ("tiff", ("RGB", "L", "1", "RGBA", "I;16", "CMYK"), {}),
        ("webp", ("RGB",), {}),
        ("tiff", ("RGB",), {"compression": "tiff_lzw"}),
        ("tiff", ("RGB",), {"compression": "tiff_adobe_deflate"}),
        ("tiff", ("RGB",), {"compression": "jpeg"}),
        ("webp", ("RGBA",), {"lossless": True}),
    )
    for mode in modes
)


def worst_pictures() -> Sequence[bytes]:
    """Return pictures of several kinds with headers that claim far more than there is, and large WebP pictures."""
    found = []
    gif = next(each for each in KINDS if each[:3] == b"GIF")
    found.append(gif[:6] + struct.pack("<HH", 65535, 65535) + gif[10:])
    jpeg = next(each for each in KINDS if each[:2] == b"\xff\xd8")
    place = jpeg.index(b"\xff\xc0")
    found += [
        jpeg[: place + 5] + struct.pack(">HH", *size) + jpeg[place + 9 :] for size in ((65500, 65500), (3400, 3500))
    ]
    bmp = next(each for each in KINDS if each[:2] == b"BM")
    found += [bmp[:18] + struct.pack("<ii", *size) + bmp[26:] for size in ((2**31 - 1, 2**31 - 1), (3400, -3500))]
    webp = picture("RGB", (3400, 3500), "webp")
    return [*found, webp, webp + b"\0"]


TARGETS = {
    "png": Target("png", make_png, read_png, worst_png),
    "pictures": Target("pictures", lambda rng: spoiled(rng, rng.choice(KINDS), KINDS), read_picture, worst_pictures),
}
