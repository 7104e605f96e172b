"""Measure the cost of client-level differential privacy with few clients and with more: accuracy and epsilon on digits.

python benchmarks/private.py --rounds 60 --seeds 3
"""

import argparse
import statistics
import sys

from fedaccord import config
from fedaccord.runtime.build import from_task
from fedaccord.runtime.drive import drive
from fedaccord.server.privacy import EPSILON
from fedaccord.tasks import find_task


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--clip", type=float, default=0.5)
    parser.add_argument("--groups", nargs="+", default=["10:1", "100:0.1", "100:1"], metavar="CLIENTS:C")
    parser.add_argument("--noise", nargs="+", type=float, default=[0.0, 0.1, 0.3, 1.0, 3.0])
    options = parser.parse_args()
    task = find_task("digits")
    print(f"digits, alike clients, FA, {options.rounds} rounds, clip_norm = {options.clip:g}, {options.seeds} seeds")
    print("| clients | C | dp_noise | epsilon at delta 1e-5 | test accuracy in % |\n|---|---|---|---|---|")
    for group in options.groups:
        clients, fraction = int(group.partition(":")[0]), float(group.partition(":")[2])
        for noise in options.noise:
            found, spent = [], "none"
            for seed in range(options.seeds):
                own = {"task": "digits", "split": "iid", "method": "FA", "clients": clients, "fraction": fraction}
                run = {
                    "rounds": options.rounds,
                    "seed": seed,
                    "engine": "serial",
                    "clip_norm": options.clip,
                    "dp_noise": noise,
                }
                outcome = drive(from_task(task, config.make(task.defaults("iid"), own, run)), None, None)
                found.append(100 * outcome.rounds[-1].metrics["accuracy"])
                last = [log.method[EPSILON] for log in outcome.rounds if EPSILON in log.method]
                spent = f"{last[-1]:.3g}" if last else spent
            told = f"{statistics.fmean(found):.1f} ({min(found):.1f} to {max(found):.1f})"
            print(f"| {clients} | {fraction:g} | {noise:g} | {spent} | {told} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
