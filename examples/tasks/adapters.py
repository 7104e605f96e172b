"""Adapters on a frozen base: only they travel.

The base was trained on public data, upright digits; the clients have digits upside down, two kinds each, which it
mistakes. A low-rank update beside each dense layer sets it right, at a fraction of the bytes.

    python examples/tasks/adapters.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

from fedaccord import History, adapt, federate

X, Y = (torch.tensor(part) for part in load_digits(return_X_y=True))
UPRIGHT, TURNED = X.float() / 8 - 1, (X.float() / 8 - 1).flip(1)
PUBLIC, SERVER, OWN, TEST = slice(0, 400), slice(400, 500), slice(500, 1437), slice(1437, 1797)


def base() -> nn.Module:
    """Trained on 400 upright digits, in one place."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(100):
        optimizer.zero_grad()
        cross_entropy(model(UPRIGHT[PUBLIC]), Y[PUBLIC]).backward()
        optimizer.step()
    return model


def train(method: str = "FA+RM+AH", rounds: int = 60, everything: bool = False) -> History:
    x, y = TURNED[OWN], Y[OWN]
    clients = [(x[y % 5 == own], y[y % 5 == own]) for own in range(5)]
    server, test = ((TURNED[part], Y[part]) for part in (SERVER, TEST))
    model, travels = (base(), "all") if everything else (adapt(base(), rank=4), "trainable")
    return federate(model, clients, server, test, method, rounds, travels=travels, test_every=10)


if __name__ == "__main__":
    for everything in (False, True):
        last = train(everything=everything).rounds[-1]
        print(f"{'all' if everything else 'adapters'}: {last.bytes:,} bytes a round, {last.metrics['accuracy']:.1%}")
