"""FixedHead: class vectors that are fixed at the start (as SphereFed, Dong et al., 2022, and FedAwS, Yu et al., 2020).

The last layer's weight holds a vector for each class. A client that has one class pulls its own vector towards its
features and pushes all others away; the mean of such steps lets the vectors collapse. FedAwS has the server spread them
out after every round. SphereFed fixes them on the unit sphere and trains the rest of the network towards them: then all
clients agree on where a class belongs before the first round. Here
    scores = scale * V z,      V V^T = I,  V fixed,  no bias
with z what the layer below gives. Nothing else changes, so it can be joined with any method; with travels = trainable
the head is not even sent.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from fedaccord.core.errors import SettingsError
from fedaccord.core.protocols import Part
from fedaccord.core.seeds import generator
from fedaccord.core.settings import above, setting


class FixedHead(Part):
    name = "FixedHead"
    about = "the last layer's class vectors are orthonormal and fixed, so that all clients know where a class belongs"
    settings = (
        above(0, "head_scale", 1.0, "Length of FixedHead's class vectors."),
        setting("head_layer", "", "FixedHead's layer by its name in the model (the Linear layer that was made last)."),
    )

    @torch.no_grad()
    def prepare(self, model: nn.Module, settings: Mapping[str, Any]) -> None:
        # SphereFed (its abstract; the text was not at hand): z has unit length, and after training V is calibrated by
        # least squares in closed form. HERE: z and the loss are the model's and the task's own, and V stays. WHY: any
        # model and metric is taken as it is; what is measured is the fixed class vectors alone.
        # FedAwS: vectors are trained by their clients and spread out by the server. HERE: drawn once. WHY: they are
        # spread out from the start, and nothing draws them together.
        layer = head_of(model, settings["head_layer"])
        rows, columns = layer.weight.shape
        if rows > columns:
            raise SettingsError(
                f"FixedHead: {rows} classes have no orthogonal vectors in {columns} dimensions; let the layer below "
                f"the last give {rows} features or more"
            )
        drawn = torch.randn(columns, rows, generator=generator(settings["seed"], "head"), dtype=torch.float64)
        q, r = torch.linalg.qr(drawn)
        layer.weight.copy_(settings["head_scale"] * (q * r.diagonal().sign()).T)  # uniform over all such vectors
        layer.weight.requires_grad_(False)
        if layer.bias is not None:
            layer.bias.zero_()
            layer.bias.requires_grad_(False)


def head_of(model: nn.Module, name: str) -> nn.Linear:
    """Return the Linear layer whose rows are the class vectors; raise SettingsError if it cannot be fixed."""
    layers = {place: each for place, each in model.named_modules() if isinstance(each, nn.Linear)}
    if not layers or (name and name not in layers):
        there = f"; there are {', '.join(layers)}" if layers else ""
        raise SettingsError(f"FixedHead: fixes a Linear layer, and there is no {name or 'such layer'}{there}")
    layer = layers[name] if name else list(layers.values())[-1]
    if "weight" not in dict(layer.named_parameters(recurse=False)):
        raise SettingsError("FixedHead: the last layer's weight is computed from others, so it cannot be fixed")
    if isinstance(layer.weight, nn.parameter.UninitializedParameter):
        raise SettingsError("FixedHead: the last layer has no size yet (LazyLinear): write its size")
    uses = [place for place, weight in model.named_parameters(remove_duplicate=False) if weight is layer.weight]
    if len(uses) > 1:
        raise SettingsError(f"FixedHead: {' and '.join(uses)} are one tensor, so it cannot be fixed alone")
    own = {id(weight) for weight in layer.parameters()}
    if not any(weight.requires_grad for weight in model.parameters() if id(weight) not in own):
        raise SettingsError("FixedHead: there is nothing below the last layer that could be trained")
    return layer
