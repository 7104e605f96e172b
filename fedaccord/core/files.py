"""Files that are whole or absent, whatever happens to the machine."""

import contextlib
import fcntl
import os
from pathlib import Path
from typing import IO

from fedaccord.core.errors import RunError


def make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{path}: not a folder, and cannot be made one: {error.strerror}") from None


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
        temporary.unlink(missing_ok=True)
        raise RunError(f"{path}: cannot be written: {error.strerror}") from error


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
