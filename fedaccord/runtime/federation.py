"""A real federation: the server's process, a client's process, and all of it on one machine for a first try.

What travels is in engines/flower.py. Here is who plays which part, and what happens when one of them dies.
"""

import contextlib
import fcntl
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

from torch import nn

from fedaccord.config import Settings
from fedaccord.core.errors import EngineError, RunError, SettingsError
from fedaccord.core.files import flush_folder
from fedaccord.core.processes import activity, die_with
from fedaccord.core.records import ClientData, Examples, Prepare
from fedaccord.flower.certificates import make_authority, make_node_key
from fedaccord.runtime.build import (
    Simulation,
    client_parts,
    clients_of,
    federation_of,
    find_device,
    lay_out,
    parts_of,
    server_parts,
    site_of,
)
from fedaccord.runtime.drive import Outcome, drive
from fedaccord.runtime.folder import SETTINGS, RunFolder, experiment_of
from fedaccord.runtime.live import LineView, View
from fedaccord.tasks import PRESETS, Task

# ---------------------------------------------------------------- the two parts


def client_settings(settings: Settings) -> Settings:
    """As both ends see them: a real federation has Flower for an engine."""
    if settings.weighting == "population":
        raise SettingsError("weighting = population: the server of a real federation does not know all clients' data")
    if settings.device != "cpu":
        raise SettingsError(f"device = {settings.device}: a real federation trains on the CPU so far")
    return replace(settings, engine="flower", workers=None)


def member_of(
    settings: Settings, model: nn.Module, data: ClientData, client: int, folder: Path, prepare: Prepare, limits: Any
) -> Any:
    """A client's end. `model` must be built the same way everywhere; its first parameters come from the server."""
    from fedaccord.flower.engine import Member

    nobody = data[:0]
    site = site_of(settings, model, [nobody] * client + [data], prepare)
    return Member(client, site, folder, experiment_of(settings), limits)


def serve(
    grid: Any,
    settings: Settings,
    model: nn.Module,
    clients: int,
    validation: Examples | None,
    test: Examples | None,
    prepare: Prepare,
    folder: Path,
    choose_view: Callable[[Simulation], View | None] = lambda simulation: None,
) -> Outcome:
    """The server's end: run the rounds, or go on from the folder's last checkpoint."""
    from fedaccord.flower.engine import FlowerEngine

    model.to(find_device(settings.device))
    examples = validation if validation is not None else test
    if examples is not None:
        lay_out(model, prepare(examples.inputs[:2].clone(), None))
    engine = FlowerEngine(grid, experiment_of(settings), settings.deadline, settings.min_replies)
    federation = federation_of(settings, model, engine, clients, validation, test, prepare)
    simulation = Simulation(settings, federation, model, "flower: a real federation")
    opened = RunFolder(folder) if (folder / SETTINGS).is_file() else RunFolder.create(folder, settings)
    with opened as place:
        return drive(simulation, place, choose_view(simulation))


# ---------------------------------------------------------------- all on one machine

STOPPED = 130
"""The exit status when a person asked to stop."""


@dataclass
class Part:
    """A process of the federation, and how to start it again."""

    name: str
    words: list[str]
    process: "subprocess.Popen[bytes] | None" = None
    deaths: int = 0


class LocalFederation:
    """SuperLink, nodes and server as separate processes on loopback; whoever dies is started again.

    folder/keys, folder/run (the server's run folder), folder/node0 ... (each client's own), folder/*.log,
    folder/link.db (the SuperLink's). The folder is locked from here until `end`: two federations in one folder would
    mix up their keys and sign off each other's nodes.
    """

    MAX_DEATHS = 100
    SILENCE = 300.0
    """Seconds without the least sign of activity after which a SuperLink that does not answer is given up."""
    TELL = 15.0
    """Seconds between two lines that say what is being waited for."""

    def __init__(
        self,
        folder: Path,
        settings_file: Path,
        nodes: int,
        insecure: bool = False,
        json: bool = False,
        simulate: bool = True,
    ):
        self.folder, self.nodes, self.insecure = folder, nodes, insecure
        self.keys = folder / "keys"
        self.database = folder / "link.db"
        self.asked = False  # whether a person asked to stop
        for name in (folder, folder / "home"):
            name.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.lock = lock_folder(folder)
        if not insecure and not (self.keys / "secret").exists():
            make_authority(self.keys, ["localhost", "127.0.0.1"])
        for node in range(nodes):
            if not insecure and not (self.keys / f"node{node}").exists():
                make_node_key(self.keys / f"node{node}")
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        python = [sys.executable, "-m", "fedaccord.cli", "federation"]
        reach = ["--superlink", self.address]
        reach += ["--insecure"] if insecure else ["--root-certificates", str(self.keys / "ca.pem")]
        common = ["--config", str(settings_file), *reach, *(["--simulate"] if simulate else [])]
        secret = [] if insecure else ["--secret", str(self.keys / "secret")]
        self.link = Part("superlink", self.superlink_words())
        self.members = [
            Part(
                f"node{node}",
                [*python, "node", *common, "--client", str(node), "--private", str(folder / f"node{node}"),
                 *([] if insecure else ["--key", str(self.keys / f"node{node}")])],
            )
            for node in range(nodes)
        ]  # fmt: skip
        self.server = Part(
            "server", [*python, "server", *common, *secret, "--run", str(folder / "run"), *(["--json"] if json else [])]
        )

    def superlink_words(self) -> list[str]:
        words = [
            str(Path(sys.executable).with_name("flower-superlink")),
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
        ]
        words += ["--database", str(self.database), "--disable-runtime-dependency-installation"]
        words += ["--isolation", "process"]
        if self.insecure:
            return [*words, "--insecure"]
        for flag, file in (("certfile", "server.pem"), ("keyfile", "server.key"), ("ca-certfile", "ca.pem")):
            words += [f"--ssl-{flag}", str(self.keys / file)]
        return [*words, "--enable-supernode-auth", "--superexec-auth-secret-file", str(self.keys / "secret")]

    def parts(self) -> list[Part]:
        return [self.link, *self.members, self.server]

    def start(self, part: Part) -> None:
        """Start a process; the SuperLink until it answers, again if it is killed on the way."""
        self.spawn(part)
        while part is self.link:
            try:
                self.wait_for_link()
                if not (self.insecure or self.asked):
                    self.register()
                return
            except EngineError:
                assert part.process is not None
                killed = part.process.returncode is not None and part.process.returncode < 0
                part.deaths += killed
                if not killed or part.deaths > self.MAX_DEATHS:
                    raise
            self.spawn(part)

    def spawn(self, part: Part) -> None:
        """Create the process. The server speaks to the terminal, the others write into a log file each."""
        if part is self.link:
            self.set_aside_half_made()
        env = {
            **os.environ,
            "FLWR_HOME": str(self.folder / "home" / part.name),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
        }
        with open(self.folder / f"{part.name}.log", "ab") as log:
            part.process = subprocess.Popen(
                part.words,
                stdin=subprocess.DEVNULL,
                stdout=None if part is self.server else log,
                stderr=None if part is self.server else log,
                env=env,
                start_new_session=part is not self.server,  # Ctrl-C is for the server alone; it ends the rest
                preexec_fn=partial(die_with, os.getpid()),  # none outlives this one
            )
        if part is self.server and self.asked:
            part.process.terminate()  # it was not there yet when the signal came

    def set_aside_half_made(self) -> None:
        """Rename a database that the SuperLink was killed in while making it: no SuperLink could start with it again.

        Nothing is lost with it: nodes are registered at every start, and a run goes on from the server's checkpoint.
        """
        from fedaccord.flower.engine import is_whole

        if not any_there(self.database) or is_whole(self.database):
            return
        names = (self.folder / f"link-half-made-{number}.db" for number in itertools.count(1))
        aside = next(name for name in names if not any_there(name))
        for file, name in zip(files_of(self.database), files_of(aside), strict=True):
            with contextlib.suppress(FileNotFoundError):
                file.rename(name)
        flush_folder(self.folder)
        say(f"{self.database} was never finished, or is another Flower version's: it is now {aside.name}, and a new "
            "one is made; nothing is lost")  # fmt: skip

    def register(self) -> None:
        from fedaccord.flower.engine import Link, register

        link = Link(self.address, (self.keys / "ca.pem").read_bytes())
        assert self.link.process is not None
        try:
            for node in range(self.nodes):
                register(link, self.keys / f"node{node}.pub")
        except EngineError:
            with contextlib.suppress(subprocess.TimeoutExpired):  # if it was killed, its connections close first
                self.link.process.wait(5)
            raise

    def wait_for_link(self) -> None:
        """Return when the SuperLink answers on its port, however long that takes, as long as it does anything at all.

        Also when a person asked to stop.
        """
        process, log = self.link.process, self.folder / "superlink.log"
        assert process is not None
        new = not self.database.exists()
        began = told = moved = time.monotonic()
        seen: object = None
        while not self.asked:
            if (status := process.poll()) is not None:
                raise EngineError(f"the SuperLink ended with status {status} before it answered; see {log}")
            with socket.socket() as knock:
                if knock.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            now = time.monotonic()
            sizes = [file.stat().st_size if file.exists() else 0 for file in (log, *files_of(self.database))]
            if (signs := (sizes, activity(process.pid))) != seen:
                seen, moved = signs, now
            elif now - moved > self.SILENCE:
                raise EngineError(f"the SuperLink does not answer, and did nothing for {self.SILENCE:.0f} s; see {log}")
            if now - told >= self.TELL:
                doing = "makes its database" if new and self.database.exists() else "starts"
                say(f"waiting for the SuperLink, which {doing} ({now - began:.0f} s so far); Ctrl-C ends it")
                told = now
            time.sleep(0.05)

    def run(self) -> int:
        """Until the server is done; its exit status. A part that dies is started again."""
        with self.all_up():
            while self.server.process is not None:
                for part in self.parts():
                    assert part.process is not None
                    status = part.process.poll()
                    if status is None:
                        continue
                    if part is self.server and (status in (0, 2, 130) or self.asked):
                        return status if status in (0, 2) else STOPPED
                    part.deaths += 1
                    if status == 2 or part.deaths > self.MAX_DEATHS:
                        raise EngineError(f"{part.name} cannot go on; see {self.folder / part.name}.log")
                    try:
                        self.start(part)
                    except EngineError:
                        if part.process.poll() is None:
                            raise
                time.sleep(0.1)
        return STOPPED

    @contextlib.contextmanager
    def all_up(self) -> Iterator[None]:
        """Everything started, unless a person asks to stop meanwhile; everything ended in the end."""

        def handle(number: int, frame: Any) -> None:
            self.asked = True
            if number == signal.SIGTERM and self.server.process is not None:
                self.server.process.terminate()  # Ctrl-C reaches it by itself

        before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            for part in self.parts():
                if not self.asked:
                    self.start(part)
            yield
        finally:
            self.end()
            for number, handler in before.items():
                signal.signal(number, handler)

    def end(self) -> None:
        """Ask the nodes first, so that they sign off, then the SuperLink; whoever does not listen is killed.

        The folder is another's then.
        """
        for part in (self.server, *self.members, self.link):
            if part.process is not None and part.process.poll() is None:
                part.process.terminate()
        for part in self.parts():
            if part.process is not None:
                try:
                    part.process.wait(15)
                except subprocess.TimeoutExpired:
                    part.process.kill()
                    part.process.wait()
        self.lock.close()


def lock_folder(folder: Path) -> IO[str]:
    """Take the folder for this process until the file is closed, or fail at once."""
    lock = open(folder / ".lock", "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise RunError(f"{folder}: a federation is running here already") from None
    return lock


def files_of(database: Path) -> list[Path]:
    """The files of an SQLite database, the main one first."""
    return [database.with_name(database.name + suffix) for suffix in ("", "-wal", "-shm", "-journal")]


def any_there(database: Path) -> bool:
    return any(file.exists() for file in files_of(database))


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


# ---------------------------------------------------------------- the two parts of a task


def member_of_task(
    task: Task, settings: Settings, client: int, folder: Path, limits: Any, simulate: bool = False
) -> Any:
    """A client of this task, with this machine's data.

    `simulate`: everybody divides the same data set alike, as the settings say, and takes only what is theirs.
    """
    parts = parts_of(task, settings) if simulate else client_parts(*own(task, settings), client)
    count = clients_of(parts.settings)
    if not 0 <= client < count:
        raise SettingsError(f"--client {client}: there are 0 to {count - 1}")
    mine = parts.clients[client if simulate else 0]
    return member_of(client_settings(parts.settings), parts.model, mine, client, folder, parts.prepare, limits)


def serve_task(
    task: Task,
    settings: Settings,
    grid: Any,
    folder: Path,
    choose_view: Callable[..., Any] = LineView,
    simulate: bool = False,
) -> Outcome:
    """The server of this task: it has its own validation and test set, and no client's data."""
    parts = parts_of(task, settings) if simulate else server_parts(*own(task, settings))
    return serve(
        grid,
        client_settings(parts.settings),
        parts.model,
        clients_of(parts.settings),
        parts.validation,
        parts.test,
        parts.prepare,
        folder,
        choose_view,
    )


def own(task: Task, settings: Settings) -> tuple[Task, Settings]:
    """A data set that is the same on every machine is nobody's own."""
    if task.name in PRESETS:
        raise SettingsError(
            f"task {task.name} is the same data set on every machine: --simulate divides it among the clients as the "
            "settings say; for a client's own data, bring a task with load_my_data (docs/deploy.md)"
        )
    return task, settings
