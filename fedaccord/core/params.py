"""Values in and out of a module."""

from collections.abc import Container

import torch
from torch import nn

from fedaccord.core.records import Params


@torch.no_grad()
def load_params(module: nn.Module, params: Params) -> None:
    """Copy the values in; the module's tensors stay where they are, and those without a value as they are."""
    state = module.state_dict(keep_vars=True)
    for name, value in params.items():
        state[name].copy_(value)


def read_params(module: nn.Module, names: Container[str] | None = None) -> Params:
    """A copy of the module's values, or of those of these names.

    On its device and in the plain order of memory, whatever the module's own is.
    """
    state = module.state_dict()
    return {
        name: value.clone(memory_format=torch.contiguous_format)
        for name, value in state.items()
        if names is None or name in names
    }
