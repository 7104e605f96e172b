"""Files that are either complete or absent, whatever happens to the machine."""

import contextlib
import errno
import fcntl
import json
import os
from pathlib import Path
from typing import IO, Any

from fedaccord.core.errors import RunError


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Create a folder and its missing parents; raise RunError if that fails."""
    try:
        path.mkdir(mode, parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{path}: not a folder, and cannot be made one: {error.strerror}") from None


def make_durably(path: Path, mode: int = 0o777) -> None:
    """Create a folder and its missing parents so that they survive a power cut; raise OSError if that fails."""
    if not path.is_dir():
        make_durably(path.parent)
        path.mkdir(mode, exist_ok=True)
        flush_folder(path.parent)


def cannot_be_written(path: Path, error: OSError) -> RunError:
    """Return the error to raise for a full disk, a read-only folder or a failing disk."""
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
    """Delete the temporary files that killed processes have left in folders to which no other process writes."""
    for folder in folders:
        for rest in folder.glob(".*.part"):
            rest.unlink(missing_ok=True)


def write_durably(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write a file that is complete or absent after a crash, and on disk when this returns.

    A temporary file beside it is flushed to disk and renamed, then the folder is flushed; a failure leaves no rest.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        flush_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):  # it stays in a folder that has become read-only
            temporary.unlink()
        raise cannot_be_written(path, error) from error


NOTE = 7 << 20
"""The most bytes that a JSON text may have. In Python its values take up to 20 times as many."""


def parse_json(text: bytes | str, most: int = NOTE) -> Any:
    """Return the value of a JSON text; raise ValueError if it is invalid, too long or too deeply nested."""
    if len(text) > most:
        raise ValueError(f"{len(text):,} bytes of JSON, expected {most:,} at most")
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("values within values, too deep to read") from None


def read_json(path: Path) -> Any:
    """Return the value of a JSON file; raise ValueError if it is invalid, too deeply nested, or too long to be read."""
    return parse_json(read_up_to(path, NOTE))


def read_up_to(path: Path, most: int) -> bytes:
    """Return the bytes of a file, but no more than `most` + 1: one too many tells that the file is too long."""
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
    """Close the lock files that a forked process has inherited, which it would otherwise hold as long as it lives."""
    for number in map(int, os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else ():
        with contextlib.suppress(OSError):  # the listing's own descriptor is closed by now
            if os.readlink(f"/proc/self/fd/{number}").endswith(f"/{LOCK}"):
                os.close(number)


def lock_folder(folder: Path, taken: str) -> IO[str]:
    """Lock a folder until the returned file is closed or the process ends; raise RunError(`taken`) if it is locked."""
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
