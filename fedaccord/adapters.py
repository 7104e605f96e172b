"""Adapters: a frozen model with a small low-rank update beside its dense layers (LoRA, Hu et al. 2021).

With travels = trainable only the adapters are sent, averaged and checkpointed. A model that another library has put
adapters into works the same way: what travels goes by requires_grad.
"""

import math
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from fedaccord.core.errors import SettingsError


class Adapted(nn.Module):
    """W x + b + scale * up(down(x)), with W and b frozen. It starts as W x + b: `up` is zero."""

    def __init__(self, base: nn.Linear, rank: int, scale: float):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(base.weight.new_empty(rank, base.in_features))
        self.up = nn.Parameter(base.weight.new_zeros(base.out_features, rank))
        self.scale = scale
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.base(x) + self.scale * (x @ self.down.T) @ self.up.T
        return result

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """One dense layer that does the same."""
        self.base.weight += self.scale * self.up @ self.down
        return self.base


def adapt(model: nn.Module, rank: int = 8, layers: str = "*", scale: float = 1.0) -> nn.Module:
    """Freeze the model and put adapters into its dense layers, in place.

    layers  which, by name, with wildcards and commas; what else is to be trained (a new head), unfreeze afterwards
    scale   a factor on the update
    """
    patterns = [pattern.strip() for pattern in layers.split(",")]
    dense = [name for name, module in model.named_modules() if isinstance(module, nn.Linear) and name]
    chosen = [name for name in dense if any(fnmatchcase(name, pattern) for pattern in patterns)]
    if not chosen:
        raise SettingsError(f"layers = {layers}: no dense layer is called so; there are {', '.join(dense) or 'none'}")
    model.requires_grad_(False)
    for name in chosen:
        put(model, name, Adapted(model.get_submodule(name), rank, scale))  # type: ignore[arg-type]
    return model


def merge(model: nn.Module) -> nn.Module:
    """Put each adapter's update into its dense layer, in place: the model has its first form again."""
    for name in [name for name, module in model.named_modules() if isinstance(module, Adapted)]:
        put(model, name, model.get_submodule(name).merged())  # type: ignore[operator]
    return model


def put(model: nn.Module, name: str, module: nn.Module) -> None:
    place, _, last = name.rpartition(".")
    setattr(model.get_submodule(place), last, module)
