"""Adapters: a frozen model with a small low-rank update beside its dense layers (LoRA, Hu et al. 2021).

With travels = trainable only the adapters are sent, averaged and checkpointed. A model that another library has put
adapters into works the same way, since requires_grad decides what travels.
"""

import math
from fnmatch import fnmatchcase

from torch import Tensor, nn
from torch.nn.functional import linear

from fedaccord.core.errors import SettingsError


class Adapted(nn.Linear):
    """A dense layer whose weight is base + scale * up @ down; base and bias are frozen, and `up` starts at zero.

    It is a Linear with a `weight`, so modules that look into their dense layers (torch's attention) work with it.
    """

    def __init__(self, given: nn.Linear, rank: int, scale: float):
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.scale = given.in_features, given.out_features, scale
        self.base = nn.Parameter(given.weight.detach(), requires_grad=False)
        bias = None if given.bias is None else nn.Parameter(given.bias.detach(), requires_grad=False)
        self.register_parameter("bias", bias)
        self.down = nn.Parameter(self.base.new_empty(rank, given.in_features))
        self.up = nn.Parameter(self.base.new_zeros(given.out_features, rank))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        return self.base + self.scale * self.up @ self.down

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.base, self.bias) + self.scale * linear(linear(input, self.down), self.up)

    def merged(self) -> nn.Linear:
        """Return a plain dense layer that computes the same."""
        plain = nn.Linear(self.in_features, self.out_features, self.bias is not None)
        plain.weight = nn.Parameter(self.weight.detach())
        if self.bias is not None:
            plain.bias = nn.Parameter(self.bias.detach())
        return plain


def adapt(model: nn.Module, rank: int = 8, layers: str = "*", scale: float = 1.0) -> nn.Module:
    """Freeze the model and put adapters into its dense layers, in place.

    layers  the names of those layers, with wildcards and commas; unfreeze afterwards what else is to be trained
            (such as a new head)
    scale   a factor on the update
    """
    patterns = [pattern.strip() for pattern in layers.split(",")]
    every = list(model.named_modules(remove_duplicate=False))
    dense = {name: module for name, module in every if isinstance(module, nn.Linear) and name}
    chosen = [name for name in dense if any(fnmatchcase(name, pattern) for pattern in patterns)]
    if not chosen:
        raise SettingsError(f"layers = {layers}: no dense layer is called so; there are {', '.join(dense) or 'none'}")
    model.requires_grad_(False)
    made: dict[int, Adapted] = {}  # a layer that is used in two places stays one layer
    for name in chosen:
        layer = dense[name]
        if id(layer) not in made:
            made[id(layer)] = Adapted(layer, rank, scale)
        put(model, name, made[id(layer)])
    return model


def merge(model: nn.Module) -> nn.Module:
    """Fold each adapter's update into its dense layer, in place, so that the model has its original form again."""
    found = [(n, each) for n, each in model.named_modules(remove_duplicate=False) if isinstance(each, Adapted)]
    made: dict[int, nn.Linear] = {}
    for name, layer in found:
        if id(layer) not in made:
            made[id(layer)] = layer.merged()
        put(model, name, made[id(layer)])
    return model


def put(model: nn.Module, name: str, module: nn.Module) -> None:
    place, _, last = name.rpartition(".")
    setattr(model.get_submodule(place), last, module)
