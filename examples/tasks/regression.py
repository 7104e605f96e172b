"""A regressor: how far diabetes went within a year, at ten clinics whose patients could not differ more.

The first clinic has the mildest tenth of all cases, the last one the worst: clients sorted by the target.

    python examples/tasks/regression.py
"""

import torch
from sklearn.datasets import load_diabetes
from torch import nn
from torch.nn.functional import mse_loss

from fedaccord import History, federate

CLINICS = 10


def patients() -> tuple[torch.Tensor, torch.Tensor]:
    """442 patients, ten measurements each; both sides scaled, in a fixed random order."""
    x, y = (torch.tensor(part, dtype=torch.float32) for part in load_diabetes(return_X_y=True))
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    return ((x - x.mean(0)) / x.std(0))[order], ((y - y.mean()) / y.std())[order].unsqueeze(1)


def train(method: str = "FA+RM+AH", rounds: int = 60) -> History:
    x, y = patients()
    server, test, rest = slice(0, 60), slice(60, 150), torch.arange(150, len(y))
    rest = rest[y[rest, 0].argsort()]
    clients = [(x[part], y[part]) for part in rest.chunk(CLINICS)]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
    return federate(
        model, clients, (x[server], y[server]), (x[test], y[test]), method, rounds,
        loss=mse_loss, metrics="r2, mae", batch_size=32, test_every=10,
    )  # fmt: skip


if __name__ == "__main__":
    print(f"explains {train().rounds[-1].metrics['r2']:.0%} of the variance on patients nobody trained on")
