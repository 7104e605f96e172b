"""Try hostile updates of many kinds, by seed, on the server's two ends and on Flower's own FedAvg.

python -m benchmarks.hostile --count 10000

The updates are those of benchmarks/chaos/updates.py; the same values go to flwr.serverapp.strategy.FedAvg.
"""

import argparse
import sys
import time
from collections import Counter, defaultdict
from typing import Any

import numpy as np

from benchmarks.chaos.update_kinds import KINDS, ROUND, VICTIM, Reply
from benchmarks.chaos.updates import ENDS, METHODS, Scene, attempt, hostile, ready


def at_flowers_fedavg(scene: Scene, bad: Reply) -> str:
    """Return what Flower's FedAvg makes of a hostile reply: "left out", "counted", "not finite" or "exception".

    An exception would end the run. "no record" means that flwr has no way to write the reply.
    """
    from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.serverapp.strategy import FedAvg

    def message(reply: Reply) -> Any:
        arrays = ArrayRecord({name: Array(value.numpy()) for name, value in reply.params.items()})
        content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": reply.examples})})
        return Message(content, dst_node_id=1, message_type="train")

    def mean(replies: list[Reply]) -> dict[str, np.ndarray]:
        arrays, _ = FedAvg().aggregate_train(ROUND, [message(each) for each in replies])
        return {name: array.numpy() for name, array in arrays.items()}

    others = [reply for client, reply in scene.honest.items() if client != VICTIM]
    want = mean(others)
    try:
        message(bad)
    except Exception:
        return "no record"  # flwr has no way to write it
    try:
        got = mean([*others, bad])
    except Exception:
        return "exception"
    if not all(np.isfinite(value).all() for value in got.values()):
        return "not finite"
    same = want.keys() == got.keys() and all(
        want[n].shape == got[n].shape and np.allclose(want[n], got[n], rtol=1e-5) for n in want
    )
    return "left out" if same else "counted"


NOT_FLOWERS = ("duplicate client", "unknown client", "late", "slot that nobody declared",
               "slot missing, NaN, huge or misshapen", "absurd loss")  # fmt: skip
"""Kinds that do not reach a strategy of Flower's: its grid handles them, or it has no such thing. (It averages losses,
too, but they do not change the model.)"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    ready()
    scenes = {method: Scene(method) for method in METHODS}
    found: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    began = time.monotonic()
    for number in range(options.count):
        title, scene, bad = hostile(number, options.seed, scenes)
        for name, end in ENDS.items():
            found[title][name][attempt(end, scene, bad)] += 1
        if title not in NOT_FLOWERS:
            found[title]["flower"][at_flowers_fedavg(scene, bad)] += 1
    show(found, options, time.monotonic() - began)
    wrong = [each for ends in found.values() for name in ENDS for each in ends[name] if each != "left out"]
    return 1 if wrong else 0


def show(found: dict[str, dict[str, Counter[str]]], options: argparse.Namespace, seconds: float) -> None:
    print(f"| kind | tried | left out by ServerChain | left out by FlowerEngine | Flower's FedAvg |\n|{'---|' * 5}")
    for title in KINDS:
        ends = found[title]
        tried = sum(ends["chain"].values())
        ours = [f"{ends[name]['left out']:,}" + "".join(f", {n:,} {what}" for what, n in ends[name].items()
                if what != "left out") for name in ENDS]  # fmt: skip
        theirs = ", ".join(f"{n:,} {what}" for what, n in ends["flower"].most_common()) or "-"
        print(f"| {title} | {tried:,} | {ours[0]} | {ours[1]} | {theirs} |")
    total = Counter[str]()
    for ends in found.values():
        total += ends["flower"]
    ours_total = {name: sum(ends[name]["left out"] for ends in found.values()) for name in ENDS}
    print(f"\n{options.count:,} updates of {len(KINDS)} kinds, seed {options.seed}: left out by ServerChain "
          f"{ours_total['chain']:,}, by FlowerEngine {ours_total['engine']:,}; Flower's FedAvg: "
          + ", ".join(f"{n:,} {what}" for what, n in total.most_common()) + f" ({seconds:.0f} s)")  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
