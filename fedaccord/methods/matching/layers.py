"""The matching layers f_j, built for any model, and the matching loss, Eq. 1."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import interpolate

from fedaccord.core.batches import Batch, count
from fedaccord.core.errors import MatchingError
from fedaccord.methods.matching.activations import Activation, Event, Pooling, Weighted, observe

LARGEST_LINEAR = 2**26
"""The most weights of a dense f_j; if it had more, the upper layer is first averaged over its positions."""

CONVOLUTIONS: dict[int, Callable[..., nn.Module]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


class MatchingLayer(nn.Module):
    """One matching layer f_j, which rebuilds the layer of interest below, a_j, from the one above it, a_{j+1}.

    It goes back through what lies between them: it undoes the poolings that came after the weights, has one convolution
    or one linear layer in place of the weights, and undoes the poolings that came before them. There are four forms:

    each    a Linear on the last axis: flat -> flat, or token by token
    conv    a convolution with the kernel of the layer it reverses, same padding
    spread  a Linear whose output is repeated for every token: a vector -> a sequence
    fold    a Linear whose output is folded into (channels, positions): a vector -> an image
    """

    def __init__(
        self, below: Activation, between: Sequence[Event], above: Activation, kernel: int = 0, step: float = 0.0
    ):
        super().__init__()
        target, source = below.value.shape[1:], above.value.shape[1:]
        weighted = [event for event in between if isinstance(event, Weighted)]
        poolings = [event for event in between if isinstance(event, Pooling)]
        tokens = below.tokens or (below.given and len(target) >= 2 and bool(weighted) and weighted[0].tokens)
        self.form = form_of(source, target, tokens)
        self.step = step  # root mean square of its gradients; 0: they stay as they are
        self.early = 0  # how many of the poolings are undone after the weights, because they came before them
        self.layer: nn.Module
        if self.form == "each":
            self.layer = nn.Linear(source[-1], target[-1])
        elif self.form == "conv":
            self.early = early_poolings(between)
            sizes = kernel_of(weighted, kernel, len(target) - 1)
            padding = tuple(size // 2 for size in sizes)
            self.layer = CONVOLUTIONS[len(target) - 1](source[0], target[0], sizes, padding=padding)
        else:
            self.average = len(source) > 1 and math.prod(source) * math.prod(target) > LARGEST_LINEAR
            self.features_last = above.tokens
            width = source[-1 if above.tokens else 0] if self.average else math.prod(source)
            self.folded = tuple(target)
            if self.form == "spread":
                self.folded = tuple(target[-1:])
            elif poolings and len(poolings[-1].after) == len(target) + 1:
                self.folded, self.early = (target[0], *poolings[-1].after[2:]), len(poolings)
            self.layer = nn.Linear(width, math.prod(self.folded))

    def forward(self, above: Tensor, poolings: Sequence[Pooling], like: Tensor) -> Tensor:
        """Rebuild `like` from the layer above; `poolings`: those between the two in this run of the trainable model."""
        if self.form == "each":
            return self.weigh(above)
        if self.form == "conv":
            for pooling in reversed(poolings[self.early :]):
                above = undo(pooling, above)
            x = self.weigh(above)
        else:
            if self.average:
                above = above.flatten(1, -2).mean(dim=1) if self.features_last else above.flatten(2).mean(dim=2)
            x = self.weigh(above.flatten(1))
            if self.form == "spread":
                return x.view(len(x), *(1,) * (like.dim() - 2), -1).expand(like.shape).contiguous()
            x = x.view(len(x), *self.folded)
        for pooling in reversed(poolings[: self.early]):
            x = undo(pooling, x)
        x = x if x.shape == like.shape else stretched(interpolate(x, like.shape[2:]), like.shape[1])
        if x.shape != like.shape:
            raise MatchingError(
                f"rebuilt {tuple(x.shape[1:])} where {tuple(like.shape[1:])} was wanted; name other layers"
            )
        return x

    def weigh(self, x: Tensor) -> Tensor:
        """Apply the layer; if it has a step of its own, the gradients of its weights will have that size."""
        weights: dict[str, Tensor] = dict(self.layer.named_parameters())
        if self.step:
            weights = {name: StepOfItsOwn.apply(weight, self.step) for name, weight in weights.items()}
        result: Tensor = functional_call(self.layer, weights, (x,)) if self.step else self.layer(x)
        return result


def stretched(x: Tensor, length: int) -> Tensor:
    """Bring the first axis after the batch to another length, by repeating entries or leaving some out.

    A sequence may be longer or shorter than the one on which the layer was built.
    """
    if x.shape[1] == length:
        return x
    return x[:, torch.arange(length, device=x.device) * x.shape[1] // length]


class StepOfItsOwn(torch.autograd.Function):
    """The identity, with a gradient that is brought to a given root mean square, whatever the loss is weighted by."""

    generate_vmap_rule = True

    @staticmethod
    def forward(weight: Tensor, step: float) -> Tensor:
        return weight.view_as(weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.step = inputs[1]

    @staticmethod
    def backward(ctx: Any, *outer: Any) -> tuple[Tensor, None]:
        (gradient,) = outer
        return gradient * (ctx.step / gradient.square().mean().sqrt().clamp(min=1e-20)), None


def form_of(source: torch.Size, target: torch.Size, tokens: bool) -> str:
    if len(source) == len(target) and (len(target) == 1 or (tokens and source[:-1] == target[:-1])):
        return "each"
    if tokens:
        return "spread"
    if len(source) == len(target) and len(target) - 1 in CONVOLUTIONS:
        return "conv"
    return "fold"


def early_poolings(between: Sequence[Event]) -> int:
    """Return the number of poolings before the first convolution: conv -> ReLU -> pool blocks have them there."""
    for number, event in enumerate(between):
        if isinstance(event, Weighted) and event.kind == "conv":
            return sum(isinstance(earlier, Pooling) for earlier in between[:number])
    return 0


def kernel_of(weighted: Sequence[Weighted], wanted: int, dimensions: int) -> tuple[int, ...]:
    """Return the kernel of the first convolution that is reversed, or the one that was asked for.

    An even size is made odd: only odd kernels keep the input's size without padding one side more than the other.
    """
    found = (event.kernel for event in weighted if len(event.kernel) == dimensions)
    kernel = (wanted,) * dimensions if wanted else next(found, (1,) * dimensions)
    return tuple(size | 1 for size in kernel)


def undo(pooling: Pooling, x: Tensor) -> Tensor:
    """Undo a pooling: put each value at the position it was taken from, and zeros elsewhere.

    Where there are no positions (a mean) or they have another shape (a branch), the values are spread by resizing.
    """
    size = pooling.before[2:]
    if pooling.positions is None or pooling.positions.shape != x.shape:
        return x if x.shape[2:] == size or x.dim() != len(pooling.before) else interpolate(x, size)
    # channels last, (batch, positions, channels): for a network laid out so (runtime/checks.py) these are views
    positions, values = pooling.positions.flatten(2).transpose(1, 2), x.flatten(2).transpose(1, 2)
    empty = x.new_zeros(len(x), math.prod(size), x.shape[1])
    if not pooling.overlapping:
        spread = empty.scatter_(1, positions, values)
    else:  # windows that overlap may have taken the same position: it gets the mean of what they gave
        hits = torch.zeros_like(empty).scatter_add_(1, positions, torch.ones_like(values)).clamp_(min=1)
        spread = empty.scatter_add_(1, positions, values) / hits
    return spread.transpose(1, 2).view(*x.shape[:2], *size)


class Matching(nn.Module):
    """theta_i: the matching layers of one model, f_1 ... f_{M-1}."""

    def __init__(
        self,
        model: nn.Module,
        inputs: Batch,
        layers: Sequence[str] | None = None,
        kernel: int = 0,
        step: float = 0.0,
    ):
        """Build the layers from a trial run on `inputs`, at least one example as the model sees it."""
        super().__init__()
        self.layers = None if layers is None else tuple(layers)
        seen = observe(model, inputs, layers)
        steps = pairs(batch_first(seen, count(inputs)))
        # which layers of interest are sequence-first: decided here, as later a batch may be as long as a sequence
        found = [event for event in seen if isinstance(event, Activation)]
        self.turn = [event.value.shape[0] != count(inputs) for event in found]
        self.names = [below.name for below, _, _ in steps] + [steps[-1][2].name]
        self.f = nn.ModuleList(MatchingLayer(below, between, above, kernel, step) for below, between, above in steps)
        for layer, (_, _, above) in zip(self.f, steps, strict=True):
            layer.to(above.value)  # the device and the type of what it reads

    def reset_parameters(self) -> None:
        """Set theta to theta_1: torch's own initialisation, from the global generator."""
        for layer in self.f:
            layer.layer.reset_parameters()  # type: ignore[operator, union-attr]

    def turned(self, events: Sequence[Event]) -> list[Event]:
        """Return the events with the batch as the first axis of every activation."""
        if not any(self.turn):
            return list(events)
        turn, result = iter(self.turn), []
        for event in events:
            if isinstance(event, Activation) and next(turn, False):
                event = replace(event, value=event.value.transpose(0, 1))
            result.append(event)
        return result

    def loss(self, trained: Sequence[Event], frozen: Sequence[Event]) -> Tensor:
        """Eq. 1: L_M = sum_{j=1}^{M-1} || f_j(a_{j+1}(x; w_i); theta_j) - a_j(x; w) ||_2^2, mean over the batch.

        `trained` are the events of the trainable model (with pooling positions), `frozen` those of the received one. If
        the frozen model saw only the first part of the batch, only that part is matched.
        """
        trained, frozen = self.turned(trained), self.turned(frozen)
        targets = [event for event in frozen if isinstance(event, Activation)]
        names = [event.name for event in trained if isinstance(event, Activation)]
        if names != self.names or len(targets) != len(names):
            raise MatchingError(
                "the model ran other layers than when its matching layers were built: "
                "name layers that run every time (rm_layers)"
            )
        total = None
        for layer, target, (below, between, above) in zip(self.f, targets, pairs(trained), strict=False):
            examples = len(target.value)
            poolings = [cut(event, examples) for event in between if isinstance(event, Pooling)]
            # a whole batch is not sliced: the slice's gradient would be a copy with another memory layout
            upper = above.value if len(above.value) == examples else above.value[:examples]
            rebuilt = layer(upper, poolings, target.value)
            if below.finish is not None:
                rebuilt = below.finish(rebuilt)
            # PAPER (Eq. 1): squared norm; the prose says "mean squared". HERE: sum over features, mean over the batch.
            # WHY: Eq. 1 is per point; the weight that the paper leaves out is rm_weight.
            term = squared_distance(rebuilt, target.value) / examples
            total = term if total is None else total + term
        assert total is not None  # there are at least two layers of interest
        return total


def squared_distance(rebuilt: Tensor, target: Tensor) -> Tensor:
    """Return ||rebuilt - target||_2^2, without a gradient for the target."""
    distance, _ = SquaredDistance.apply(rebuilt, target)
    return cast(Tensor, distance)


class SquaredDistance(torch.autograd.Function):
    """The squared distance, with a gradient in the memory layout of the difference that it has computed.

    torch's own mse_loss gives one in the plain order, which costs a channels-last network a tenth of its step.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(rebuilt: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        difference = rebuilt - target
        return torch.linalg.vector_norm(difference).square(), difference

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx: Any, *outer: Any) -> tuple[Tensor, None]:
        (difference,) = ctx.saved_tensors
        return 2 * outer[0] * difference, None


def batch_first(events: Sequence[Event], batch: int) -> list[Event]:
    """Put the batch first in the activations of sequence-first models, (tokens, batch, features)."""
    return [turn(event, batch) if isinstance(event, Activation) else event for event in events]


def turn(activation: Activation, batch: int) -> Activation:
    shape = activation.value.shape
    if len(shape) < 2:
        raise MatchingError(f"layer '{activation.name}' has shape {tuple(shape)}, no batch axis: name other layers")
    if shape[0] == batch:
        return activation
    if shape[1] != batch:
        raise MatchingError(
            f"layer '{activation.name}' has shape {tuple(shape)}, no axis for {batch} examples: name others"
        )
    return replace(activation, value=activation.value.transpose(0, 1))


def pairs(events: Sequence[Event]) -> list[tuple[Activation, list[Event], Activation]]:
    """Return (a_j, what lies between, a_{j+1}) for each pair of consecutive layers of interest.

    An input is rebuilt, but nothing is rebuilt from it: each of several inputs is rebuilt from the next layer that is
    not an input.
    """
    found: list[tuple[Activation, list[Event], Activation]] = []
    waiting: list[tuple[Activation, list[Event]]] = []
    for event in events:
        if isinstance(event, Activation) and not (event.given and waiting):
            found += [(below, between, event) for below, between in waiting]
            waiting = [(event, [])]
        elif isinstance(event, Activation):
            waiting.append((event, []))
        else:
            for _, between in waiting:
                between.append(event)
    return found


def cut(pooling: Pooling, count: int) -> Pooling:
    """Return the pooling of the first `count` examples."""
    if pooling.positions is None or len(pooling.positions) == count:
        return pooling
    return replace(pooling, positions=pooling.positions[:count])
