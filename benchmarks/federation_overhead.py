"""Measure what a round of a real federation costs beyond training: three nodes on loopback, TLS, node keys, one step.

python benchmarks/federation_overhead.py --task mnist
"""

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

from kill_federation import run

from fedaccord import config
from fedaccord.runtime.folder import read_rounds
from fedaccord.tasks import find_task


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="digits")
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    own = {"task": options.task, "method": "FA", "steps": 1, "rounds": options.rounds}
    own |= {"split": "dirichlet", "alpha": 0.3, "clients": 3}
    settings = config.make(find_task(options.task).defaults("dirichlet"), own, {"test_every": options.rounds})
    out = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the server writes to standard output too
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder), settings)
        waits = [line["seconds"]["train"] for line in read_rounds(Path(folder) / "run")][1:]  # the first calls the roll
    median, least, most = statistics.median(waits), min(waits), max(waits)
    text = f"{options.task}: median {median:.2f} s a round, least {least:.2f}, most {most:.2f}, {len(waits)} rounds\n"
    os.write(out, text.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
