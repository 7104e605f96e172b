"""A real federation: the server's process, a client's process, and all of it on one machine for a first try.

What travels is in engines/flower.py. Here is who plays which part, and what happens when one of them dies.
"""

import contextlib
import fcntl
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
from typing import Any

from torch import nn

from fedaccord.certificates import make_authority, make_node_key
from fedaccord.config import Settings
from fedaccord.data.prepare import as_stored
from fedaccord.errors import EngineError, RunError, SettingsError
from fedaccord.live import LineView, View
from fedaccord.processes import die_with
from fedaccord.records import ClientData, Examples, Prepare
from fedaccord.runs import SETTINGS, RunFolder, experiment_of
from fedaccord.seeds import global_seed
from fedaccord.session import Outcome, drive
from fedaccord.simulation import Simulation, federation_of, find_device, lay_out, parts_of, site_of
from fedaccord.tasks import Task

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
    from fedaccord.engines.flower import Member

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
    from fedaccord.engines.flower import FlowerEngine

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


def first_model(settings: Settings, build: Callable[[], nn.Module]) -> nn.Module:
    """The same first parameters wherever it is built."""
    with global_seed(settings.seed, "init"):
        return build()


def member_of_mine(
    settings: Settings,
    build: Callable[[], nn.Module],
    data: ClientData,
    client: int,
    folder: Path,
    limits: Any,
    prepare: Prepare = as_stored,
) -> Any:
    """A client of your own task: `build` makes the model, `data` is what this client has."""
    return member_of(client_settings(settings), first_model(settings, build), data, client, folder, prepare, limits)


def serve_mine(
    grid: Any,
    settings: Settings,
    build: Callable[[], nn.Module],
    clients: int,
    validation: Examples | None,
    test: Examples | None,
    folder: Path,
    prepare: Prepare = as_stored,
) -> Outcome:
    """The server of your own task. It prints a line every few seconds."""
    settings, model = client_settings(settings), first_model(settings, build)
    return serve(grid, settings, model, clients, validation, test, prepare, folder, LineView)


# ---------------------------------------------------------------- all on one machine


@dataclass
class Part:
    """A process of the federation, and how to start it again."""

    name: str
    words: list[str]
    process: "subprocess.Popen[bytes] | None" = None
    deaths: int = 0


class LocalFederation:
    """SuperLink, nodes and server as separate processes on loopback; whoever dies is started again.

    folder/keys, folder/run (the server's run folder), folder/node0 ... (each client's own), folder/*.log
    """

    MAX_DEATHS = 100

    def __init__(self, folder: Path, settings_file: Path, nodes: int, insecure: bool = False, json: bool = False):
        self.folder, self.nodes, self.insecure = folder, nodes, insecure
        self.keys = folder / "keys"
        for name in (folder, folder / "home"):
            name.mkdir(parents=True, exist_ok=True, mode=0o700)
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
        common = ["--config", str(settings_file), *reach]
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
        words += ["--database", str(self.folder / "link.db"), "--disable-runtime-dependency-installation"]
        words += ["--isolation", "process"]
        if self.insecure:
            return [*words, "--insecure"]
        for flag, file in (("certfile", "server.pem"), ("keyfile", "server.key"), ("ca-certfile", "ca.pem")):
            words += [f"--ssl-{flag}", str(self.keys / file)]
        return [*words, "--enable-supernode-auth", "--superexec-auth-secret-file", str(self.keys / "secret")]

    def parts(self) -> list[Part]:
        return [self.link, *self.members, self.server]

    def start(self, part: Part) -> None:
        """The server speaks to the terminal, the others into a file each."""
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
        if part is self.link:
            self.wait_for_link()
            if not self.insecure:
                self.register()

    def register(self) -> None:
        from fedaccord.engines.flower import Link, register

        link = Link(self.address, (self.keys / "ca.pem").read_bytes())
        for node in range(self.nodes):
            register(link, self.keys / f"node{node}.pub")

    def wait_for_link(self) -> None:
        assert self.link.process is not None
        end = time.monotonic() + 60
        while time.monotonic() < end:
            if self.link.process.poll() is not None:
                break
            with socket.socket() as knock:
                if knock.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.05)
        raise EngineError(f"the SuperLink did not start; see {self.folder / 'superlink.log'}")

    def run(self) -> int:
        """Until the server is done; its exit status. A part that dies is started again."""
        with self.alone(), self.all_up() as asked:
            while True:
                for part in self.parts():
                    assert part.process is not None
                    status = part.process.poll()
                    if status is None:
                        continue
                    if part is self.server and (status in (0, 2, 130) or asked()):
                        return status
                    part.deaths += 1
                    if status == 2 or part.deaths > self.MAX_DEATHS:
                        raise EngineError(f"{part.name} cannot go on; see {self.folder / part.name}.log")
                    try:
                        self.start(part)
                    except EngineError:
                        if part.process.poll() is None:
                            raise
                time.sleep(0.1)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Two federations in one folder would sign off each other's nodes."""
        with open(self.folder / ".lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise RunError(f"{self.folder}: a federation is running here already") from None
            yield

    @contextlib.contextmanager
    def all_up(self) -> Iterator[Callable[[], bool]]:
        """Everything started; everything ended in the end. Gives whether a person asked to stop."""
        stop = False

        def handle(number: int, frame: Any) -> None:
            nonlocal stop
            stop = True
            if number == signal.SIGTERM and self.server.process is not None:
                self.server.process.terminate()  # Ctrl-C reaches it by itself

        before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            for part in self.parts():
                self.start(part)
            yield lambda: stop
        finally:
            self.end()
            for number, handler in before.items():
                signal.signal(number, handler)

    def end(self) -> None:
        """Ask the nodes first, so that they sign off, then the SuperLink; whoever does not listen is killed."""
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


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


# ---------------------------------------------------------------- named tasks


def member_of_task(task: Task, settings: Settings, client: int, folder: Path, limits: Any) -> Any:
    """A client of a named task. Everybody divides the data alike and takes only what is theirs."""
    parts = parts_of(task, settings)
    assert parts.settings.clients is not None
    if not 0 <= client < parts.settings.clients:
        raise SettingsError(f"--client {client}: there are 0 to {parts.settings.clients - 1}")
    resolved = client_settings(parts.settings)
    return member_of(resolved, parts.model, parts.clients[client], client, folder, parts.prepare, limits)


def serve_task(task: Task, settings: Settings, grid: Any, folder: Path, choose_view: Callable[..., Any]) -> Outcome:
    """The server of a named task: it keeps the server's set and the test set, and lets the rest go."""
    parts = parts_of(task, settings)
    assert parts.settings.clients is not None
    return serve(
        grid,
        client_settings(parts.settings),
        parts.model,
        parts.settings.clients,
        parts.validation,
        parts.test,
        parts.prepare,
        folder,
        choose_view,
    )
