"""Make half of the clients of a real federation drop out, stop or stall at random, round after round.

Four nodes, the SuperLink and the server are processes. In every round one of these happens to each of two nodes: its
process is killed (and started again), all of it stops (SIGSTOP) for a while, the process that trains stops, or the node
announces its reply and does not send it. No round may take much longer than its deadline.
"""

import contextlib
import json
import os
import random
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.chaos.part import Outcome, Part
from fedaccord import config
from fedaccord.tasks import find_task

CLIENTS, ROUNDS, DEADLINE = 4, 20, 4.0
GRACE = 3.0
"""Seconds after its deadline within which a round must be over: evaluated, written and logged."""
HANG = 60.0
"""Seconds without a round after which the run counts as hanging."""

NODE = """
import sys, time
from pathlib import Path
from fedaccord.flower import adapter
flag, push = Path(sys.argv.pop(1)), adapter.push_objects

def held(*args, **more):
    while flag.exists():
        time.sleep(0.05)
    return push(*args, **more)

adapter.push_objects = held
from fedaccord.cli import main
sys.exit(main())
"""
"""The script of a node that announces its replies, but does not send them as long as the file named to it exists."""


@dataclass
class Trouble:
    """What is done to the nodes of a federation while its server runs."""

    local: Any
    draw: random.Random
    log: Path
    rounds: int
    times: list[float] = field(default_factory=list)  # when each round was logged
    done: Counter[str] = field(default_factory=Counter)
    hung: bool = False
    over: threading.Event = field(default_factory=threading.Event)
    running: list[threading.Thread] = field(default_factory=list)

    def make(self) -> None:
        """Watch the log of the rounds; whenever one has been logged, disturb half of the clients in the next."""
        began = time.monotonic()
        while not self.over.is_set():
            count = self.log.read_bytes().count(b"\n") if self.log.exists() else 0
            now = time.monotonic()
            if count > len(self.times):
                self.times += [now] * (count - len(self.times))
                if count == self.rounds:
                    self.over.set()
                    return
                for number in self.draw.sample(range(CLIENTS), CLIENTS // 2):
                    what = self.draw.choice((self.drop, self.stop, self.stall, self.hold))
                    wait, length = self.draw.uniform(0, DEADLINE / 2), self.draw.uniform(0.2, 2) * DEADLINE
                    self.running.append(threading.Thread(target=self.meet, args=(what, number, wait, length)))
                    self.running[-1].start()
            elif now - (self.times[-1] if self.times else began) > (HANG if self.times else 5 * HANG):
                self.hung = True
                self.local.server.process.kill()
                self.local.asked = True  # so that nothing is started again
                return
            time.sleep(0.02)

    def meet(self, what: Any, number: int, wait: float, length: float) -> None:
        if not self.over.wait(wait):
            with contextlib.suppress(OSError):  # its process is gone, and is being started again
                what(number, length)
                self.done[what.__name__] += 1

    def pid(self, number: int) -> int:
        return self.local.members[number].process.pid

    def drop(self, number: int, length: float) -> None:
        os.kill(self.pid(number), signal.SIGKILL)

    def stop(self, number: int, length: float) -> None:
        pid = self.pid(number)
        os.killpg(pid, signal.SIGSTOP)  # a node leads a session of its own
        self.over.wait(length)
        os.killpg(pid, signal.SIGCONT)

    def stall(self, number: int, length: float) -> None:
        """Stop the process that trains, for `length` seconds; raise ProcessLookupError if none appears in that time."""
        pid, end = self.pid(number), time.monotonic() + length
        children = Path(f"/proc/{pid}/task/{pid}/children")
        while not (found := children.read_text().split()):
            if time.monotonic() > end or self.over.wait(0.001):
                raise ProcessLookupError
        os.kill(int(found[0]), signal.SIGSTOP)
        self.over.wait(length)
        os.kill(int(found[0]), signal.SIGCONT)

    def hold(self, number: int, length: float) -> None:
        flag = self.flag(number)
        flag.touch()
        self.over.wait(length)
        flag.unlink(missing_ok=True)

    def flag(self, number: int) -> Path:
        return self.local.folder / f"hold{number}"


def stalled(number: int, folder: Path, rounds: int = ROUNDS) -> Outcome:
    """Run a federation whose nodes are disturbed, with `number` as the seed, and judge its rounds."""
    from fedaccord.flower.local import LocalFederation

    own = {"task": "digits", "clients": CLIENTS, "method": "FA+RM+AH", "alpha": 0.3, "rounds": rounds,
           "deadline": DEADLINE, "partial": number % 2 == 1, "grid": "lr = 0.05, 0.1; steps = 5, 10"}  # fmt: skip
    settings = config.make(find_task("digits").defaults("dirichlet"), {"split": "dirichlet"}, own)
    local = LocalFederation(folder, CLIENTS, json=True)
    (folder / "settings.toml").write_text(config.to_toml(settings))
    (folder / "node.py").write_text(NODE)
    log = folder / "run" / "rounds.jsonl"
    trouble = Trouble(local, random.Random(number), log, rounds)
    for client, part in enumerate(local.members):
        part.words[1:3] = [str(folder / "node.py"), str(trouble.flag(client))]  # in place of -m fedaccord.cli
    local.server.words = ["sh", "-c", f'exec "$0" "$@" >{folder}/server.out 2>&1', *local.server.words]
    maker = threading.Thread(target=trouble.make)
    maker.start()
    try:
        status = local.run()
    finally:
        trouble.over.set()
        for thread in (maker, *trouble.running):
            thread.join()
    lines = log.read_text().splitlines() if log.exists() else []
    return judged(trouble, [json.loads(line) for line in lines], status)


def judged(trouble: Trouble, lines: list[dict[str, Any]], status: int) -> Outcome:
    """Judge how long each round took: by its own log, and from one to the next as seen from outside."""
    took = [sum(line["seconds"].values()) for line in lines]
    between = [later - sooner for sooner, later in zip(trouble.times, trouble.times[1:], strict=False)]
    late = [f"round {place} took {each:.1f} s" for place, each in enumerate(took, 1) if each > DEADLINE + GRACE]
    late += [f"round {place} was logged {each:.1f} s after the one before" for place, each in enumerate(between, 2)
             if each > DEADLINE + GRACE]  # fmt: skip
    told = [*late, *(["it hung"] if trouble.hung else [])]
    if (status, len(lines)) != (0, trouble.rounds):
        told.append(f"it ended with status {status} after {len(lines)} of {trouble.rounds} rounds")
    refused = sum(len(line["refused"]) for line in lines)
    figures = {"s between rounds": max(between, default=0.0), "updates missing": float(refused)}
    figures |= {f"times {what}": float(count) for what, count in sorted(trouble.done.items())}
    return Outcome(trouble.rounds, min(trouble.rounds, len(told)), "; ".join(told), figures)


PARTS = (
    Part("stalls", "a round while half of the clients drop out, stop or stall: over at its deadline", stalled, 1, 10),
)
