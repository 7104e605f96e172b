"""Print the longest client steps in the logs of recorded runs: a limit on an update's norm must let them through.

python benchmarks/longest_steps.py results
"""

import argparse
import heapq
import sys
from pathlib import Path

from fedaccord.runtime.folder import ROUNDS, read_rounds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("results"))
    parser.add_argument("--count", type=int, default=5)
    options = parser.parse_args()
    runs = sorted({file.parent for file in options.folder.rglob(f"{ROUNDS}*")})
    steps, longest = 0, list[tuple[float, str, int, str]]()
    for run in runs:
        for line in read_rounds(run):
            found = [
                (each["update_norm"], run.name, line["round"], str(line["hyper"])) for each in line["clients"].values()
            ]
            steps += len(found)
            longest = heapq.nlargest(options.count, [*longest, *found])
    print(f"{steps:,} client steps of {len(runs)} runs; the longest:")
    for norm, name, round, hyper in longest:
        print(f"{norm:10.1f}  round {round} of {name}, {hyper}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
