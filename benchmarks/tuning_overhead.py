"""Print what tuning costs: the share of a round spent on sampling, updating the policy and measuring the loss.

    python benchmarks/tuning_overhead.py results/earlier/cifar10-non-iid-FA+AH-C0.5-s0

Rounds in which the test accuracy was measured as well are left out: the tuner does not need it.
"""

import argparse
import statistics
import sys
from pathlib import Path

from fedaccord.runtime.folder import read_rounds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="+")
    for run in parser.parse_args().run:
        rounds = [line["seconds"] for line in read_rounds(run) if not line["metrics"]]
        shares = [100 * (part["policy"] + part["evaluate"]) / sum(part.values()) for part in rounds]
        policy = 1e3 * statistics.median(part["policy"] for part in rounds)
        evaluate = 1e3 * statistics.median(part["evaluate"] for part in rounds)
        print(
            f"{run.name}: {statistics.median(shares):.2f} % of a round (median of {len(rounds)}): "
            f"policy {policy:.2f} ms, loss {evaluate:.0f} ms"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
