"""FedPer: the head stays at home (Arivazhagan et al. 2019). For clients who mean different things by their labels.

Four archives number the same digits, each in its own way. What a digit looks like can be learned together, what it is
called cannot: a pattern leaves the last layer out of what travels.

    python examples/tasks/fedper.py
"""

import statistics

import torch
from sklearn.datasets import load_digits
from torch import nn

from fedaccord import History, federate


def train(method: str = "FA+RM+AH", rounds: int = 60, travels: str = "!head.*") -> History:
    x, y = (torch.tensor(part) for part in load_digits(return_X_y=True))
    x = x.float() / 8 - 1
    clients = [(x[archive::4], (y[archive::4] + 3 * archive) % 10) for archive in range(4)]
    torch.manual_seed(0)
    model = nn.Sequential()
    model.add_module("body", nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU()))
    model.add_module("head", nn.Linear(64, 10))
    return federate(model, clients, method=method, rounds=rounds, travels=travels, client_test=0.2, test_every=10)


if __name__ == "__main__":
    for travels in ("!head.*", "all"):
        each = [entry["metrics"]["accuracy"] for entry in train(travels=travels).rounds[-1].clients.values()]
        print(f"{travels}: {statistics.mean(each):.1%} on average, {min(each):.1%} at the worst client")
