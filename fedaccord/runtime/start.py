"""w_1, the model as it starts: drawn anew if the settings say so, and examined before the first round.

`he` is the draw of He et al. (2015); `unit-variance` scales that draw on real examples, after Mishkin and Matas (2016,
"All you need is a good init"). Both change Linear layers and convolutions; whatever else a model has stays as given.
"""

import contextlib
import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from fedaccord.core.batches import Batch, clone, count, leaves, mapped, output_of
from fedaccord.core.errors import DataError, SettingsError
from fedaccord.core.processes import torch_threads
from fedaccord.core.records import ClientData, Examples, Hyper, LossFunction
from fedaccord.core.seeds import generator, global_seed
from fedaccord.objectives import classification
from fedaccord.runtime.parts import Parts

PLAIN = Hyper(lr=0.0, steps=0)
"""Hyper-parameters for the cross-entropy alone, without an entropy term."""

LOOKED_AT = 32
"""Examples that a start is measured on; fewer, but at least FEW, if their inputs are large: it must not take long."""
LARGE, FEW = 2**20, 8

QUIET = 0.0125
"""The signal dies if what reaches the last layer varies by less than this over the examples. Measured on MNIST with
torch's default start and SGD at rate 0.05: the loss leaves its plateau at ln 10 after 30 steps if that varies by 0.1,
after 115 if by 0.016, after 250 if by 0.006, after 500 if by 0.0026, and not within 1500 if by 0.001."""
LOUD, WORSE = 3.0, 3.0
"""The signal explodes if what the last layer gets or gives varies by more than LOUD and the loss is more than WORSE
times that of a model that gives zeros: one that was trained before may give large scores too, but good ones. On the
networks of models.py and examples/zoo.py the signal of He's start varies by at most 1.7. On MNIST it varies by 6 with 6
times the loss if its weights are doubled, and by 8 with 4 times the loss for torch's start on pixels of 0 to 255."""

OUTPUT = 0.1
"""With init = he, the last layer's weights are multiplied by this: the model begins undecided, and the first steps do
not tear its layers apart. Keywords of one class a client, a narrow network, 60 rounds: 38 % with it, 33 % without."""
TRIES = 3
"""How many times a layer's scale is corrected at most. Once is enough for a layer that is linear in its weight."""
NOISE = 1e-4
"""A deviation that is a smaller share of the output than this counts as rounding."""


def start_model(parts: Parts) -> list[str]:
    """Give the model the first parameters that the settings ask for; return what a person should know about them.

    Nothing else is changed: no normalisation statistics, no training mode, no state of a global generator.
    """
    settings, model = parts.settings, parts.model
    own = next(filter(None, (parts.validation, largest(parts.clients))), None)
    looked_at = own or parts.test or None
    if settings.init == "unit-variance" and own is None:
        raise SettingsError(
            "init = unit-variance: the server has no examples to measure the layers on (the test set must not tune "
            "anything); use init = he, or give it a validation set"
        )
    with torch_threads(settings.threads), torch.no_grad(), global_seed(settings.seed, "start"):
        some = None if looked_at is None else sample(parts, looked_at)
        if settings.init != "as-given" and not drawable(model):
            raise SettingsError(
                f"init = {settings.init}: the model has no trained Linear layer or convolution; use init = as-given"
            )
        if settings.init == "he":
            for name, layer in drawable(model).items():
                draw(layer, name, settings.seed)
            last = last_layer(model, None if some is None else some.inputs)
            if last in drawable(model).values():  # a frozen one stays as given, and the one below it gives no scores
                last.weight.mul_(OUTPUT)
        elif settings.init == "unit-variance":
            assert some is not None
            unit_variance(model, some.inputs, settings.seed)
        seen = [] if some is None else [some]
        if parts.validation is not None and (client := largest(parts.clients)):  # its inputs may be of another scale
            seen.append(sample(parts, client))
        found = [said for each in seen if len(each) > 1 and (said := looked_through(parts, each))]
    return found[:1]


# ---------------------------------------------------------------- what the start is measured on


def largest(clients: Sequence[ClientData]) -> ClientData | None:
    """Return the client with the most examples, the first of several; its data must do where the server has none."""
    return max(clients, key=len, default=None)


def sample(parts: Parts, examples: ClientData) -> Examples:
    """Draw a few examples as the model sees them, by the run's seed, from the whole set: it may be sorted by class."""
    values = sum(each[0].numel() for each in leaves(examples[:1].inputs))
    wanted = max(FEW, min(LOOKED_AT, LARGE // max(1, values)))
    index = torch.randperm(len(examples), generator=generator(parts.settings.seed, "start-examples"))[:wanted]
    drawn = examples[index].to(next(parts.model.parameters()).device)
    return Examples(parts.prepare(drawn.inputs, None), drawn.targets)


def trial_copy(model: nn.Module, inputs: Batch) -> nn.Module:
    """Return a copy of the model to run at will: without dropout, but normalising by the batch, as in training."""
    trial = copy.deepcopy(model).eval()
    for module in trial.modules():
        if isinstance(module, _NormBase) and count(inputs) > 1:
            module.train()
    return trial


# ---------------------------------------------------------------- drawing


def weighted_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules whose output is a weighted sum of their input, by name.

    Those inside torch's attention are left out: it uses their weights without running them.
    """
    attention = [module for module in model.modules() if isinstance(module, nn.MultiheadAttention)]
    inside = {id(part) for module in attention for part in module.modules()}
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | _ConvNd) and id(module) not in inside
    }


def drawable(model: nn.Module) -> dict[str, nn.Module]:
    """Return the weighted layers whose weight may be drawn anew, by name.

    A weight stays as given if it is frozen, if it is also that of another kind of module (an embedding), if it is
    computed from others (weight norm), or if it is zero throughout: then its branch is meant to start as nothing.
    """
    layers = weighted_layers(model)
    kept = {id(layer) for layer in layers.values()}
    others = (module for module in model.modules() if id(module) not in kept)
    taken = {id(weight) for module in others for weight in module.parameters(recurse=False)}
    found = {}
    for name, layer in layers.items():
        weight = dict(layer.named_parameters(recurse=False)).get("weight")
        if weight is not None and id(weight) not in taken and weight.requires_grad and bool(weight.any()):
            found[name] = layer
    return found


def draw(layer: Any, name: str, seed: int) -> None:
    """Draw normal weights of variance 2 / fan_in, which keep the size of a signal that passes a ReLU; zero the biases.

    The first and the last layer are drawn so too, as in the paper: a factor of two in one layer does no harm, and what
    reaches the last layer has passed a ReLU as well. Each layer has a generator of its own, so its weights do not
    depend on what other layers there are.
    """
    drawn = torch.randn(layer.weight.shape, generator=generator(seed, f"start/{name}"))
    layer.weight.copy_(drawn * math.sqrt(2 / fan_in(layer)))
    clear_bias(layer)


def last_layer(model: nn.Module, inputs: Batch | None) -> Any:
    """Return the weighted layer that runs last; without examples to run the model on, the one that was made last."""
    layers = weighted_layers(model)
    order = list(layers)
    if inputs is not None:
        trial = trial_copy(model, inputs)
        ran: list[str] = []
        for name in layers:
            trial.get_submodule(name).register_forward_hook(lambda *_, name=name: ran.append(name))
        with contextlib.suppress(Exception):  # whatever a user's model raises is reported where it is needed
            output_of(trial, clone(inputs))
        order = ran or order
    return layers[order[-1]]


def clear_bias(layer: Any) -> None:
    if layer.bias is not None and layer.bias.requires_grad:
        layer.bias.zero_()


def fan_in(layer: Any) -> float:
    """Return how many inputs each output is a sum of; in a transposed convolution with a stride, on average."""
    if getattr(layer, "transposed", False):  # its weight is (inputs, outputs / groups, *kernel)
        return layer.weight[:, 0].numel() / layer.groups / math.prod(layer.stride)
    return layer.weight[0].numel()


def unit_variance(model: nn.Module, inputs: Batch, seed: int) -> None:
    """Draw the layers as the forward pass comes to them, and scale each so that its output has variance 1.

    One pass is enough, since a layer is linear in its weight once its bias is zero. A layer that is not run stays as
    given, a weight that is used several times is scaled for its first use, and one whose output does not vary is not.
    """
    trial = trial_copy(model, inputs)
    layers: dict[str, Any] = dict(drawable(trial))
    ran: set[str] = set()
    scaled: set[int] = set()

    def hook(name: str) -> Callable[..., Any]:
        def draw_and_scale(layer: Any, args: Any, kwargs: Any, output: Any) -> Any:
            if name in ran or not isinstance(output, Tensor):
                return None
            ran.add(name)
            if id(layer.weight) in scaled:
                clear_bias(layer)
                return layer.forward(*args, **kwargs)
            scaled.add(id(layer.weight))
            draw(layer, name, seed)
            output = layer.forward(*args, **kwargs)
            for _ in range(TRIES):
                values = output.double()
                deviation, size = float(values.std(correction=0)), float(values.square().mean().sqrt())
                if not NOISE * size < deviation < math.inf or abs(deviation - 1) < NOISE:
                    break
                layer.weight.div_(deviation)
                output = layer.forward(*args, **kwargs)
            return output

        return draw_and_scale

    for name, layer in layers.items():
        layer.register_forward_hook(hook(name), with_kwargs=True)
    try:
        output_of(trial, clone(inputs))
    except Exception as error:  # whatever a user's model raises
        raise DataError(f"init = unit-variance: the model cannot be run on the examples: {error}") from error
    for name in ran:
        own: Any = model.get_submodule(name)
        own.weight.copy_(layers[name].weight)
        clear_bias(own)


# ---------------------------------------------------------------- looking


@dataclass(frozen=True)
class Passage:
    """How much a weighted layer's input and output vary from example to example as the model runs."""

    layer: str
    before: float
    after: float


def looked_through(parts: Parts, some: Examples) -> str | None:
    """Run the model as it starts; return a complaint if the signal dies or explodes on its way, or None.

    It never stops a run.
    """
    trial = trial_copy(parts.model, some.inputs)
    seen: list[Passage] = []

    def hook(label: str) -> Callable[..., None]:
        def note(layer: Any, args: Any, kwargs: Any, output: Any) -> None:
            given = next(iter((*args, *kwargs.values())), None)
            if isinstance(given, Tensor) and isinstance(output, Tensor) and min(len(given), len(output)) > 1:
                seen.append(Passage(label, variation(given), variation(output)))

        return note

    for name, layer in weighted_layers(trial).items():
        layer.register_forward_hook(hook(f"{name or 'of the model'} ({type(layer).__name__})"), with_kwargs=True)
    try:
        output = output_of(trial, clone(some.inputs))
        worse = against_zeros(parts.loss or partial(classification, hyper=PLAIN), output, some.targets)
    except Exception:  # whatever a user's model or loss raises is reported where it is needed
        return None
    return complaint(seen, worse, parts.settings.init)


def variation(values: Tensor) -> float:
    """Return the standard deviation over the examples, as its root mean square over everything else."""
    apart = values.float() - values.float().mean(0)
    return float(apart.norm()) / math.sqrt(apart.numel())  # five times as fast as var


def against_zeros(loss: LossFunction, output: Any, targets: Batch) -> float:
    """Return the loss as a multiple of what it would be if the model gave zeros; 0 where that says nothing."""
    zeros = float(loss(mapped(torch.zeros_like, output), targets))
    return float(loss(output, targets)) / zeros if zeros > 0 else 0.0


def complaint(seen: Sequence[Passage], worse: float, init: str) -> str | None:
    """Return a line that says where the signal dies or explodes and what to do, or None if it does neither.

    What counts is what reaches the last layer, and what that gives: what a normalisation sets right in between does not
    matter, and a last layer may be small on purpose.
    """
    if not seen or not 0 < seen[0].before < math.inf:
        return None  # all examples are the same, or the data is not sound
    signal = [*(each.before for each in seen), seen[-1].after]  # what reaches each layer, and what the last gives
    last = len(seen) - 1
    if last and signal[last] < QUIET:
        fate, size, place = "dies", "small", last
        while place and signal[place - 1] < QUIET:
            place -= 1
    elif not worse <= WORSE and any(not value <= LOUD for value in signal[last:]):  # also if it is not a number
        fate, size, place = "explodes", "large", last if signal[last + 1] <= LOUD else last + 1
        while place and not signal[place - 1] <= LOUD:
            place -= 1
    else:
        return None
    varies = f"varies by {signal[place]:.2g} from example to example, where about 1 is healthy"
    if place == 0:
        return (
            f"the inputs are too {size} for the model as it starts: what reaches layer {seen[0].layer} {varies}; "
            "scale them to a standard deviation of about 1"
        )
    what = f"what reaches layer {seen[place].layer}" if place <= last else f"what layer {seen[last].layer} gives"
    return f"the signal {fate} in the model as it starts: {what} {varies}; {ADVICE[init]}"


ADVICE = {
    "as-given": "try init = he or init = unit-variance",
    "he": "try init = unit-variance",
    "unit-variance": "look at what comes before that layer",
}
