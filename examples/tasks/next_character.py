"""A language model: the next character, at clients who write about different things.

The texts are the descriptions of seven data sets inside scikit-learn, one a client. For Shakespeare's plays by role:
`fedaccord run shakespeare`.

    python examples/tasks/next_character.py
"""

import torch
from sklearn import datasets
from torch import Tensor, nn

from fedaccord import History, federate

NAMES = ("breast_cancer", "diabetes", "digits", "iris", "linnerud", "wine", "files")
PLACES = 40


def pieces(text: str) -> tuple[Tensor, Tensor]:
    """(pieces, places) of characters, and at each place the one that follows."""
    codes = torch.tensor([min(ord(letter), 127) for letter in text])
    rows = codes.unfold(0, PLACES + 1, PLACES)
    return rows[:, :-1], rows[:, 1:]


class Writer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.recurrent, self.out = (
            nn.Embedding(128, 16),
            nn.GRU(16, 48, batch_first=True),
            nn.Linear(48, 128),
        )

    def forward(self, letters: Tensor) -> Tensor:
        return self.out(self.recurrent(self.embed(letters))[0])


def train(method: str = "FA+RM+AH", rounds: int = 20) -> History:
    texts = [getattr(datasets, f"load_{name}") for name in NAMES]
    found = [pieces(text.__doc__ if text is datasets.load_files else text().DESCR) for text in texts]
    clients = [(x[len(x) // 5 :], y[len(y) // 5 :]) for x, y in found]  # the first fifth of each is for the server
    x, y = (torch.cat([pair[side][: len(pair[0]) // 5] for pair in found]) for side in (0, 1))
    torch.manual_seed(0)
    return federate(
        Writer(), clients, (x[::2], y[::2]), (x[1::2], y[1::2]), method, rounds,
        metrics="bits, accuracy, perplexity", batch_size=16, test_every=10,
    )  # fmt: skip


if __name__ == "__main__":
    print(f"{train().rounds[-1].metrics['bits']:.2f} bits a character")
