"""Your model, your data, your settings: the one file of this folder to edit. Server and clients all have it.

It serves the stock Flower commands (server_app.py and client_app.py beside it), fedaccord's own
(`fedaccord federation node --task task.py:task ...`) and the simulator (`fedaccord run task.py:task`).
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

from fedaccord import Examples, Task

CLIENTS = 3


def build_model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def load_my_data(client: int) -> Examples:
    """Called on the client's machine alone; all that it returns is this client's, nothing is divided.

    Here: every third digit of scikit-learn's. Yours come from this machine's disk, such as
        table = numpy.load("/data/patients.npz")
        return Examples(torch.tensor(table["x"]), torch.tensor(table["y"]))
    """
    inputs, targets = everything()
    mine = torch.arange(300, len(targets)) % CLIENTS == client
    return Examples(inputs[300:][mine], targets[300:][mine])


def load_server_data() -> tuple[Examples | None, Examples | None]:
    """What the server measures the loss on, and a test set, or None for either.

    Without a validation set the clients report their losses: then set evaluate = "clients" below.
    """
    inputs, targets = everything()
    return Examples(inputs[:150], targets[:150]), Examples(inputs[150:300], targets[150:300])


def everything() -> tuple[torch.Tensor, torch.Tensor]:
    digits = load_digits()
    return torch.tensor(digits.images / 16, dtype=torch.float32), torch.tensor(digits.target)


task = Task(
    "my-federation",
    model=build_model,
    load_my_data=load_my_data,
    load_server_data=load_server_data,
    settings={"method": "FA+RM+AH", "clients": CLIENTS, "rounds": 20, "batch_size": 32},
)
