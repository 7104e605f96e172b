"""What representation matching will do to a model, before any training: its layers, the f_j, their size and cost."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fedaccord.core.batches import Batch, mapped
from fedaccord.methods.matching.activations import Activation, Pooling, record
from fedaccord.methods.matching.layers import Matching, MatchingLayer, pairs


@dataclass(frozen=True)
class Row:
    """One layer of interest and the f_j that rebuilds it (none for the top)."""

    name: str
    inside: str
    shape: tuple[int, ...]
    rebuilt_by: str = ""
    parameters: int = 0
    flops: int = 0  # of one example, forward


def describe(model: nn.Module, matching: Matching, inputs: Batch) -> tuple[list[Row], int, int]:
    """Return a row per layer of interest, from the input up; the model's own parameters; its FLOPs for one example."""
    with torch.no_grad(), FlopCounterMode(display=False) as own:
        _, events = record(model.eval(), mapped(lambda x: x[:1], inputs), matching.layers, follow=True)
    rows = []
    for layer, (below, between, above) in zip(matching.f, pairs(matching.turned(events)), strict=True):
        assert isinstance(layer, MatchingLayer)
        poolings = [event for event in between if isinstance(event, Pooling)]
        with torch.no_grad(), FlopCounterMode(display=False) as cost:
            layer(above.value, poolings, below.value)
        unpooled = sum(pooling.positions is not None for pooling in poolings) if layer.form in ("conv", "fold") else 0
        text = f"{layer.form}: {layer.layer}" + (f", unpooled {unpooled}x" if unpooled else "")
        if below.finish is not None:  # a recurrent layer has the function of its range, any other layer is a function
            text += f", {getattr(below.finish, '__name__', below.name.split('#')[0])}"
        size = sum(weight.numel() for weight in layer.parameters())
        shape = tuple(below.value.shape[1:])
        rows.append(Row(below.name, below.inside, shape, text, size, cost.get_total_flops()))
    top = events[-1]
    assert isinstance(top, Activation)
    rows.append(Row(top.name, top.inside, tuple(top.value.shape[1:])))
    return rows, sum(weight.numel() for weight in model.parameters()), own.get_total_flops()


def matching_report(model: nn.Module, inputs: Batch, layers: Sequence[str] | None = None, kernel: int = 0) -> str:
    """Return what `fedaccord matching` prints; `inputs`: two examples or more, as the model sees them."""
    matching = Matching(model, inputs, layers, kernel)
    rows, parameters, flops = describe(model, matching, inputs)
    table = [("layer", "in", "shape", "rebuilt from the layer above by", "parameters", "FLOPs")]
    for row in rows:
        numbers = (f"{row.parameters:,}", f"{row.flops:,}") if row.rebuilt_by else ("", "")
        table.append((row.name, row.inside, "x".join(map(str, row.shape)), row.rebuilt_by, *numbers))
    widths = [max(len(line[column]) for line in table) for column in range(6)]
    theta, cost = sum(row.parameters for row in rows), sum(row.flops for row in rows)
    # forward and backward cost as much as three forwards; the frozen model runs forward only
    ratio = (4 * flops + 3 * cost) / (3 * flops)
    return "\n".join(
        [
            *(
                "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
                for line in table
            ),
            f"theta_i: {theta:,} parameters, {cost:,} FLOPs per example forward; model: {parameters:,} and {flops:,}",
            f"a training step costs about {ratio:.2f} times one without matching",
        ]
    )
