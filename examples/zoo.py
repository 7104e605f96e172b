"""Networks beyond the paper's, each a task on the embedded digits: representation matching serves them as they are.

fedaccord matching examples/zoo.py:resnet            what will be matched, and what it costs
fedaccord run examples/zoo.py:resnet --method FA+RM
fedaccord run examples/zoo.py:transformer --method FA+RM
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedaccord import Examples, Task
from fedaccord.data import digits
from fedaccord.data.prepare import Pixels
from fedaccord.data.sets import DataSet

DIGITS = Pixels((0.3053,), (0.3760,))
SETTINGS = {"validation_per_class": 10, "batch_size": 32, "rounds": 60, "test_every": 5, "lr": 0.05, "steps": 5}


class Block(nn.Module):
    """A residual block with a stride; its non-linearities are plain function calls."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Callable[[int], nn.Module]):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = norm(outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride) if stride != 1 or inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """BatchNorm (or another norm), strides, global average pooling."""

    def __init__(self, norm: Callable[[int], nn.Module] = nn.BatchNorm2d) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 3, padding=1)
        self.blocks = nn.Sequential(Block(16, 16, 1, norm), Block(16, 32, 2, norm))
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x).relu()).mean(dim=(2, 3)))


def vgg() -> nn.Module:
    """conv -> ReLU -> conv -> ReLU -> pool, twice; dropout in the head."""

    def stage(inputs: int, outputs: int) -> list[nn.Module]:
        first, second = nn.Conv2d(inputs, outputs, 3, padding=1), nn.Conv2d(outputs, outputs, 3, padding=1)
        return [first, nn.ReLU(inplace=True), second, nn.ReLU(inplace=True), nn.MaxPool2d(2)]

    head = [nn.Flatten(), nn.Linear(128, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10)]
    return nn.Sequential(*stage(1, 16), *stage(16, 32), *head)


def conv1d() -> nn.Module:
    """A 1-d convolutional network over a signal of 64 samples."""
    return nn.Sequential(
        nn.Conv1d(1, 16, 5, padding=2),
        nn.MaxPool1d(2),
        nn.GELU(),
        nn.Conv1d(16, 32, 5, stride=2, padding=2),
        nn.GELU(),
        nn.AdaptiveAvgPool1d(4),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


class Transformer(nn.Module):
    """A small encoder over 64 tokens, the grey values 0-16."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(17, width)
        self.place = nn.Parameter(0.02 * torch.randn(64, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(tokens) + self.place).mean(dim=1))


def reshaped(change: Callable[[Tensor], Tensor]) -> DataSet:
    data = digits.load()
    train, test = (Examples(change(part.inputs), part.targets) for part in (data.train, data.test))
    return DataSet(train, test, data.classes)


def as_signal() -> DataSet:
    return reshaped(lambda pixels: DIGITS(pixels, None).flatten(2))  # (examples, 1, 64)


def as_tokens() -> DataSet:
    return reshaped(lambda pixels: (pixels.flatten(1).int() + 15) // 16)  # (examples, 64), 0 to 16


resnet = Task("resnet", digits.load, ResNet, DIGITS, SETTINGS)
resnet_groups = Task("resnet_groups", digits.load, lambda: ResNet(lambda n: nn.GroupNorm(4, n)), DIGITS, SETTINGS)
vgg_like = Task("vgg_like", digits.load, vgg, DIGITS, SETTINGS)
signal = Task("signal", as_signal, conv1d, settings=SETTINGS)
transformer = Task("transformer", as_tokens, Transformer, settings=SETTINGS)
