"""What clients keep between rounds (line 12): in memory, or in a folder per client on disk. It is never sent.

A generation is named by the round that made it, and every order names, for each client, the generation it goes on from:
its last round that counted. So a round that is repeated, refused or rolled back leaves no trace: the next one starts
from what it would have started from without it.
"""

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from fedaccord.core.errors import RunError, UpdateRefused
from fedaccord.core.files import cannot_be_written, make_durably, remove, write_durably
from fedaccord.core.packages import decode, encode, flatten, unflatten
from fedaccord.core.records import Packages, Params, size_of

MEMORY_SHARE = 0.25
"""The share of this machine's memory that the clients may fill before they keep things on disk."""
NAME = re.compile(r"([0-9]+)-[0-9a-f]{16}\.safetensors")
"""The name of a file: its generation, and the start of its checksum."""


class ClientStore:
    """A store for what all clients of this machine keep."""

    def __init__(self, folder: Path | None, in_memory: bool):
        self.temporary = None if folder or in_memory else Path(tempfile.mkdtemp(prefix="fedaccord-"))
        self.folder = folder or self.temporary
        self.in_memory = in_memory
        self.held: dict[int, dict[int, Packages]] = {}  # client -> generation -> what it kept
        self.unsaved: set[tuple[int, int]] = set()

    def get(self, client: int, generation: int) -> Packages:
        """Return what the client kept in this round, nothing for round 0; raise RunError if it is gone."""
        if generation == 0:
            return {}
        if generation in self.held.get(client, {}):
            return self.held[client][generation]
        path = dict(self.generations(client)).get(generation)
        if path is None:
            raise RunError(f"what client {client} kept in round {generation} is not here any more")
        return unflatten(read(path))

    def put(self, client: int, generation: int, packages: Packages, since: int) -> None:
        """Store what the client keeps after a round; `since`: the generation that this one went on from."""
        if not self.in_memory:
            self.write(client, generation, packages)
            return
        before = self.held.get(client, {})
        needed = may_be_needed(before, since)
        for old in before.keys() - set(needed):
            self.unsaved.discard((client, old))
        self.held[client] = {old: before[old] for old in needed} | {generation: packages}
        self.unsaved.add((client, generation))

    def expect(self, accepted: Mapping[int, int]) -> None:
        """Raise RunError if, after a resume, what a client kept in its last round that counted is missing on disk."""
        for client, generation in accepted.items():
            if generation not in dict(self.generations(client)):
                raise RunError(f"{self.folder}/{client}: what client {client} kept in round {generation} is missing")

    def save(self) -> None:
        """Write everything to disk durably, before the server's checkpoint of the round."""
        if self.folder is not None:
            for client, generation in sorted(self.unsaved):
                self.write(client, generation, self.held[client][generation])
        self.unsaved.clear()

    def prune(self, accepted: Mapping[int, int]) -> None:
        """Delete the files that are older than the generations that the oldest checkpoint goes on from."""
        if self.folder is None or not self.folder.exists():
            return
        for client, needed in accepted.items():
            for generation, path in self.generations(client):
                if generation < needed:
                    remove(path)

    def close(self) -> None:
        if self.temporary is not None:
            shutil.rmtree(self.temporary, ignore_errors=True)

    def generations(self, client: int) -> list[tuple[int, Path]]:
        """Return (round, file) of what a client has on disk, oldest first; files of other names are ignored."""
        if self.folder is None or not (self.folder / str(client)).is_dir():
            return []
        named = ((NAME.fullmatch(path.name), path) for path in (self.folder / str(client)).iterdir())
        return sorted((int(match[1]), path) for match, path in named if match)

    def write(self, client: int, generation: int, packages: Packages) -> None:
        """Write a generation, then remove what the same round made before: a full disk leaves all as it was.

        A crash in between leaves two files of a round that did not count: neither is read until it is done again, which
        leaves one. Newer generations stay: they are replaced if their rounds are done again, and otherwise no order
        names them.
        """
        assert self.folder is not None
        data = encode(flatten(packages))
        own = self.folder / str(client)
        path = own / f"{generation:06d}-{hashlib.sha256(data).hexdigest()[:16]}.safetensors"
        try:
            make_durably(own, mode=0o700)
        except OSError as error:
            raise cannot_be_written(own, error) from error
        write_durably(path, data, mode=0o600)
        for number, other in self.generations(client):
            if number == generation and other != path:
                remove(other)


def may_be_needed(generations: Iterable[int], since: int) -> list[int]:
    """Return the generations that a client may have to go on from again, after a round that went on from `since`.

    These are `since` itself, in case the new one does not count, and the one before it, as a model may turn out to be
    bad a round late.
    """
    return sorted(each for each in generations if each <= since)[-2:]


def read(path: Path) -> Params:
    """Return a file's tensors; raise RunError if they do not match the checksum in its name."""
    try:
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest()[:16] != path.stem.split("-")[1]:
            raise RunError(f"{path}: damaged, its checksum is wrong")
        return decode(data)
    except (OSError, UpdateRefused) as error:
        raise RunError(f"{path}: cannot be read: {error}") from error


def open_store(folder: Path | None, where: str, clients: int, like: Packages) -> ClientStore:
    """Open a store in memory or on disk, as `where` says; auto: on disk if it would not fit. `like`: what one keeps."""
    fits = fits_in_memory(clients, sum(size_of(params) for params in like.values()))
    return ClientStore(folder, in_memory=where == "memory" or (where == "auto" and fits))


def fits_in_memory(clients: int, bytes_each: int) -> bool:
    """Return whether three generations per client fit in memory: the newest, and the last two that counted."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return clients * 3 * bytes_each <= MEMORY_SHARE * total
