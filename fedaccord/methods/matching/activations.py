"""A recording of a model's run: its layers of interest, in the order in which they run, and what lies between them.

Layers of interest are the input (for token ids: the embedding), every point-wise non-linearity, every recurrent layer
(its output sequence) and the top layer, which is the output. They are seen as function calls, so it does not matter
whether the model says nn.ReLU(), F.relu(x) or x.relu(), or where. Each of several inputs is one, from its first use.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fedaccord.core.batches import Batch, leaves, named_leaves, output_of
from fedaccord.core.errors import MatchingError

POINTWISE = frozenset(
    (
        *("relu", "relu6", "leaky_relu", "rrelu", "prelu", "elu", "selu", "celu", "gelu", "silu", "mish", "threshold"),
        *("tanh", "sigmoid", "log_sigmoid", "softplus", "softsign", "hardtanh", "hardsigmoid", "hardswish"),
        *("hardshrink", "softshrink", "tanhshrink"),
    )
)
MAX_POOLINGS = frozenset(f"{kind}max_pool{n}d" for kind in ("", "adaptive_") for n in (1, 2, 3))
MEAN_POOLINGS = frozenset(f"{kind}avg_pool{n}d" for kind in ("", "adaptive_") for n in (1, 2, 3)) | {"mean"}
CONVOLUTIONS = frozenset(f"conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3))
RECURRENT = {"gru": torch.tanh, "lstm": torch.tanh, "rnn_tanh": torch.tanh, "rnn_relu": torch.relu}
"""Recurrent layers, and the function in whose range their output lies."""
INPUT, TOP = "input", "top"


@dataclass(frozen=True)
class Activation:
    """a_j: a layer of interest. Its name is input, top, function#count, or that of a module named by hand."""

    name: str
    value: Tensor
    finish: Callable[[Tensor], Tensor] | None = None  # the point-wise function that made it
    tokens: bool = False  # whether its features are the last axis: (batch, tokens, features)
    inside: str = ""  # the module that was running, if modules were followed
    given: bool = False  # whether it is an input: nothing lies below it, so nothing is rebuilt from it


@dataclass(frozen=True)
class Pooling:
    """A pooling between two layers of interest. A mean has no positions; those of a maximum may repeat."""

    before: torch.Size
    after: torch.Size
    positions: Tensor | None = None
    overlapping: bool = False


@dataclass(frozen=True)
class Weighted:
    """A layer with weights between two layers of interest."""

    kind: str  # conv, linear, embedding or recurrent
    kernel: tuple[int, ...] = ()
    tokens: bool = False  # whether it worked on each token by itself


Event = Activation | Pooling | Weighted


class Recorder(TorchFunctionMode):
    """A context in which every torch call is inspected, and what matters for matching is recorded, in order."""

    def __init__(self, positions: bool, inputs: Batch):
        super().__init__()
        self.positions = positions
        self.waiting = [each for each in named_leaves(inputs) if each[1].is_floating_point()]  # inputs not used yet
        self.ids = [id(each) for each in leaves(inputs) if not each.is_floating_point()]
        self.events: list[Event] = []
        self.counts: Counter[str] = Counter()
        self.newest: Tensor | None = None  # the output of the last point-wise function
        self.tokens = False
        self.path: list[str] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func.__name__.strip("_")
        if self.waiting:
            self.use(args, kwargs)
        if name.removesuffix("_with_indices") in MAX_POOLINGS and self.positions:
            return self.max_pooling(name, args, kwargs)
        result = func(*args, **kwargs)
        if name in POINTWISE:
            self.counts[name] += 1
            finish = partial(call_again, func, args[1:], kwargs)
            inside = self.path[-1] if self.path else ""
            tokens = self.tokens and result.dim() >= 3
            self.newest = result
            self.events.append(Activation(f"{name}#{self.counts[name]}", column(result), finish, tokens, inside))
        elif name in CONVOLUTIONS:
            weight = args[1] if len(args) > 1 else kwargs["weight"]
            self.tokens = False
            self.events.append(Weighted("conv", tuple(weight.shape[2:])))
        elif name in ("linear", "embedding"):
            self.tokens = result.dim() >= 3
            self.events.append(Weighted(name, tokens=self.tokens))
            # token ids cannot be rebuilt, their embedding can
            if name == "embedding" and (not self.counts[INPUT] or id(args[0] if args else kwargs["input"]) in self.ids):
                self.give("", result, self.tokens)
        elif name in RECURRENT:
            self.counts[name] += 1
            if result[0].dim() == 2 and not args[1].is_floating_point():  # args: packed values, batch sizes ...
                raise MatchingError(
                    f"layer '{name}#{self.counts[name]}' runs on a packed sequence, whose examples cannot be told "
                    "apart: give it the padded tensor"
                )
            self.tokens = True
            self.events.append(Weighted("recurrent", tokens=True))
            inside = self.path[-1] if self.path else ""
            self.events.append(Activation(f"{name}#{self.counts[name]}", result[0], RECURRENT[name], True, inside))
        elif name in MEAN_POOLINGS:
            given = args[0] if args else kwargs["input"]
            # over positions only: batch and channels must have survived
            if given.dim() >= 3 and result.dim() in (2, given.dim()) and result.shape[:2] == given.shape[:2]:
                ones = (1,) * (given.dim() - result.dim())
                self.events.append(Pooling(given.shape, torch.Size((*result.shape, *ones))))
        return result

    def use(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record those inputs that are among these arguments as layers of interest: this is their first use."""
        seen = {id(value) for value in (*args, *kwargs.values())}
        for part in args:
            seen |= {id(value) for value in part} if isinstance(part, list | tuple) else set()
        for name, value in [each for each in self.waiting if id(each[1]) in seen]:
            self.waiting = [each for each in self.waiting if each[1] is not value]
            self.give(name, value, False)

    def give(self, name: str, value: Tensor, tokens: bool) -> None:
        """Record an input as a layer of interest, under its name if it has one, or from the second on by a number."""
        self.counts[INPUT] += 1
        number = self.counts[INPUT]
        label = f"{INPUT}.{name}" if name else f"{INPUT}#{number}" if number > 1 else INPUT
        self.events.append(Activation(label, column(value), tokens=tokens, given=True))

    def max_pooling(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = args[0] if args else kwargs["input"]
        asked = bool(kwargs.pop("return_indices", False)) or name.endswith("_with_indices")
        name = name.removesuffix("_with_indices")
        value, positions = getattr(functional, name)(*args, **kwargs, return_indices=True)
        if name.startswith("adaptive"):
            overlapping = any(size % fewer for size, fewer in zip(given.shape[2:], value.shape[2:], strict=True))
        else:
            kernel = kwargs["kernel_size"] if "kernel_size" in kwargs else args[1]
            stride = kwargs.get("stride") or (args[2] if len(args) > 2 else None) or kernel
            dilation = kwargs["dilation"] if "dilation" in kwargs else args[4] if len(args) > 4 else 1
            overlapping = any(map(overlap, as_tuple(kernel), as_tuple(stride), as_tuple(dilation)))
        self.events.append(Pooling(given.shape, value.shape, positions, overlapping))
        return (value, positions) if asked else value

    def finished(self, output: Any, layers: Sequence[str] | None = None) -> list[Event]:
        """Return the events of a run that ended with this output, from the first layer of interest to the last."""
        output = first_tensor(output)
        events = self.events
        last = events[-1] if events else None
        if not (isinstance(last, Activation) and (last.value is output or self.newest is output)):
            events.append(Activation(TOP, column(output)))
        elif layers is None or last.name not in layers:
            events[-1] = replace(last, name=TOP)
        if layers is not None:
            events = [event for event in events if not isinstance(event, Activation) or event.name in layers]
        return trimmed(events)


def first_tensor(output: Any) -> Tensor:
    """Return the model's output, or the first tensor in it if it is a tuple, list or dict."""
    parts = output.values() if isinstance(output, dict) else output if isinstance(output, tuple | list) else [output]
    found = next((part for part in parts if isinstance(part, Tensor)), None)
    if found is None:
        raise MatchingError(f"the model gives a {type(output).__name__} without a tensor")
    return found


def column(value: Tensor) -> Tensor:
    """Add a feature axis to a tensor that has one number per example; return any other as it is."""
    return value.unsqueeze(1) if value.dim() == 1 else value


def as_tuple(size: Any) -> tuple[int, ...]:
    return (size,) * 3 if isinstance(size, int) else tuple(size)


def overlap(size: int, step: int, apart: int) -> bool:
    """Return whether two windows share a position, given a pooling's kernel size, stride and dilation."""
    return any(apart * taken % step == 0 for taken in range(1, size))


def call_again(func: Callable[..., Any], rest: tuple[Any, ...], kwargs: dict[str, Any], value: Tensor) -> Tensor:
    """Apply a point-wise function that was recorded to another tensor, with its other arguments unchanged."""
    result: Tensor = func(value, *rest, **kwargs)
    return result


@contextmanager
def recording(
    model: nn.Module,
    inputs: Batch,
    layers: Sequence[str] | None = None,
    positions: bool = True,
    follow: bool = False,
) -> Iterator[Recorder]:
    """Watch the model while it runs on these inputs; afterwards `Recorder.finished` returns the events.

    `layers` chooses the layers of interest by name. `positions` keeps the positions that max-poolings take. `follow`
    notes in which module each point-wise function runs.
    """
    recorder = Recorder(positions, inputs)
    if isinstance(inputs, Tensor) and inputs.is_floating_point():  # a single input counts at once
        recorder.waiting.clear()
        recorder.give("", inputs, False)
    with ExitStack() as stack:
        modules = dict(model.named_modules()) if follow or layers else {}
        for name in modules if follow else ():
            stack.callback(modules[name].register_forward_pre_hook(partial(enter, recorder, name)).remove)
        for name in layers or ():
            if name in modules:
                stack.callback(modules[name].register_forward_hook(partial(keep_output, recorder, name)).remove)
        for name in modules if follow else ():
            stack.callback(modules[name].register_forward_hook(partial(leave, recorder)).remove)
        stack.enter_context(recorder)
        yield recorder


def record(
    model: nn.Module,
    inputs: Batch,
    layers: Sequence[str] | None = None,
    positions: bool = True,
    follow: bool = False,
) -> tuple[Any, list[Event]]:
    """Run the model and return its output, and the events from the first layer of interest to the last."""
    with recording(model, inputs, layers, positions, follow) as recorder:
        output = output_of(model, inputs)
    return output, recorder.finished(output, layers)


def trimmed(events: list[Event]) -> list[Event]:
    """Return the events without those before the first layer of interest or after the last."""
    at = [number for number, event in enumerate(events) if isinstance(event, Activation)]
    return events[at[0] : at[-1] + 1] if at else []


def enter(recorder: Recorder, name: str, module: nn.Module, inputs: Any) -> None:
    recorder.path.append(name)


def leave(recorder: Recorder, module: nn.Module, inputs: Any, output: Any) -> None:
    recorder.path.pop()


def keep_output(recorder: Recorder, name: str, module: nn.Module, inputs: Any, output: Any) -> None:
    """Record the output of a module that was named by hand, with the point-wise function that made it, if one did."""
    if not isinstance(output, Tensor):
        raise MatchingError(f"layer '{name}' gives a {type(output).__name__}, not a tensor: name another layer")
    last = recorder.events[-1] if recorder.events else None
    finish = last.finish if isinstance(last, Activation) and last.value is output else None
    recorder.events.append(Activation(name, output, finish, recorder.tokens and output.dim() >= 3))


@torch.no_grad()
def observe(model: nn.Module, inputs: Batch, layers: Sequence[str] | None = None) -> list[Event]:
    """Return the events of a trial run in eval mode, which leaves the model as it was.

    Raise MatchingError if there is nothing to match.
    """
    was_training = model.training
    try:
        _, seen = record(model.eval(), inputs, follow=True)
        _, events = record(model, inputs, layers, follow=True)
    finally:
        model.train(was_training)
    names = [event.name for event in seen if isinstance(event, Activation)]
    modules = [name for name, _ in model.named_modules() if name]
    for name in layers or ():
        if name not in names and name not in modules:
            raise MatchingError(
                f"there is no layer '{name}'; seen: {', '.join(names)}; modules may be named too: {', '.join(modules)}"
            )
    found = [event for event in events if isinstance(event, Activation)]
    for name in layers or ():
        if name not in [event.name for event in found]:
            raise MatchingError(
                f"layer '{name}' did not run, or gives the same as another layer; seen: {', '.join(names)}"
            )
    if len(found) < 2:
        raise MatchingError(
            f"representation matching needs two layers of interest; seen: {', '.join(names) or 'none'}. Name layers by "
            f"hand (rm_layers), such as: {', '.join(['input', *modules[:8], 'top'])}; or choose a method without RM"
        )
    return events
