"""SIGKILL random workers of a pool at random instants of a run, again and again.

Every run must end with the hashes of an undisturbed serial one.

    python benchmarks/kill_workers.py --kills 50
    python benchmarks/kill_workers.py --kills 10 -- digits --rounds 30 --method FA+RM+AH
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def start(folder: Path, options: list[str], engine: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "fedaccord.cli", "run", *options, "--runs", str(folder), "--name", engine]
    return subprocess.Popen(
        [*command, "--engine", engine, "--workers", "2", "--json"], stdout=subprocess.PIPE, text=True
    )


def children(pid: int) -> list[int]:
    try:
        return [int(number) for number in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--each", type=int, default=5, help="kills in one run")
    parser.add_argument("--seed", type=int, default=0, help="of the instants")
    parser.add_argument("options", nargs="*", default=["digits", "--rounds", "60"], help="as for `fedaccord run`")
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)

    def summary(process: subprocess.Popen) -> dict:
        return json.loads(process.communicate()[0].splitlines()[-1])

    killed = same = 0
    with tempfile.TemporaryDirectory() as folder:
        expected = summary(start(Path(folder), arguments.options, "serial"))
    while killed < arguments.kills:
        with tempfile.TemporaryDirectory() as folder:
            process, hits = start(Path(folder), arguments.options, "pool"), 0
            while process.poll() is None and hits < min(arguments.each, arguments.kills - killed):
                time.sleep(chance.uniform(0, 2 * expected["seconds"] / 3 / arguments.each))
                workers = children(process.pid)
                if len(workers) == 2:  # both at work
                    os.kill(chance.choice(workers), signal.SIGKILL)
                    hits += 1
            found = summary(process)
            equal = [found[key] == expected[key] for key in ("params_sha256", "log_sha256")] == [True, True]
            killed, same = killed + hits, same + (hits if equal else 0)
            print(f"{hits} workers killed in one run: {'same' if equal else 'DIFFERENT'}", flush=True)
    print(f"{same} of {killed} kills ended with the hash of the undisturbed run")
    return 0 if same == killed else 1


if __name__ == "__main__":
    sys.exit(main())
