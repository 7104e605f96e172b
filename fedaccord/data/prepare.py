"""Functions from stored inputs to what the model sees, in whole batches: scaled, and augmented in training."""

import functools
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

PAD = 4


def as_stored(inputs: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return the inputs unchanged, for data that is already what the model sees."""
    return inputs


@dataclass(frozen=True)
class Pixels:
    """(x / 255 - mean) / std of uint8 pictures, by channel; optionally, random crops and flips."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    augment: bool = False

    def __call__(self, inputs: Tensor, generator: torch.Generator | None) -> Tensor:
        if self.augment and generator is not None:
            inputs = crop_and_flip(inputs, generator)
        scale, shift = constants(self.mean, self.std, inputs.dim(), inputs.device)
        return (inputs * scale).sub_(shift)


@functools.lru_cache(maxsize=16)
def constants(
    mean: tuple[float, ...], std: tuple[float, ...], dimensions: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return the (scale, shift) with which x * scale - shift is (x / 255 - mean) / std, shaped to fit the inputs."""
    shape = (1, -1, *[1] * (dimensions - 2))
    scale = torch.tensor([1 / (255 * s) for s in std], device=device).view(shape)
    return scale, torch.tensor([m / s for m, s in zip(mean, std, strict=True)], device=device).view(shape)


def crop_and_flip(inputs: Tensor, generator: torch.Generator) -> Tensor:
    """Pad pictures by 4 with reflection, crop back at a random place and mirror half of them, at random.

    `inputs` is (batch, channels, h, w), of any type.
    """
    count, _, height, width = inputs.shape
    draw = torch.randint(0, 2 * PAD + 1, (2, count), generator=generator)
    flip = torch.rand(count, generator=generator) < 0.5
    rows = draw[0, :, None] + torch.arange(height)  # (batch, h)
    columns = torch.arange(width).expand(count, width)
    columns = draw[1, :, None] + torch.where(flip[:, None], columns.flip(1), columns)  # (batch, w)
    rows, columns = rows.to(inputs.device), columns.to(inputs.device)
    padded = pad(inputs.float(), (PAD,) * 4, mode="reflect")
    batch = torch.arange(count, device=inputs.device)[:, None, None]
    cropped = padded[batch, :, rows[:, :, None], columns[:, None, :]]  # (batch, h, w, channels)
    return cropped.permute(0, 3, 1, 2)  # channels last in memory, as the networks are (runtime/checks.lay_out)
