"""A whole federation on one machine, for a first try: SuperLink, nodes and server, each a process of its own."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fedaccord.core.errors import EngineError
from fedaccord.core.files import lock_folder, make_folder, write_durably
from fedaccord.core.processes import activity, die_with
from fedaccord.flower.adapter import register
from fedaccord.flower.certificates import Link, make_authority, make_node_key
from fedaccord.flower.superlink import command_line, files_of, free_port, set_aside

ADDRESS = "address"
"""The file in a federation's folder that holds the address at which its SuperLink is, or was last."""
STOPPED = 130
"""The exit status after a person asked to stop."""


@dataclass
class Part:
    """A process of the federation, and how to start it again."""

    name: str
    words: list[str]
    process: "subprocess.Popen[bytes] | None" = None
    deaths: int = 0


class LocalFederation:
    """A federation whose processes all communicate over loopback; a process that dies is started again.

    Its folder has settings.toml, keys, run (the server's run folder), node0 ... (each client's own), *.log, address and
    link.db (the SuperLink's). The folder is locked from construction until `end`: two federations in one folder would
    mix up their keys and sign off each other's nodes.
    """

    MAX_DEATHS = 100
    SILENCE = 300.0
    """Seconds without any sign of activity after which a SuperLink that does not answer is given up."""
    TELL = 15.0
    """Seconds between two progress messages while the SuperLink is being waited for."""

    def __init__(
        self,
        folder: Path,
        nodes: int,
        insecure: bool = False,
        json: bool = False,
        simulate: bool = True,
        log_format: str = "text",
    ):
        self.folder, self.nodes, self.insecure = folder, nodes, insecure
        self.keys = folder / "keys"
        self.database = folder / "link.db"
        self.asked = False  # whether a person asked to stop
        for place in (folder, folder / "home"):
            make_folder(place, mode=0o700)
        self.lock = lock_folder(folder, "a federation is running here already")
        names = [f"node{node}" for node in range(nodes)]
        if not insecure and not (self.keys / "secret").exists():
            make_authority(self.keys, ["localhost", "127.0.0.1"])
        for name in names:
            if not insecure and not (self.keys / name).exists():
                make_node_key(self.keys / name)
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        write_durably(folder / ADDRESS, self.address.encode())

        def key(option: str, name: str) -> list[str]:
            return [] if insecure else [option, str(self.keys / name)]

        python = [sys.executable, "-m", "fedaccord.cli", "federation"]
        common = ["--config", str(folder / "settings.toml"), "--superlink", self.address]
        common += [*(["--insecure"] if insecure else []), *key("--root-certificates", "ca.pem")]
        common += [*(["--simulate"] if simulate else []), "--log-format", log_format]
        self.link = Part("superlink", command_line(self.port, self.database, None if insecure else self.keys))
        own = [["--client", str(node), "--private", str(folder / name)] for node, name in enumerate(names)]
        self.members = [
            Part(name, [*python, "node", *common, *words, *key("--key", name)])
            for name, words in zip(names, own, strict=True)
        ]
        run = ["--run", str(folder / "run"), "--log-file", str(folder / "server.log"), *(["--json"] if json else [])]
        self.server = Part("server", [*python, "server", *common, *run, *key("--secret", "secret")])

    def parts(self) -> list[Part]:
        """List the processes in the order in which they are started."""
        return [self.link, *self.members, self.server]

    def start(self, part: Part) -> None:
        """Start a process; for the SuperLink, wait until it answers and register the nodes with it.

        A SuperLink that is killed meanwhile is started again.
        """
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
        """Create a part's process; the server writes to the terminal and keeps its own log, the others are logged."""
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
                start_new_session=part is not self.server,  # Ctrl-C is for the server alone; its end ends the rest
                preexec_fn=partial(die_with, os.getpid()),  # no part outlives this process
            )
        if part is self.server and self.asked:
            part.process.terminate()  # it did not exist yet when the signal came

    def set_aside_half_made(self) -> None:
        """Rename a database that is unfinished, or another Flower version's, and tell the person at the terminal."""
        if (aside := set_aside(self.database)) is not None:
            say(f"{self.database} was never finished, or is another Flower version's: it is now {aside.name}, and a "
                "new one is made; nothing is lost")  # fmt: skip

    def register(self) -> None:
        """Register the public keys of all nodes with the SuperLink."""
        link = Link(self.address, (self.keys / "ca.pem").read_bytes())
        assert self.link.process is not None
        try:
            for node in range(self.nodes):
                register(link, self.keys / f"node{node}.pub")
        except EngineError:
            with contextlib.suppress(subprocess.TimeoutExpired):  # if killed, it closes its connections first
                self.link.process.wait(5)
            raise

    def wait_for_link(self) -> None:
        """Wait until the SuperLink answers on its port, or a person asks to stop.

        This may take any time: EngineError is raised only if it ends, or shows no activity for SILENCE seconds.
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
        """Run the federation until the server is done and return its exit status; restart any part that dies."""
        with self.all_up():
            while self.server.process is not None:
                for part in self.parts():
                    assert part.process is not None
                    status = part.process.poll()
                    if status is None:
                        continue
                    if part is self.server and (status in (0, 1, 2, STOPPED) or self.asked):
                        return status if status in (0, 1, 2) else STOPPED  # 1: it failed, or nobody reads its output
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
        """Start all parts, unless a person asks to stop meanwhile, and end them when the block is left."""

        def handle(number: int, frame: Any) -> None:
            self.asked = True
            if number == signal.SIGTERM and self.server.process is not None:
                self.server.process.terminate()  # Ctrl-C reaches it directly

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
        """Ask every process to end, the SuperLink last so that the nodes can sign off; kill those that do not end.

        The folder is free for another federation afterwards.
        """
        for group in ((self.server, *self.members), (self.link,)):
            there = [part.process for part in group if part.process is not None]
            for process in there:
                if process.poll() is None:
                    process.terminate()
            for process in there:
                try:
                    process.wait(15)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        self.lock.close()


def say(text: str) -> None:
    """Print a line to standard error for the person at the terminal."""
    print(text, file=sys.stderr, flush=True)
