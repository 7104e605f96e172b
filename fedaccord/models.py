"""The paper's three networks, LeNet, and a recurrent network that predicts the next character.

Blocks run conv -> pool -> ReLU: the same scores as conv -> ReLU -> pool, and ReLU has a quarter of the work. What
representation matching rebuilds is the block's output, after all three.
"""

from torch import Tensor, nn


def mnist_mlp(inputs: int = 784, hidden: int = 100, classes: int = 10) -> nn.Sequential:
    """Build the network for MNIST: two hidden layers of 100 neurons. 784-100-100-10 has 89,610 parameters."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(inputs, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    )


def cifar_cnn(channels: int = 3, size: int = 32, classes: int = 10, width: int = 32) -> nn.Sequential:
    """Build the network for CIFAR-10.

    It has 5x5 convolutions of 32 and 64 maps, each max-pooled 2x2, then 1024 and 10 neurons.
    """
    side = size // 4
    return nn.Sequential(
        nn.Conv2d(channels, width, 5, padding=2),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 5, padding=2),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * width * side * side, 1024),
        nn.ReLU(),
        nn.Linear(1024, classes),
    )


def kws_cnn(size: int = 32, classes: int = 10, width: int = 64) -> nn.Sequential:
    """Build the network for keyword spotting.

    It has four 3x3 convolutions of 64 maps, max-pooled after each pair, then 1024 and 10 neurons. `width` narrows every
    hidden layer in proportion (64 is the paper's).
    """
    side = size // 4
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(width * side * side, 16 * width),
        nn.ReLU(),
        nn.Linear(16 * width, classes),
    )


def lenet(channels: int = 3, size: int = 32, classes: int = 10) -> nn.Sequential:
    """Build LeNet with ReLU, as NIID-Bench has it for CIFAR-10.

    It has 5x5 convolutions of 6 and 16 maps without padding, each max-pooled 2x2, then 120, 84 and 10 neurons. For
    3 x 32 x 32 it has 62,006 parameters.
    """
    side = ((size - 4) // 2 - 4) // 2
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(6, 16, 5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * side * side, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, classes),
    )


class CharacterGru(nn.Module):
    """A next-character model: an embedding of 8, one GRU, and a score for each character at each place."""

    def __init__(self, tokens: int, width: int = 256):
        super().__init__()
        self.embed = nn.Embedding(tokens, 8)
        self.recurrent = nn.GRU(8, width, batch_first=True)
        self.out = nn.Linear(width, tokens)

    def forward(self, characters: Tensor) -> Tensor:
        states, _ = self.recurrent(self.embed(characters))  # (examples, places, width)
        scores: Tensor = self.out(states)
        return scores
