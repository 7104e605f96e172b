"""Search captured bytes for values and names that must not be there, in any encoding that can reasonably be decoded."""

import base64
import contextlib
import io
import zipfile
import zlib
from collections.abc import Iterator, Sequence

import numpy as np

LENGTH = 12
"""The length of a needle in bytes: too long to occur by chance."""
STEP = 200_000


def of_numbers(values: np.ndarray) -> set[bytes]:
    """Return needles for float32 numbers, three neighbours at a time: as they are, in other types and as text."""
    needles: set[bytes] = set()
    for place in range(0, len(values) - 5, 3):
        some = values[place : place + 6]  # six halves are as long as three floats
        for kind in ("<f4", ">f4", "<f8", ">f8", "<f2", ">f2"):
            needles.add(some.astype(kind).tobytes()[:LENGTH])
        needles |= of_bytes(some[:3].astype("<f4").tobytes())
        needles |= {text.encode() for value in some[:3] if len(text := repr(float(value))[:LENGTH]) == LENGTH}
    return needles


def of_bytes(data: bytes) -> set[bytes]:
    """Return needles for bytes: as they are, in hexadecimal digits, and in base64 at each of its three alignments."""
    if len(data) < LENGTH:
        raise ValueError(f"{data!r} is too short to be looked for: at least {LENGTH} bytes")
    texts = [data, data.hex().encode(), data.hex().upper().encode()]
    for code in (base64.b64encode, base64.urlsafe_b64encode):
        for shift in range(3):
            text = code(bytes(shift) + data).rstrip(b"=")
            texts.append(text[4:-1] if shift else text[:-1])  # without the characters that depend on the bytes around
    return {text[:LENGTH] for text in texts if len(text) >= LENGTH}


def of_name(name: str) -> set[bytes]:
    """Return needles for a word in UTF-8, hexadecimal digits, base64 and UTF-16."""
    return of_bytes(name.encode()) | {name.encode("utf-16-le")[:LENGTH], name.encode("utf-16-be")[:LENGTH]}


def found(needles: set[bytes], data: bytes) -> set[bytes]:
    """Return those of the needles that occur anywhere in the data."""
    seen: set[bytes] = set()
    for begin in range(0, len(data), STEP):
        part = data[begin : begin + STEP + LENGTH]
        seen |= needles & {part[place : place + LENGTH] for place in range(max(0, len(part) - LENGTH + 1))}
    return seen


def unpacked(data: bytes) -> Iterator[bytes]:
    """Yield, unpacked, whatever is compressed in the data: gzip and zlib streams, and the files of a zip archive."""
    for mark, bits in (
        (b"\x1f\x8b\x08", 31),
        (b"\x78\x01", 15),
        (b"\x78\x5e", 15),
        (b"\x78\x9c", 15),
        (b"\x78\xda", 15),
    ):
        place = data.find(mark)
        while place >= 0:
            with contextlib.suppress(zlib.error):
                yield zlib.decompressobj(bits).decompress(data[place : place + 2_000_000], 10_000_000)
            place = data.find(mark, place + 1)
    place = data.find(b"PK\x03\x04")
    if place >= 0 and data.find(b"PK\x05\x06", place) > 0:
        bad = (zipfile.BadZipFile, zlib.error, OSError)
        with contextlib.suppress(*bad), zipfile.ZipFile(io.BytesIO(data[place:])) as archive:
            yield from (archive.read(each) for each in archive.namelist())


def leaks(needles: set[bytes], streams: Sequence[bytes]) -> list[bytes]:
    """Return, sorted, all needles that occur in any of the streams or in what is compressed there."""
    seen: set[bytes] = set()
    for data in streams:
        seen |= found(needles, data)
        for inner in unpacked(data):
            seen |= found(needles, inner)
    return sorted(seen)
