"""Events in folders, which the kernel reports at the instant at which they happen (inotify)."""

import ctypes
import os
import select
import struct
from collections.abc import Collection, Iterator
from pathlib import Path

MODIFY, MOVED_TO, CREATE, DELETE = 0x2, 0x80, 0x100, 0x200
HEAD = struct.Struct("iIII")  # watch, kind of event, cookie, length of the name that follows


class Events:
    """A watch on folders that reports files that are made, written to, renamed or deleted in them."""

    def __init__(self, folders: Collection[Path]):
        self.library = ctypes.CDLL(None, use_errno=True)
        self.descriptor = self.library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        for folder in folders:
            mask = MODIFY | MOVED_TO | CREATE | DELETE
            if self.library.inotify_add_watch(self.descriptor, os.fsencode(folder), mask) < 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(folder))

    def __enter__(self) -> "Events":
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self.descriptor)

    def within(self, seconds: float) -> Iterator[str]:
        """Yield the name of the file of each event, until there is none for this many seconds."""
        while select.select([self.descriptor], [], [], seconds)[0]:
            data = os.read(self.descriptor, 65_536)
            while data:
                *_, length = HEAD.unpack_from(data)
                yield data[HEAD.size : HEAD.size + length].rstrip(b"\0").decode()
                data = data[HEAD.size + length :]
