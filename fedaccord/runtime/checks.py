"""What is looked at before anything runs: whether the model fits the data, and in which form it runs best."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedaccord.core.errors import DataError, FedAccordError, SettingsError
from fedaccord.core.records import ClientData, Examples, LossFunction, Prepare
from fedaccord.core.seeds import global_seed
from fedaccord.data.sets import check_classes


def check_model(
    model: nn.Module,
    clients: Sequence[ClientData],
    others: Sequence[Examples],
    prepare: Prepare,
    loss: LossFunction | None,
    device: torch.device,
    seed: int = 0,
) -> None:
    """One trial on two examples: a model that does not fit the data is told in one line, before anything runs.

    `loss` is the task's own; None: a classification, which wants a score for each class. `seed` is for layers that
    take their size from the data, and draw their weights in this trial.
    """
    held = [part for part in (*clients, *others) if len(part)]
    if not any(len(client) for client in clients):
        raise DataError("no client has any data")
    if len(held) < len(others) + 1 or any(len(part) == 0 for part in others):
        raise DataError("the validation or test set is empty")
    was_training = model.training
    try:
        with torch.no_grad(), global_seed(seed, "lazy"):
            output = model.eval()(prepare(held[0].inputs[:2].clone().to(device), None))
    except FedAccordError:
        raise
    except Exception as error:  # whatever a user's model raises
        raise DataError(f"the model cannot be run on the clients' inputs: {error}") from error
    finally:
        model.train(was_training)
    if loss is None:
        check_scores(output, held)
    else:
        check_loss(loss, output, held[0].targets[:2].to(device))
    for number, client in enumerate(clients):
        if len(client) == 1:
            check_alone(model, number, prepare(client.inputs.clone().to(device), None))
            break


def check_scores(output: object, held: Sequence[Examples]) -> None:
    """A classification wants class numbers, and a score for each class."""
    for part in held:
        check_classes(part.targets, "the data")
    largest = max(int(part.targets.max()) for part in held)
    if not isinstance(output, Tensor) or output.dim() != 2 or output.shape[1] <= largest:
        given = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"
        raise DataError(f"the model must give (examples, {largest + 1} or more class scores), it gives {given}")


def check_loss(loss: LossFunction, output: Tensor, targets: Tensor) -> None:
    """A user's loss must give one number for a batch."""
    try:
        value = loss(output, targets)
    except Exception as error:  # whatever a user's function raises
        raise DataError(f"the loss cannot be computed from the model's output and the targets: {error}") from error
    if not isinstance(value, Tensor) or value.dim() != 0:
        raise DataError("the loss must give one number, the mean over the batch, as a tensor")


@torch.no_grad()
def check_alone(model: nn.Module, client: int, inputs: Tensor) -> None:
    """A batch of one is too little for a BatchNorm over features."""
    try:
        copy.deepcopy(model).train()(inputs)
    except ValueError as error:
        raise DataError(
            f"client {client} has a single example, and the model cannot be trained on that: {error}; give it another "
            "example, leave it out, or use GroupNorm or LayerNorm in place of BatchNorm"
        ) from error


def settle_sizes(model: nn.Module, inputs: Tensor | None, seed: int) -> None:
    """Give layers that take their size from the data (LazyLinear) their first weights, where no client is checked."""
    if not any(map(is_lazy, model.parameters())):
        return
    if inputs is None:
        raise SettingsError(
            "the model has a layer without a size (LazyLinear), and the server has no examples that would give it one: "
            "write its size, or give the server a validation or test set"
        )
    was_training = model.training
    with torch.no_grad(), global_seed(seed, "lazy"):
        model.eval()(inputs)
    model.train(was_training)


def lay_out(model: nn.Module, inputs: Tensor) -> None:
    """Channels-last memory for a model with two-dimensional convolutions, which run faster so: same sums, less moving.

    A model that takes its activations apart by `view` cannot be run that way: it stays as it is.
    """
    if not any(isinstance(module, nn.Conv2d) for module in model.modules()) or inputs.dim() != 4:
        return
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    was_training = model.training
    try:
        with torch.no_grad():
            model.eval()(inputs)
    except RuntimeError:
        model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    finally:
        model.train(was_training)


def find_device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise SettingsError(f"device = {name}: not usable here: {str(error).splitlines()[0]}") from None
    return device
