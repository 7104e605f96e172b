"""Measure how each aggregation rule copes with one client in ten that lies: it sends -100 times its update.

python benchmarks/attackers.py --task digits --rounds 60 --seeds 3

It prints, for each split and rule, the test accuracy if that client is honest, if it stays away, and if it lies.
"""

import argparse
import statistics
import sys
from collections.abc import Iterator

from fedaccord import config
from fedaccord.core.records import ClientUpdate, Order, Refusal
from fedaccord.runtime.build import from_task
from fedaccord.runtime.drive import Outcome, drive
from fedaccord.tasks import find_task

LIAR = 0
RULES = ("mean", "clip", "trimmed", "median")
HONEST, AWAY, LIES = "honest", "away", "lies"


def accuracy(options: argparse.Namespace, split: str, rule: str, seed: int, way: str) -> float:
    """Return the last test accuracy, in percent, of a run in which client 0 is honest, stays away or lies."""
    return 100 * finished(options, split, rule, seed, way).rounds[-1].metrics["accuracy"]


def finished(options: argparse.Namespace, split: str, rule: str, seed: int, way: str) -> Outcome:
    """Return a whole run in which client 0 is honest, stays away or lies."""
    task = find_task(options.task)
    own = {"task": options.task, "split": split, "method": options.method, "rounds": options.rounds, "seed": seed}
    made = from_task(task, config.make(task.defaults(split), own, {"robust": rule, "engine": options.engine}))
    engine = made.experiment.engine
    train = engine.train

    def hostile(order: Order) -> Iterator[ClientUpdate | Refusal]:
        for update in train(order):
            if isinstance(update, ClientUpdate) and update.client == LIAR and way != HONEST:
                yield Refusal(LIAR, "away") if way == AWAY else turned(order, update, options.times)
            else:
                yield update

    engine.train = hostile  # type: ignore[method-assign]
    return drive(made, None, None)


def turned(order: Order, update: ClientUpdate, times: float) -> ClientUpdate:
    """Replace the update's parameters w_i by w_t - times (w_i - w_t), in place, and return it."""
    for name, value in update.params.items():
        if value.is_floating_point():
            update.params[name] = order.params[name] - times * (value - order.params[name])
    return update


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="digits")
    parser.add_argument("--method", default="FA")
    parser.add_argument("--engine", default="serial")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--splits", nargs="+", default=["iid", "non-iid"])
    parser.add_argument("--rules", nargs="+", choices=RULES, default=RULES)
    parser.add_argument("--times", type=float, default=100.0)
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    print(f"{options.task}, {options.method}, {options.rounds} rounds, {options.seeds} seeds: test accuracy in %")
    print(
        f"| split | robust | nobody lies | client 0 stays away | client 0 sends -{options.times:g} times its update |"
    )
    print("|---|---|---|---|---|")
    for split in options.splits:
        for rule in options.rules:
            cells = []
            for way in (HONEST, AWAY, LIES):
                found = [accuracy(options, split, rule, seed, way) for seed in seeds]
                cells.append(f"{statistics.fmean(found):.1f} ({min(found):.1f} to {max(found):.1f})")
            print(f"| {split} | {rule} | {' | '.join(cells)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
