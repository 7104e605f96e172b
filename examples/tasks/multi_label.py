"""Several labels at once: of a handwritten digit, is it even, is it above four, does it have a closed loop?

Ten clients, one digit each: a client that has only sevens never sees a loop.

    python examples/tasks/multi_label.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from fedaccord import History, federate

LOOPS = torch.tensor([0, 4, 6, 8, 9])


def answers(digit: torch.Tensor) -> torch.Tensor:
    """(examples, 3) of zeros and ones."""
    return torch.stack([digit % 2 == 0, digit > 4, torch.isin(digit, LOOPS)], dim=1).float()


def train(method: str = "FA+RM+AH", rounds: int = 60) -> History:
    pictures, digits = (torch.tensor(part) for part in load_digits(return_X_y=True))
    x, y = pictures.float() / 8 - 1, answers(digits)
    server, test, rest = slice(0, 200), slice(1437, 1797), slice(200, 1437)
    clients = [(x[rest][digits[rest] == own], y[rest][digits[rest] == own]) for own in range(10)]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    return federate(
        model, clients, (x[server], y[server]), (x[test], y[test]), method, rounds,
        loss=binary_cross_entropy_with_logits, metrics=["f1", "auc", "accuracy"], better="auc", test_every=10,
    )  # fmt: skip


if __name__ == "__main__":
    metrics = train().rounds[-1].metrics
    print(", ".join(f"{name} {value:.3f}" for name, value in metrics.items()))
