"""Adam at the clients, its state kept there between rounds.

Any optimizer of torch.optim goes by its name; a function (weights, lr=rate) -> optimizer gives it other settings.

    python examples/tasks/adam.py
"""

from functools import partial

import torch
from sklearn.datasets import load_digits
from torch import nn

from fedaccord import History, federate


def train(method: str = "FA+RM+AH", rounds: int = 60) -> History:
    x, y = (torch.tensor(part) for part in load_digits(return_X_y=True))
    x = x.float() / 8 - 1
    server, test, rest = slice(0, 200), slice(1437, 1797), slice(200, 1437)
    clients = [(x[rest][y[rest] % 5 == own], y[rest][y[rest] % 5 == own]) for own in range(5)]  # two digits each
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return federate(
        model, clients, (x[server], y[server]), (x[test], y[test]), method, rounds,
        optimizer=partial(torch.optim.Adam, betas=(0.8, 0.99)), optimizer_state="kept", test_every=10,
    )  # fmt: skip


if __name__ == "__main__":
    print(f"test accuracy {train().rounds[-1].metrics['accuracy']:.1%}")
