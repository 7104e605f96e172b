"""NumPy's .npz files, read within bounds: what their headers claim is believed only if the bytes can be there."""

import math
import tokenize
import zipfile
import zlib
from typing import BinaryIO

import numpy as np
from numpy.lib import format as npy

from fedaccord.core.errors import DataError, first_line

SMALL = 1 << 26
"""How many bytes a file may unpack to, however small it is."""
RATIO = 64
"""How many times its size a larger file may unpack to: it is no decompression bomb if it costs as much to send."""
MEMBERS = 1000
SUFFIX = ".npy"
NAMELESS = "holds one array without a name, expected an .npz file with x and y"
UNCOMPRESSED = "save it uncompressed: numpy.savez"
OBJECTS = "it holds Python objects in place of numbers"

UNREADABLE = (
    zipfile.BadZipFile, zlib.error, tokenize.TokenError, ValueError, LookupError, TypeError, AttributeError,
    SyntaxError, OSError, EOFError, RuntimeError, MemoryError, OverflowError, NotImplementedError,
)  # fmt: skip
"""The exceptions that zipfile and NumPy raise for damaged or foreign bytes: each wrong field has its own."""


def read(stream: BinaryIO, label: object) -> dict[str, np.ndarray]:
    """Read all arrays of an .npz file, by their names in lower case; raise DataError if anything is damaged."""
    try:
        if stream.read(len(npy.MAGIC_PREFIX)) == npy.MAGIC_PREFIX:
            raise DataError(f"{label}: {NAMELESS}")
        size = stream.seek(0, 2)
        with zipfile.ZipFile(stream) as archive:
            members = archive.infolist()
            check(members, size, label)
            arrays = [member for member in members if member.filename.endswith(SUFFIX)]
            return {each.filename.removesuffix(SUFFIX).lower(): array(archive, each) for each in arrays}
    except DataError:
        raise
    except zipfile.BadZipFile as error:
        raise DataError(f"{label}: it is damaged, or of another kind") from error
    except UNREADABLE as error:
        raise DataError(f"{label}: {first_line(error) or type(error).__name__}") from error


def check(members: list[zipfile.ZipInfo], size: int, label: object) -> None:
    """Raise DataError for an archive that would unpack to far more than its size, or that NumPy never writes."""
    if len(members) > MEMBERS:
        raise DataError(f"{label}: holds {len(members):,} arrays, expected a few")
    most, total = max(SMALL, RATIO * size), sum(member.file_size for member in members)
    if total > most:
        raise DataError(
            f"{label}: {size:,} bytes that unpack to {total:,}, more than {most:,}; if it is no mistake, {UNCOMPRESSED}"
        )
    for member in members:
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise DataError(f"{label}: {member.filename} is packed in a way that NumPy does not use")


def array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """Read one array after comparing its header with the bytes that are there."""
    with archive.open(member) as stream:
        version = npy.read_magic(stream)
        header = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
        if header is None:
            raise ValueError(f"{member.filename} is of version {version}, expected 1.0 or 2.0")
        shape, _, kind = header(stream)
        if kind.hasobject:
            raise ValueError(OBJECTS)
        claimed, there = math.prod(shape) * kind.itemsize, member.file_size - stream.tell()
        if claimed != there or any(length < 0 for length in shape):
            raise ValueError(f"{member.filename} claims {shape} of {kind}, {claimed:,} bytes, and has {there:,}")
        if not kind.itemsize and math.prod(shape) > member.file_size:
            raise ValueError(f"{member.filename} claims {math.prod(shape):,} values of no size")
    with archive.open(member) as stream:
        found: np.ndarray = npy.read_array(stream, allow_pickle=False)
    return found
