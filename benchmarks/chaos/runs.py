"""Runs of a small task, each in a process of its own that may be killed, and what they leave behind."""

import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from multiprocessing.process import BaseProcess
from pathlib import Path

from fedaccord.cli import main

ENGINES = ("serial", "pool", "stacked")
ROUNDS = 8
SMALL = ("digits", "--method", "FA+RM+AH", "--clients", "3", "--split", "dirichlet", "--rounds", str(ROUNDS))
"""The arguments of a run that takes a second, has parameters that clients keep, and has a tuner."""

PATIENCE = 300
"""The seconds after which a process that has not ended counts as hanging."""


@dataclass(frozen=True)
class Ended:
    """What a command left: its exit code, what it printed, and the hashes in its last line, if it came that far."""

    code: int
    said: str
    complained: str

    @property
    def hashes(self) -> tuple[str, str] | None:
        """The hashes of the parameters and of the log; None if the command failed."""
        if self.code != 0:
            return None
        summary = json.loads(self.said.splitlines()[-1])
        return summary["params_sha256"], summary["log_sha256"]


def begin(words: Sequence[str], said: Path) -> BaseProcess:
    """Start a fedaccord command in a process of its own, forked from one that has loaded the libraries already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fedaccord.runtime.drive", "sklearn.datasets", "torch._dynamo"])
    process = context.Process(target=command, args=(list(words), said))
    process.start()
    return process


def command(words: list[str], said: Path) -> None:
    """Run a fedaccord command with its output in two files, and end this process with its exit code."""
    for number, kind in ((1, "out"), (2, "err")):
        os.dup2(os.open(said.with_suffix(f".{kind}"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), number)
    os._exit(main(words))


def end(process: BaseProcess, said: Path) -> Ended:
    """Wait for a process to end, and return what it left; one that hangs is killed, which its exit code shows."""
    process.join(PATIENCE)
    if process.is_alive():
        process.kill()
        process.join()
    texts = [file.read_text() if (file := said.with_suffix(f".{kind}")).exists() else "" for kind in ("out", "err")]
    return Ended(process.exitcode or 0, *texts)


def run_words(folder: Path, engine: str, words: Sequence[str] = SMALL) -> list[str]:
    return ["run", *words, "--engine", engine, "--runs", str(folder.parent), "--name", folder.name, "--json"]


def run(folder: Path, engine: str, words: Sequence[str] = SMALL) -> Ended:
    said = folder.with_name(f"{folder.name}-run")
    return end(begin(run_words(folder, engine, words), said), said)


def resume(folder: Path) -> Ended:
    said = folder.with_name(f"{folder.name}-resume")
    return end(begin(["resume", str(folder), "--json"], said), said)


@dataclass(frozen=True)
class Calm:
    """An undisturbed run: its hashes, and the seconds from its folder's appearance to its end."""

    hashes: tuple[str, str]
    seconds: float


@cache
def undisturbed(engine: str, words: Sequence[str] = SMALL) -> Calm:
    with tempfile.TemporaryDirectory(prefix="calm-") as scratch:
        folder, said = Path(scratch) / "run", Path(scratch) / "said"
        process = begin(run_words(folder, engine, words), said)
        appear(folder, process)
        began = time.monotonic()
        ended = end(process, said)
        if ended.hashes is None:
            raise RuntimeError(f"the undisturbed run ended with {ended.code}: {ended.complained}")
        return Calm(ended.hashes, time.monotonic() - began)


def appear(folder: Path, process: BaseProcess) -> None:
    """Wait for the run folder to appear, since whatever could be lost is in it."""
    while not folder.exists() and process.is_alive():
        time.sleep(0.0005)
