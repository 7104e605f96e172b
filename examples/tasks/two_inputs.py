"""Two inputs, as a dict: a picture and a table. model(**inputs) is what is called.

The picture is the upper half of a handwritten digit; the table has how dark each row of the lower half is. Neither
tells the digit by itself. Ten clients, one digit each.

    python examples/tasks/two_inputs.py
"""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from fedaccord import History, federate


class Both(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.picture, self.table = nn.Conv2d(1, 16, 3, padding=1), nn.Linear(4, 16)
        self.joint, self.out = nn.Linear(16 * 4 * 8 + 16, 64), nn.Linear(64, 10)

    def forward(self, picture: Tensor, table: Tensor) -> Tensor:
        seen = torch.relu(self.picture(picture)).flatten(1)
        read = torch.relu(self.table(table))
        return self.out(torch.relu(self.joint(torch.cat([seen, read], dim=1))))


def train(method: str = "FA+RM+AH", rounds: int = 60) -> History:
    pictures, digits = (torch.tensor(part) for part in load_digits(return_X_y=True))
    pixels = (pictures.float() / 8 - 1).view(-1, 1, 8, 8)
    inputs = {"picture": pixels[:, :, :4], "table": pixels[:, 0, 4:].mean(-1)}

    def part(chosen: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        return {name: value[chosen] for name, value in inputs.items()}, digits[chosen]

    number = torch.arange(len(digits))
    clients = [part((digits == own) & (number >= 200) & (number < 1437)) for own in range(10)]
    torch.manual_seed(0)
    return federate(Both(), clients, part(number < 200), part(number >= 1437), method, rounds, test_every=10)


if __name__ == "__main__":
    print(f"test accuracy {train().rounds[-1].metrics['accuracy']:.1%}")
