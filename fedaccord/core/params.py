"""Copying values into and out of a module."""

from collections.abc import Container

import torch
from torch import Tensor, nn

from fedaccord.core.records import Params


def by_client(stacked: Tensor) -> Tensor:
    """Return a tensor that holds one of each client's as a row per client, also where each has a single number."""
    return stacked.reshape(len(stacked), -1)


@torch.no_grad()
def load_params(module: nn.Module, params: Params) -> None:
    """Copy values into a module's own tensors; those without a value stay as they are."""
    state = module.state_dict(keep_vars=True)
    for name, value in params.items():
        state[name].copy_(value)


def read_params(module: nn.Module, names: Container[str] | None = None) -> Params:
    """Return a copy of a module's values, or of those with these names.

    The copies are on the module's device and contiguous in memory, whatever the layout of its own tensors.
    """
    state = module.state_dict()
    return {
        name: value.clone(memory_format=torch.contiguous_format)
        for name, value in state.items()
        if names is None or name in names
    }
