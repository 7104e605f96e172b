"""Files that are whole or absent, whatever happens to the machine."""

import contextlib
import errno
import fcntl
import json
import os
from pathlib import Path
from typing import IO, Any

from fedaccord.core.errors import RunError


def make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{path}: not a folder, and cannot be made one: {error.strerror}") from None


def make_durably(path: Path, mode: int = 0o777) -> None:
    """Make a folder, with those above it that are missing, that is there after a power cut; an OSError if it cannot."""
    if not path.is_dir():
        make_durably(path.parent)
        path.mkdir(mode, exist_ok=True)
        flush_folder(path.parent)


def cannot_be_written(path: Path, error: OSError) -> RunError:
    """What to say of a full disk, a folder that is read-only, or a disk that fails."""
    todo = {errno.ENOSPC: "make room", errno.EDQUOT: "make room", errno.EFBIG: "allow larger files"}
    return RunError(
        f"{path}: cannot be written: {error.strerror}; {todo.get(error.errno or 0, 'make it writable')} and start "
        "again: a run goes on from its last checkpoint"
    )


def remove(path: Path) -> None:
    """Delete a file that is not needed any more."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise cannot_be_written(path, error) from error


def clear_rests(*folders: Path) -> None:
    """Delete what processes that were killed while they wrote have left in folders that nobody else writes to."""
    for folder in folders:
        for rest in folder.glob(".*.part"):
            rest.unlink(missing_ok=True)


def write_durably(path: Path, data: bytes, mode: int = 0o644) -> None:
    """A temporary file beside it, flushed to disk, renamed, the folder flushed; a failure leaves no rest."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        flush_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):  # a folder that has become read-only keeps it
            temporary.unlink()
        raise cannot_be_written(path, error) from error


NOTE = 7 << 20
"""Bytes of a JSON text at most. Python's values take up to 20 times as much."""


def parse_json(text: bytes | str, most: int = NOTE) -> Any:
    """The values of a JSON text; a ValueError if it is not one, too long or too deep."""
    if len(text) > most:
        raise ValueError(f"{len(text):,} bytes of JSON, expected {most:,} at most")
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("values within values, too deep to read") from None


def read_json(path: Path) -> Any:
    """The same of a file, of which no more is read than may be there."""
    return parse_json(read_up_to(path, NOTE))


def read_up_to(path: Path, most: int) -> bytes:
    """The bytes of a file, or one more than `most` if it has more."""
    with open(path, "rb") as file:
        return file.read(most + 1)


def flush_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


LOCK = ".lock"


def let_go_of_locks() -> None:
    """In a forked process: close the locks that it has inherited, which would be held as long as it lives."""
    for number in map(int, os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else ():
        with contextlib.suppress(OSError):  # the listing's own
            if os.readlink(f"/proc/self/fd/{number}").endswith(f"/{LOCK}"):
                os.close(number)


def lock_folder(folder: Path, taken: str) -> IO[str]:
    """Lock a folder until the file is closed or the process ends; if another process has it, `taken` says so."""
    try:
        lock = open(folder / LOCK, "w")
    except OSError as error:
        raise RunError(f"{folder}: cannot be written: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise RunError(f"{folder}: {taken}") from None
    return lock
