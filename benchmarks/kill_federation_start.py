"""SIGKILL `federation up` or its SuperLink in its first seconds; the next start must work and end with the same hash.

python benchmarks/kill_federation_start.py --kills 20

Half of the kills hit `up` alone, half its SuperLink; half of each come at a random instant, half while the SuperLink
makes its database. Each kill has a folder of its own. Finally, both are killed as many times in a row in one folder.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from fedaccord.flower.superlink import is_whole

NODES = 2


def start(folder: Path) -> "subprocess.Popen[str]":
    words = ["federation", "up", "--task", "digits", "--nodes", str(NODES), "--folder", str(folder), "--json"]
    words = [sys.executable, "-m", "fedaccord.cli", *words, "--set", "rounds=2", "--set", "test_every=2"]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def result(up: "subprocess.Popen[str]") -> str:
    """Wait for `up` to end, and return the hash of the final parameters, or its exit status if it failed."""
    said = up.communicate()[0].splitlines()
    return json.loads(said[-1])["params_sha256"] if up.returncode == 0 else f"status {up.returncode}"


def superlink_of(up: "subprocess.Popen[str]") -> int | None:
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{up.pid}/task/{up.pid}/children").read_text().split():
            if b"flower-superlink" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
    return None


def database_bytes(folder: Path) -> int:
    files = (folder / "link.db", folder / "link.db-wal")
    return sum(file.stat().st_size for file in files if file.exists())


@dataclass
class Calm:
    """An undisturbed start: how long each part of it takes."""

    hash: str
    link: float  # seconds until the SuperLink is started
    nodes: float  # until it has answered and the first node is started
    database: int  # bytes of its database then
    round: float  # seconds until the first round is logged


def measure(folder: Path) -> Calm:
    began, up = time.monotonic(), start(folder)
    while superlink_of(up) is None:
        time.sleep(0.001)
    link = time.monotonic() - began
    while not (folder / "node0.log").exists():
        time.sleep(0.001)
    nodes, database = time.monotonic() - began, database_bytes(folder)
    log = folder / "run" / "rounds.jsonl"
    while not (log.exists() and log.stat().st_size):
        time.sleep(0.001)
    first = time.monotonic() - began
    return Calm(result(up), link, nodes, database, first)


def kill(folder: Path, what: str, when: str, calm: Calm, draw: random.Random) -> "tuple[subprocess.Popen[str], str]":
    """Start `up` and kill `what` (up, superlink, both); return `up` and the instant in words, "" if nothing was hit."""
    up = start(folder)
    if when == "database":
        size = draw.uniform(0, calm.database)
        while database_bytes(folder) <= size and up.poll() is None:
            time.sleep(0.0005)
        instant = f"at {size / 1e6:.2f} MB of its database"
    elif what != "superlink":
        delay = draw.uniform(0, calm.round)
        time.sleep(delay)
        instant = f"after {delay:.2f} s"
    else:
        while superlink_of(up) is None and up.poll() is None:
            time.sleep(0.001)
        delay = draw.uniform(0, calm.nodes - calm.link + 1)
        time.sleep(delay)
        instant = f"{delay:.2f} s after it was started"
    link = superlink_of(up) if what != "up" else None
    victims = [pid for pid in (link, up.pid if what != "superlink" else None) if pid is not None]
    if up.poll() is not None:
        return up, ""
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    return up, instant if victims else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    plan = [(("up", "superlink")[n % 2], ("database", "clock")[n // 2 % 2]) for n in range(options.kills)]
    with tempfile.TemporaryDirectory() as folder:
        calm = measure(Path(folder))
    print(f"undisturbed: {calm.hash[:16]}, SuperLink started after {calm.link:.1f} s, up after {calm.nodes:.1f} s,"
          f" its database {calm.database / 1e6:.2f} MB, first round after {calm.round:.1f} s", flush=True)  # fmt: skip
    good = half = 0
    while plan:
        what, when = plan[0]
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            up, instant = kill(folder, what, when, calm, draw)
            if what == "up":
                up.communicate()
                up = start(folder)
            found = result(up)
            made_anew = bool(list(folder.glob("link-half-made-*")))
        if not instant:
            continue  # it was over before the kill: not a trial
        plan.pop(0)
        good += found == calm.hash
        half += made_anew
        print(f"{what} killed {instant}: {'fine' if found == calm.hash else f'NOT FINE: {found}'}"
              f"{', its database was half-made' if made_anew else ''}", flush=True)  # fmt: skip
    print(f"{good} of {options.kills} started again; {half} databases were half-made", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        hit = 0
        for number in range(options.kills):
            early = number < options.kills / 2 and not is_whole(folder / "link.db")
            up, instant = kill(folder, "both", "database" if early else "clock", calm, draw)
            up.communicate()
            hit += bool(instant)
        found, aside = result(start(folder)), len(list(folder.glob("link-half-made-*.db")))
    same = found == calm.hash
    print(f"one folder, killed {hit} times in a row, {aside} half-made databases set aside: "
          f"{'fine' if same else f'NOT FINE: {found}'}")  # fmt: skip
    return 0 if same and good == options.kills else 1


if __name__ == "__main__":
    sys.exit(main())
