"""Your model, your data, your settings: the one file of this folder to edit. Server and clients all have it."""

import torch
from sklearn.datasets import load_digits
from torch import nn

from fedaccord import config
from fedaccord.records import Examples

CLIENTS = 3
SETTINGS = config.make(
    {"task": "python", "method": "FA+RM+AH", "clients": CLIENTS, "rounds": 20, "batch_size": 32, "entropy_min": 2.0,
     "grid": "lr = 0.05..0.5/9 log; steps = 5..45/9"}
)  # fmt: skip


def build_model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def load_my_data(client: int) -> Examples:
    """Called on the client alone. Here: every third digit of scikit-learn's; yours come from this machine's disk."""
    inputs, targets = everything()
    mine = torch.arange(300, len(targets)) % CLIENTS == client
    return Examples(inputs[300:][mine], targets[300:][mine])


def load_server_data() -> tuple[Examples | None, Examples | None]:
    """What the server measures the loss on, and a test set. (None, None): the clients report their losses."""
    inputs, targets = everything()
    return Examples(inputs[:150], targets[:150]), Examples(inputs[150:300], targets[150:300])


def everything() -> tuple[torch.Tensor, torch.Tensor]:
    digits = load_digits()
    return torch.tensor(digits.images / 16, dtype=torch.float32), torch.tensor(digits.target)
