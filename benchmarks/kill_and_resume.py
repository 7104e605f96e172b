"""SIGKILL a run at random instants, resume it, and compare every hash with the undisturbed run.

python benchmarks/kill_and_resume.py --kills 50
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FEDACCORD = [sys.executable, "-m", "fedaccord.cli"]


def last_line(output: str) -> tuple[str, str]:
    summary = json.loads(output.splitlines()[-1])
    return summary["params_sha256"], summary["log_sha256"]


def command(folder: Path, options: list[str]) -> list[str]:
    return [*FEDACCORD, "run", *options, "--runs", str(folder.parent), "--name", folder.name, "--json"]


def kill_once(folder: Path, options: list[str], instant: float) -> tuple[int, tuple[str, str] | None]:
    """Rounds done at the kill, and the hashes after resuming; None if the run folder did not exist yet."""
    process = subprocess.Popen(command(folder, options), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not folder.exists() and time.monotonic() < deadline:  # loading is over once the folder is there
        time.sleep(0.002)
    time.sleep(instant)
    process.kill()
    process.wait()
    done = (folder / "rounds.jsonl").read_bytes().count(b"\n") if (folder / "rounds.jsonl").exists() else 0
    result = subprocess.run([*FEDACCORD, "resume", str(folder), "--json"], capture_output=True, text=True, check=True)
    return done, last_line(result.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="of the instants")
    parser.add_argument("options", nargs="*", default=["digits", "--rounds", "80"], help="as for `fedaccord run`")
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(2) as pool:
        root = Path(scratch)
        whole = subprocess.run(command(root / "whole", arguments.options), capture_output=True, text=True, check=True)
        seconds = json.loads(whole.stdout.splitlines()[-1])["seconds"]
        expected = last_line(whole.stdout)
        jobs = [
            pool.submit(kill_once, root / f"{number:03d}", arguments.options, chance.uniform(0, seconds))
            for number in range(arguments.kills)
        ]
        same = 0
        for number, job in enumerate(jobs, 1):
            done, hashes = job.result()
            same += hashes == expected
            print(f"kill {number}: after {done} rounds, {'same' if hashes == expected else 'DIFFERENT'}", flush=True)
    print(f"{same} of {arguments.kills} resumed to the hash of the undisturbed run")
    return 0 if same == arguments.kills else 1


if __name__ == "__main__":
    sys.exit(main())
