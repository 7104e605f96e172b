"""Your own model and data: one short file, used two ways.

    python examples/own_model.py             trains from Python
    fedaccord run examples/own_model.py:task   the same task on the command line, resumable

Replace `Net` and `hospitals` by yours. Nothing needs tuning to start.
"""

import torch
from sklearn.datasets import load_breast_cancer
from torch import nn

from fedaccord import Examples, Task, federate
from fedaccord.data.sets import DataSet


class Net(nn.Module):
    """Any torch.nn.Module that maps inputs to class scores."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(30, 32)
        self.out = nn.Linear(32, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.hidden(x)))


def measurements() -> Examples:
    """569 real tumours, 30 measurements each (inside scikit-learn); scaled, in a fixed random order."""
    x, y = load_breast_cancer(return_X_y=True)
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    return Examples(torch.tensor(x, dtype=torch.float32)[order], torch.tensor(y)[order])


def hospitals(data: Examples) -> list[Examples]:
    """Four sites that could not differ more: two see only malignant tumours, two only benign ones."""
    sites = []
    for label in (0, 1):
        mine = data[data.targets == label]
        sites += [mine[0::2], mine[1::2]]
    return sites


def load() -> DataSet:
    data = measurements()
    return DataSet(train=data[:450], test=data[450:], classes=("malignant", "benign"))


task = Task("tumours", load, Net, settings={"clients": 4, "validation_per_class": 20, "rounds": 60})


if __name__ == "__main__":
    data = measurements()
    history = federate(Net(), hospitals(data[100:450]), validation=data[:100], test=data[450:], rounds=60, show=True)
    print(f"test accuracy {history.rounds[-1].metrics['accuracy']:.1%}")
