"""FedBN: normalisation stays at home (Li et al. 2021). For clients whose inputs are scaled each in its own way.

Five scanners give the same digits, each with its own brightness and contrast. `travels="no-norm"` keeps every
normalisation layer, its weights and its statistics, with its client; each is measured with its own.

    python examples/tasks/fedbn.py
"""

import statistics

import torch
from sklearn.datasets import load_digits
from torch import nn

from fedaccord import History, federate


def train(method: str = "FA+RM+AH", rounds: int = 60, travels: str = "no-norm") -> History:
    x, y = (torch.tensor(part) for part in load_digits(return_X_y=True))
    x = x.float() / 8 - 1
    clients = [((2.0**scanner) * x[scanner::5] + 3 * scanner, y[scanner::5]) for scanner in range(5)]
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(),
        nn.Linear(64, 10),
    )  # fmt: skip
    return federate(model, clients, method=method, rounds=rounds, travels=travels, client_test=0.2, test_every=10)


if __name__ == "__main__":
    for travels in ("no-norm", "all"):
        each = [entry["metrics"]["accuracy"] for entry in train(travels=travels).rounds[-1].clients.values()]
        print(f"{travels}: {statistics.mean(each):.1%} on average, {min(each):.1%} at the worst client")
