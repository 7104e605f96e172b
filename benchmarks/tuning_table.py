"""Tabulate what the tuner reached: the last test accuracy of every FA+AH run, and how its distribution's mean moved.

python benchmarks/tuning_table.py results/mnist results/earlier
"""

import argparse
import sys
from collections import defaultdict
from pathlib import Path

from fedaccord.runtime.folder import read_rounds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+", help="folders of runs")
    rows = defaultdict(list)
    for run in sorted(run for folder in parser.parse_args().results for run in folder.glob("*FA+AH*-s[0-9]*")):
        lines = list(read_rounds(run))
        accuracy = [100 * line["metrics"]["accuracy"] for line in lines if line["metrics"]][-1]
        means = [line["policy"]["mean"] for line in (lines[0], lines[len(lines) // 2], lines[-1])]
        guards = sum(line["guard"] is not None for line in lines)
        rows[run.name.rsplit("-s", 1)[0]].append((accuracy, len(lines), means, guards))
    print(
        "| run | rounds | accuracy by seed | mean | mean rate, steps: start, middle, end (first seed) | guard acted |"
    )
    print("|---|---|---|---|---|---|")
    for name, seeds in rows.items():
        path = " ; ".join(f"{mean['lr']:.3f}, {mean['steps']:.0f}" for mean in seeds[0][2])
        each = " ".join(f"{accuracy:.2f}" for accuracy, *_ in seeds)
        mean = sum(accuracy for accuracy, *_ in seeds) / len(seeds)
        print(f"| {name} | {seeds[0][1]} | {each} | {mean:.2f} | {path} | {sum(seed[3] for seed in seeds)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
