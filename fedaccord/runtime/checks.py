"""Checks before anything runs: whether the model fits the data, and in which form it runs best."""

import copy
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedaccord.core.batches import Batch, clone, leaves, output_of
from fedaccord.core.errors import DataError, FedAccordError, SettingsError, first_line
from fedaccord.core.modules import described
from fedaccord.core.records import ClientData, Examples, LossFunction, Prepare
from fedaccord.core.seeds import global_seed
from fedaccord.data.sets import check_classes


def check_model(
    model: nn.Module,
    clients: Sequence[ClientData],
    others: Sequence[ClientData],
    prepare: Prepare,
    loss: LossFunction | None,
    device: torch.device,
    seed: int = 0,
) -> None:
    """Try the model on two examples, and raise an error of one line if it does not fit the data.

    `loss` is the task's own; None: a classification, which needs a score for each class. `seed` is for layers that
    take their size from the data, and draw their weights in this trial.
    """
    held = [part for part in (*clients, *others) if len(part)]
    if not any(len(client) for client in clients):
        raise DataError("no client has any data")
    if not all(len(part) for part in others):
        raise DataError("the validation or test set is empty")
    check_widths(clients)
    two = held[0][:2].to(device)
    was_training = model.training
    try:
        with torch.no_grad(), global_seed(seed, "lazy"):
            output = output_of(model.eval(), prepare(clone(two.inputs), None))
    except FedAccordError:
        raise
    except Exception as error:  # whatever a user's model raises
        raise DataError(
            f"the model cannot be run on the clients' inputs: {first_line(error)}{hint(model, two)}"
        ) from error
    finally:
        model.train(was_training)
    if loss is None:
        check_scores(output, two.targets, held)
    else:
        check_loss(loss, output, two.targets)


def check_widths(clients: Sequence[ClientData]) -> None:
    """Raise DataError unless the clients' tables all have the same number of columns."""
    first: tuple[int, int] | None = None
    for number, client in enumerate(clients):
        inputs = client.inputs if isinstance(client, Examples) and len(client) else None
        if not isinstance(inputs, Tensor) or inputs.dim() != 2 or not inputs.is_floating_point():
            continue
        first = first or (number, inputs.shape[1])
        if inputs.shape[1] != first[1]:
            has = f"client {number} has {inputs.shape[1]} input columns"
            raise DataError(f"{has}, client {first[0]} has {first[1]}")


def hint(model: nn.Module, examples: Examples) -> str:
    """Advise what to do about inputs of double precision or whole numbers; return '' if they are not at fault."""
    own = {weight.dtype for weight in model.parameters() if weight.is_floating_point()}
    given = {tensor.dtype for tensor in leaves(examples.inputs)}
    if torch.float64 in given and torch.float64 not in own:
        return "; the inputs are float64 and the weights are not: give inputs.float(), or model.double()"
    if not any(dtype.is_floating_point for dtype in given) and not has_embedding(model):
        return "; the inputs are whole numbers: give inputs.float()"
    return ""


def has_embedding(model: nn.Module) -> bool:
    return any(isinstance(module, nn.Embedding | nn.EmbeddingBag) for module in model.modules())


def check_scores(output: object, targets: Tensor, held: Sequence[ClientData]) -> None:
    """Raise DataError unless targets are class numbers and outputs have a score for each class, at each place.

    `output` and `targets` are of the same few examples. Targets that are not in memory are checked when they are read.
    """
    known = [part.targets for part in held if isinstance(part, Examples)] or [targets]
    for each in known:
        check_classes(each, "the data")
    largest = max(int(each.max()) for each in known)
    places = tuple(targets.shape[1:])
    right = isinstance(output, Tensor) and output.shape[:-1] == targets.shape and output.shape[-1] > largest
    if not right:
        given = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"
        wanted = ", ".join(("examples", *map(str, places), f"{largest + 1} or more class scores"))
        column = "; targets of shape (examples, 1) are a column: give targets.squeeze(1)" if places == (1,) else ""
        smallest = min(int(each.min()) for each in known)
        if smallest > 0:
            column = f"; class numbers begin at 0, and the smallest here is {smallest}"
        raise DataError(f"the model must give ({wanted}), it gives {given}{column}")


def check_loss(loss: LossFunction, output: Any, targets: Batch) -> None:
    """Raise an error unless a user's loss gives one number for a batch."""
    if isinstance(loss, type) or not callable(loss):
        named = f"; an object of it: {loss.__name__}()" if isinstance(loss, type) else ""
        raise SettingsError(f"loss: expected a function (output, targets) -> mean loss, not {described(loss)}{named}")
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "Using a target size")  # torch's warning that one side would be repeated
            value = loss(output, targets)
    except UserWarning:
        shapes = [tuple(each.shape) if isinstance(each, Tensor) else type(each).__name__ for each in (output, targets)]
        raise DataError(
            f"the model gives {shapes[0]} for targets of {shapes[1]}, which the loss would compare each with each: "
            "give both the same shape, such as targets.unsqueeze(1)"
        ) from None
    except Exception as error:  # whatever a user's function raises
        told = f"{type(error).__name__}: {first_line(error)}"
        raise DataError(f"the loss cannot be computed from the model's output and the targets: {told}") from error
    if not isinstance(value, Tensor) or value.dim() != 0:
        raise DataError("the loss must give one number, the mean over the batch, as a tensor")


@torch.no_grad()
def check_alone(
    model: nn.Module, clients: Sequence[ClientData], batch_size: int, prepare: Prepare, device: torch.device
) -> None:
    """Raise DataError if a client trains on batches of one and the model cannot, as with BatchNorm over features."""
    number = next((n for n, client in enumerate(clients) if min(len(client), batch_size) == 1), None)
    if number is None:
        return
    try:
        output_of(copy.deepcopy(model).train(), prepare(clone(clients[number][:1].to(device).inputs), None))
    except Exception as error:  # whatever a user's model raises
        has = f"client {number} has a single example to train on" if batch_size > 1 else "batch_size = 1"
        raise DataError(
            f"{has}, and the model cannot be trained on that: {first_line(error)}; more examples, or GroupNorm or "
            "LayerNorm in place of BatchNorm, would help"
        ) from error


def settle_sizes(model: nn.Module, inputs: Batch | None, seed: int) -> None:
    """Give layers that take their size from the data (LazyLinear) their first weights, where `check_model` has not."""
    if not any(map(is_lazy, model.parameters())):
        return
    if inputs is None:
        raise SettingsError(
            "the model has a layer without a size (LazyLinear), and the server has no examples that would give it one: "
            "write its size, or give the server a validation or test set"
        )
    was_training = model.training
    with torch.no_grad(), global_seed(seed, "lazy"):
        output_of(model.eval(), inputs)
    model.train(was_training)


def lay_out(model: nn.Module, inputs: Batch) -> None:
    """Put a model with two-dimensional convolutions into channels-last memory, in which they run faster.

    The sums are the same, with less moving. A model that takes its activations apart by `view` cannot be run that way:
    it stays as it is.
    """
    pictures = any(each.dim() == 4 for each in leaves(inputs))
    if not pictures or not any(isinstance(module, nn.Conv2d) for module in model.modules()):
        return
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    was_training = model.training
    try:
        with torch.no_grad():
            output_of(model.eval(), inputs)
    except RuntimeError:
        model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    finally:
        model.train(was_training)


def find_device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise SettingsError(f"device = {name}: not usable here: {first_line(error)}") from None
    return device
