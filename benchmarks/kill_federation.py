"""SIGKILL one process of a real federation at a random instant; the run must end with the undisturbed hash.

python benchmarks/kill_federation.py --kills 10     # of each: a node, the SuperLink, the server, a client's process
python benchmarks/kill_federation.py --kills 3 --what node --stay-dead      # the run must end without it
"""

import argparse
import contextlib
import hashlib
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

from fedaccord import config
from fedaccord.flower.local import LocalFederation
from fedaccord.runtime.folder import RunFolder, read_rounds
from fedaccord.runtime.identity import params_sha256
from fedaccord.tasks import find_task

NODES = 3
WHAT = ("node", "superlink", "server", "clientapp")


def settings_of(task: str, rounds: int, deadline: float) -> config.Settings:
    own = {
        "task": task, "method": "FA+RM+AH", "split": "dirichlet", "alpha": 0.3, "clients": NODES, "rounds": rounds,
        "test_every": rounds, "deadline": deadline,
    }  # fmt: skip
    return config.make(find_task(task).defaults("dirichlet"), own)


def run(folder: Path, settings: config.Settings, kill=None) -> dict:
    """Run a whole federation, and return how it ended; `kill` is called with it in a thread of its own."""
    (folder / "settings.toml").write_text(config.to_toml(settings))
    local = LocalFederation(folder, NODES, json=True)
    killer = threading.Thread(target=kill, args=(local,), daemon=True) if kill else None
    if killer:
        killer.start()
    began = time.monotonic()
    status = local.run()
    took = time.monotonic() - began
    if killer:
        killer.join(1)
    with RunFolder(folder / "run") as opened:
        state = opened.load().state
    lines = list(read_rounds(folder / "run"))
    private = hashlib.sha256()
    for node in range(NODES):
        for newest in sorted((folder / f"node{node}").glob("*/*/*.safetensors"))[-1:]:  # none for FA
            private.update(newest.read_bytes())
    return {
        "status": status,
        "params": params_sha256(state.params),
        "psi": hashlib.sha256(json.dumps(state.policy, sort_keys=True).encode()).hexdigest(),
        "theta": private.hexdigest(),
        "rounds": len(lines),
        "refused": sum(len(line["refused"]) for line in lines),
        "after": sum(sum(line["seconds"].values()) for line in lines[1:]),  # the seconds of all rounds but the first
        "seconds": took,
    }


def killer(what: str, delay: float, stay_dead: bool, told: dict):
    """Return a function that waits until the first round is logged, and kills a process `delay` seconds later."""

    def kill(local: LocalFederation) -> None:
        log = local.folder / "run" / "rounds.jsonl"
        while not (log.exists() and log.stat().st_size):
            time.sleep(0.01)
        time.sleep(delay)
        victim = (
            local.members[1]
            if what in ("node", "clientapp")
            else {"superlink": local.link, "server": local.server}[what]
        )
        pid = victim.process.pid
        if what == "clientapp":
            children = Path(f"/proc/{pid}/task/{pid}/children")
            end, found = time.monotonic() + 30, []
            with contextlib.suppress(OSError):  # the node has ended
                while not (found := children.read_text().split()) and time.monotonic() < end:
                    time.sleep(0.0005)
            if not found:
                return
            pid = int(found[0])
        if stay_dead:
            victim.words = ["sleep", "3600"]
        try:
            os.kill(pid, signal.SIGKILL)
            told["killed"] = True
        except ProcessLookupError:
            pass

    return kill


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="digits")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--kills", type=int, default=10, help="of each kind")
    parser.add_argument("--what", default=",".join(WHAT), help="with commas: " + ", ".join(WHAT))
    parser.add_argument("--stay-dead", action="store_true", help="what was killed does not come back")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    settings = settings_of(options.task, options.rounds, 8.0 if options.stay_dead else 300.0)
    out = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the servers write to standard output too

    def say(text: str) -> None:
        os.write(out, f"{text}\n".encode())

    with tempfile.TemporaryDirectory() as folder:
        calm = run(Path(folder), settings)
    say(
        f"undisturbed: {calm['params'][:16]} psi {calm['psi'][:16]} theta {calm['theta'][:16]}, {calm['seconds']:.0f} s"
    )
    good = total = 0
    for what in options.what.split(","):
        number = 0
        while number < options.kills:
            told: dict = {}
            delay = draw.uniform(0, calm["after"])
            with tempfile.TemporaryDirectory() as folder:
                found = run(Path(folder), settings, killer(what, delay, options.stay_dead, told))
            if not told:
                continue  # the run was over before the kill: not a trial
            same = all(found[key] == calm[key] for key in ("params", "psi", "theta"))
            if options.stay_dead and same:
                continue  # the killed process had done its last round before
            number += 1
            total += 1
            fine = found["status"] == 0 and found["rounds"] == options.rounds
            fine = fine and (found["refused"] > 0 if options.stay_dead else same)
            good += fine
            verdict = "fine" if fine else f"NOT FINE {found}"
            say(f"{what} killed {delay:.2f} s after round 1: {verdict}, {found['seconds']:.0f} s")
    say(f"{good} of {total}")
    return 0 if good == total else 1


if __name__ == "__main__":
    sys.exit(main())
