"""Arithmetic on models as tables of tensors: running means, steps and their norms."""

import math
from collections.abc import Sequence

import torch

from fedaccord.core.records import Params


def absorb(mean: Params, params: Params, weight: float) -> None:
    """Compute mean <- mean + weight (params - mean) in place; an empty mean takes the values.

    Equal values stay equal to the bit. A tensor that is not a float (BatchNorm's batch counter, an index table, a mask)
    takes the largest value: it has no mean, and equal ones stay as they are.
    """
    if not mean:
        mean |= {name: value.clone() for name, value in params.items()}
        return
    for name, value in mean.items():
        if value.is_floating_point():
            value.lerp_(params[name], weight)
        else:
            torch.maximum(value, params[name], out=value)


def weights_of(params: Params, buffers: frozenset[str]) -> list[str]:
    """Return the names of what is a step's direction: floats that are no buffers."""
    return [name for name, value in params.items() if value.is_floating_point() and name not in buffers]


def scale(params: Params, received: Params, factor: float, buffers: frozenset[str]) -> None:
    """Compute params <- received + factor (params - received) in place.

    Buffers stay as they are: a variance must not be extrapolated.
    """
    if factor != 1.0:
        for name in weights_of(params, buffers):
            params[name].sub_(received[name]).mul_(factor).add_(received[name])


def distance(received: Params, params: Params, names: Sequence[str]) -> float:
    """Return ||params - received|| over the tensors of these names."""
    return together(distances(received, params, names))


def distances(received: Params, params: Params, names: Sequence[str]) -> list[float]:
    """Return ||params - received|| for the tensor of each of these names."""
    return norms_of(torch._foreach_sub([params[name] for name in names], [received[name] for name in names]))


def norm_of(tensors: list[torch.Tensor] | tuple[torch.Tensor, ...]) -> float:
    """Return the Euclidean norm of all tensors together."""
    return together(norms_of(tensors))


def norms_of(tensors: list[torch.Tensor] | tuple[torch.Tensor, ...]) -> list[float]:
    """Return the Euclidean norm of each tensor."""
    return [float(norm) for norm in torch._foreach_norm(tensors)] if tensors else []


def together(norms: Sequence[float]) -> float:
    """Return the norm of a vector whose parts have these norms; infinity if its square overflows a float."""
    try:
        return math.sqrt(math.fsum(norm**2 for norm in norms))
    except OverflowError:
        return math.inf
