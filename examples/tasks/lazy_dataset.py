"""200,000 examples that are never all in memory: a map-style Dataset, read as it is needed.

Here an item is a handwritten digit, enlarged and moved at random as it is read; all of them as floats would take
2.5 GB. Yours may read a file for each item: `readers=2` reads ahead in two processes while a client trains.

    python examples/tasks/lazy_dataset.py
"""

import resource

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import Dataset

from fedaccord import History, federate

ITEMS, CLIENTS = 200_000, 4


class Moved(Dataset):
    """A client's items: digits, enlarged to 56 x 56, at a random place."""

    def __init__(self, client: int, length: int = ITEMS // CLIENTS, first: int = 200, last: int = 1437):
        pictures, digits = (torch.tensor(part) for part in load_digits(return_X_y=True))
        self.pictures, self.digits = pictures[first:last].float().view(-1, 1, 8, 8) / 8 - 1, digits[first:last]
        self.client, self.length = client, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        place = (number * CLIENTS + self.client) % len(self.digits)
        big = self.pictures[place].repeat_interleave(6, dim=1).repeat_interleave(6, dim=2)
        down, right = torch.randint(0, 9, (2,)).tolist()
        return nn.functional.pad(big, (right, 8 - right, down, 8 - down), value=-1.0), int(self.digits[place])


def train(method: str = "FA+RM+AH", rounds: int = 20, **settings: object) -> History:
    torch.manual_seed(0)
    shrink = nn.AvgPool2d(4)
    model = nn.Sequential(shrink, nn.Flatten(), nn.Linear(14 * 14, 64), nn.ReLU(), nn.Linear(64, 10))
    clients = [Moved(client) for client in range(CLIENTS)]
    validation, test = Moved(0, 200, 0, 200), Moved(0, 360, 1437, 1797)
    return federate(model, clients, validation, test, method, rounds, test_every=10, **settings)


if __name__ == "__main__":
    accuracy = train().rounds[-1].metrics["accuracy"]
    print(f"test accuracy {accuracy:.1%}, {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB at most")
