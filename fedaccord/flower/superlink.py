"""The SuperLink of a federation on one machine: its command line, and the state of its database after a kill."""

import contextlib
import itertools
import socket
import sqlite3
import sys
from pathlib import Path

from fedaccord.core.files import flush_folder
from fedaccord.flower.adapter import database_version


def command_line(port: int, database: Path, keys: Path | None) -> list[str]:
    """Return the argv that starts a SuperLink on loopback, in plaintext and open to anybody if there are no keys."""
    words = [str(Path(sys.executable).with_name("flower-superlink")), "--host", "127.0.0.1", "--port", str(port)]
    words += ["--database", str(database), "--disable-runtime-dependency-installation", "--isolation", "process"]
    if keys is None:
        return [*words, "--insecure"]
    for flag, file in (("certfile", "server.pem"), ("keyfile", "server.key"), ("ca-certfile", "ca.pem")):
        words += [f"--ssl-{flag}", str(keys / file)]
    return [*words, "--enable-supernode-auth", "--superexec-auth-secret-file", str(keys / "secret")]


def free_port() -> int:
    """Return the number of a port on loopback that nobody uses."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def is_whole(database: Path) -> bool:
    """Return whether the database of a SuperLink that is not running is complete, in the version of this flwr.

    A chain of migrations makes it, none of which SQLite rolls back when the process is killed in it. Each is recorded
    after its last statement, so a database that names the last one has had all of them.
    """
    if not database.is_file():
        return False
    table, wanted = database_version()
    try:
        with contextlib.closing(sqlite3.connect(database)) as opened:
            found = {version for (version,) in opened.execute(f"SELECT version_num FROM {table}")}
    except sqlite3.Error:
        return False
    return found == wanted


def set_aside(database: Path) -> Path | None:
    """Rename an incomplete database, with which no SuperLink could start; return its new path, if any.

    Nothing is lost with it: nodes are registered at every start, and a run goes on from the server's checkpoint.
    """
    if not any_there(database) or is_whole(database):
        return None
    names = (database.with_name(f"{database.stem}-half-made-{number}.db") for number in itertools.count(1))
    aside = next(name for name in names if not any_there(name))
    for file, name in zip(files_of(database), files_of(aside), strict=True):
        with contextlib.suppress(FileNotFoundError):
            file.rename(name)
    flush_folder(database.parent)
    return aside


def files_of(database: Path) -> list[Path]:
    """List the files of an SQLite database, the main one first."""
    return [database.with_name(database.name + suffix) for suffix in ("", "-wal", "-shm", "-journal")]


def any_there(database: Path) -> bool:
    """Return whether any file of a database exists."""
    return any(file.exists() for file in files_of(database))
