"""Archives and gzip files, read within bounds: whatever a header claims, memory and time stay in proportion.

Nothing is ever extracted to disk, so no name in an archive can lead out of a folder.
"""

import contextlib
import gzip
import io
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, BinaryIO, cast

from fedaccord.core.errors import DataError, FedAccordError

Files = Iterator[tuple[str, bytes]]

CHUNK = 1 << 20
LARGEST = 1 << 27
"""The most bytes that one unpacked file may have; the largest of the known sets has 47 million."""
HEADERS = 1 << 14
"""The most bytes of headers before a member's content in a tar archive; one header takes 512."""
MEMBERS = 100_000
"""The most members that an archive may have; that of Speech Commands has 64,727 recordings."""
ARCHIVE = 1 << 32
"""The most bytes that a whole archive may unpack to; that of Speech Commands unpacks to 2.1 billion."""
DAMAGED = (tarfile.TarError, OSError, EOFError, zlib.error, ValueError, LookupError, OverflowError, RecursionError)
"""The exceptions that gzip and tarfile raise for damaged bytes."""


def read_file(path: Path, most: int = LARGEST) -> bytes:
    """Return the bytes of a regular file; raise DataError if it has more than `most` of them."""
    try:
        if not path.is_file():  # a pipe or a device would never end
            raise DataError(f"{path}: is not a file")
        with open(path, "rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    if len(data) > most:
        raise DataError(f"{path}: has more than {most:,} bytes, too many for what it should be")
    return data


def gunzip(data: bytes, label: object, most: int = LARGEST) -> bytes:
    """Return the unpacked bytes of a gzip file; raise DataError if there are more than `most` of them."""
    unpacked = io.BytesIO()
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            while chunk := stream.read(CHUNK):
                unpacked.write(chunk)
                if unpacked.tell() > most:
                    raise DataError(f"{label}: unpacks to more than {most:,} bytes; delete it and fetch it again")
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{label}: truncated or corrupt gzip file: {error}") from error
    return unpacked.getvalue()


class Forward:
    """A stream that is only read forwards, and of which no more than `left` bytes may be read."""

    def __init__(self, stream: IO[bytes], label: object):
        self.stream, self.label = stream, label
        self.position = 0
        self.left = 0

    def allow(self, amount: int) -> None:
        """Allow at most this many bytes to be read from here on."""
        self.left = amount

    def tell(self) -> int:
        return self.position

    def read(self, amount: int) -> bytes:
        if not 0 <= amount <= self.left:
            raise DataError(f"{self.label}: a header claims {amount:,} bytes, of which {self.left:,} are believed")
        found = io.BytesIO()  # it grows with what is there, not with what is claimed
        while amount and (part := self.stream.read(min(amount, CHUNK))):
            amount -= found.write(part)
        self.position += found.tell()
        self.left -= found.tell()
        if self.position > ARCHIVE:
            raise DataError(f"{self.label}: unpacks to more than {ARCHIVE:,} bytes")
        return found.getvalue()

    def seek(self, target: int) -> int:
        """Skip forwards to a position and return the position reached; raise DataError if the target lies behind."""
        if not self.position <= target <= ARCHIVE:
            raise DataError(f"{self.label}: a header points to byte {target:,} from byte {self.position:,}")
        while target > self.position and (part := self.stream.read(min(target - self.position, CHUNK))):
            self.position += len(part)
        return self.position


def members(archive: Path | IO[bytes], wanted: Callable[[str], str | None]) -> Files:
    """Yield (our name, bytes) of the wanted members of a tar archive, gzipped or plain; extract nothing to disk.

    `wanted` maps a member's name to our name of it, or to None if the member is not wanted.
    """
    label = archive if isinstance(archive, Path) else "archive"
    try:
        with contextlib.ExitStack() as opened:
            stream: IO[bytes] = opened.enter_context(open(archive, "rb")) if isinstance(archive, Path) else archive
            if isinstance(archive, Path) and is_gzip(archive):
                stream = cast(BinaryIO, opened.enter_context(gzip.GzipFile(fileobj=stream)))
            forward = Forward(stream, label)
            forward.allow(HEADERS)
            tar = opened.enter_context(tarfile.TarFile(fileobj=cast(BinaryIO, forward), mode="r"))
            for _ in range(MEMBERS):
                if (member := tar.next()) is None:
                    return
                tar.members.clear()  # type: ignore[attr-defined]  # otherwise it would remember them all
                name = wanted(member.name.removeprefix("./"))
                if name is not None and member.isreg():
                    if member.issparse():  # its holes would be filled here
                        raise DataError(f"{label}: {member.name} is stored as a sparse file")
                    forward.seek(member.offset_data)
                    forward.allow(LARGEST)
                    content = forward.read(member.size)
                    if len(content) < member.size:
                        raise tarfile.ReadError("unexpected end of data")
                    yield name, content
                forward.allow(HEADERS)
            raise DataError(f"{label}: has more than {MEMBERS:,} members")
    except FedAccordError:
        raise
    except DAMAGED as error:
        raise DataError(f"{label}: truncated or corrupt archive: {error}") from error


def is_gzip(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(2) == b"\x1f\x8b"
