"""Print the milliseconds of a client's step.

To compare two trees, run it with each in turn, several times, and take medians.

PYTHONPATH=path/to/tree python benchmarks/step_seconds.py cifar10 FA+RM 3
"""

import statistics
import sys

import torch

from fedaccord import config
from fedaccord.core.algorithm import run, start
from fedaccord.runtime.build import from_task
from fedaccord.tasks import find_task

CLIENTS, ROUNDS = 2, 4


def main(name: str, method: str, steps: int) -> None:
    torch.set_num_threads(1)
    task = find_task(name)
    own = {"task": name, "split": "iid", "method": method, "steps": steps, "lr": 0.01, "clients": CLIENTS,
           "rounds": ROUNDS, "engine": "serial", "test_every": 100, "validation_per_class": 5}  # fmt: skip
    setup = from_task(task, config.make(task.defaults("iid"), own))
    setup.experiment.engine.open(None)
    spent = [log.seconds["train"] for _, log in run(setup.experiment, start(setup.experiment, setup.params))]
    print(f"{1000 * statistics.median(spent[1:]) / CLIENTS / steps:.1f}")  # the first round warms up


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
