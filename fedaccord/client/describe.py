"""What representation matching will do to a model, before any training: its layers, the f_j, their size and cost."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from fedaccord.client.activations import Activation, Pooling, record
from fedaccord.client.matching import Matching, MatchingLayer, pairs


@dataclass(frozen=True)
class Row:
    """One layer of interest and the f_j that rebuilds it (none for the top)."""

    name: str
    inside: str
    shape: tuple[int, ...]
    rebuilt_by: str = ""
    parameters: int = 0
    flops: int = 0  # of one example, forward


def describe(model: nn.Module, matching: Matching, inputs: Tensor) -> tuple[list[Row], int, int]:
    """A row a layer of interest, from the input up; the model's own parameters; its FLOPs for one example."""
    with torch.no_grad(), FlopCounterMode(display=False) as own:
        _, events = record(model.eval(), inputs[:1], matching.layers, follow=True)
    rows = []
    for layer, (below, between, above) in zip(matching.f, pairs(matching.turned(events)), strict=True):
        assert isinstance(layer, MatchingLayer)
        poolings = [event for event in between if isinstance(event, Pooling)]
        with torch.no_grad(), FlopCounterMode(display=False) as cost:
            layer(above.value, poolings, below.value)
        unpooled = sum(pooling.positions is not None for pooling in poolings) if layer.form in ("conv", "fold") else 0
        text = f"{layer.form}: {layer.layer}" + (f", unpooled {unpooled}x" if unpooled else "")
        text += f", {below.name.split('#')[0]}" if below.finish is not None else ""
        size = sum(weight.numel() for weight in layer.parameters())
        shape = tuple(below.value.shape[1:])
        rows.append(Row(below.name, below.inside, shape, text, size, cost.get_total_flops()))
    top = events[-1]
    assert isinstance(top, Activation)
    rows.append(Row(top.name, top.inside, tuple(top.value.shape[1:])))
    return rows, sum(weight.numel() for weight in model.parameters()), own.get_total_flops()
