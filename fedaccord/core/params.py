"""Values in and out of a module."""

import torch
from torch import nn

from fedaccord.core.records import Params


@torch.no_grad()
def load_params(module: nn.Module, params: Params) -> None:
    """Copy the values in; the module's tensors stay where they are."""
    for name, tensor in module.state_dict(keep_vars=True).items():
        tensor.copy_(params[name])


def read_params(module: nn.Module) -> Params:
    """A copy of the module's values, on its device and in the plain order of memory, whatever the module's own is."""
    return {name: value.clone(memory_format=torch.contiguous_format) for name, value in module.state_dict().items()}
