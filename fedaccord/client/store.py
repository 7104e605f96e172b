"""Where theta_i lives between rounds (line 12): in memory, or one file a client on disk. It never travels.

A generation is named by the round that made it, and a round reads the newest one from before it. So a round that is
repeated after a crash starts from what it started from the first time, without anyone having to put things back.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError

from fedaccord.core.errors import RunError
from fedaccord.core.files import write_durably
from fedaccord.core.records import Params

MEMORY_SHARE = 0.25
"""Of this machine's memory, what the clients' private parameters may take before they go to disk."""


class PrivateStore:
    """The private parameters of all clients of this machine."""

    def __init__(self, folder: Path | None, in_memory: bool):
        self.temporary = None if folder or in_memory else Path(tempfile.mkdtemp(prefix="fedaccord-"))
        self.folder = folder or self.temporary
        self.in_memory = in_memory
        self.held: dict[int, tuple[int, Params]] = {}  # client -> its newest generation
        self.unsaved: set[int] = set()
        self.newest: dict[int, int] = {}  # client -> the round of its newest generation

    def get(self, client: int, round: int) -> Params | None:
        """What the client kept in the newest round before `round`; None if it never trained."""
        if client in self.held and self.held[client][0] < round:
            return self.held[client][1]
        found = [(generation, path) for generation, path in self.generations(client) if generation < round]
        return read(found[-1][1]) if found else None

    def put(self, client: int, round: int, params: Params) -> None:
        self.newest[client] = round
        if self.in_memory:
            self.held[client] = (round, params)
            self.unsaved.add(client)
        else:
            self.write(client, round, params)

    def expect(self, newest: Mapping[int, int]) -> None:
        """Go on from a checkpoint that names every client's newest generation; an error if one is gone."""
        self.newest = dict(newest)
        for client, round in newest.items():
            if round not in [generation for generation, _ in self.generations(client)]:
                raise RunError(f"{self.folder}/{client}: what client {client} kept from round {round} is missing")

    def save(self) -> dict[int, int]:
        """Make everything durable, before the server's checkpoint of the round; each client's newest generation."""
        if self.folder is not None:
            for client in sorted(self.unsaved):
                self.write(client, *self.held[client])
        self.unsaved.clear()
        return dict(self.newest)

    def prune(self, committed: int) -> None:
        """Forget what no checkpoint of round `committed` or later could need."""
        if self.folder is None or not self.folder.exists():
            return
        for client in self.newest:
            old = [path for generation, path in self.generations(client) if generation <= committed]
            for path in old[:-1]:
                path.unlink()

    def close(self) -> None:
        if self.temporary is not None:
            shutil.rmtree(self.temporary, ignore_errors=True)

    def generations(self, client: int) -> list[tuple[int, Path]]:
        """(round, file) of what is on disk, oldest first."""
        if self.folder is None or not (self.folder / str(client)).is_dir():
            return []
        paths = sorted((self.folder / str(client)).glob("*.safetensors"))
        return [(int(path.name.split("-")[0]), path) for path in paths]

    def write(self, client: int, round: int, params: Params) -> None:
        assert self.folder is not None
        data = safetensors.torch.save({name: value.cpu().contiguous() for name, value in params.items()})
        own = self.folder / str(client)
        path = own / f"{round:06d}-{hashlib.sha256(data).hexdigest()[:16]}.safetensors"
        try:
            own.mkdir(parents=True, exist_ok=True, mode=0o700)
            for generation, other in self.generations(client):
                if generation >= round and other != path:  # of this round done before, or of rounds to be done again
                    other.unlink()
            write_durably(path, data, mode=0o600)
        except OSError as error:
            raise RunError(f"{path}: cannot be written: {error.strerror}") from error


def read(path: Path) -> Params:
    """The file's name carries its checksum."""
    try:
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest()[:16] != path.stem.split("-")[1]:
            raise RunError(f"{path}: damaged, its checksum is wrong")
        loaded: Params = safetensors.torch.load(data)
        return loaded
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path}: cannot be read: {error}") from error


def open_store(folder: Path | None, where: str, clients: int, like: Params) -> PrivateStore:
    """In memory or on disk, as `where` says; auto: on disk if it would not fit. `like`: what one client keeps."""
    fits = fits_in_memory(clients, sum(value.numel() * value.element_size() for value in like.values()))
    return PrivateStore(folder, in_memory=where == "memory" or (where == "auto" and fits))


def fits_in_memory(clients: int, bytes_each: int) -> bool:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return clients * bytes_each <= MEMORY_SHARE * total
