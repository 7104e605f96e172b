"""Lines 7-12: what one client does with the model it receives."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedaccord.client.objective import Objective, load_params, read_params
from fedaccord.records import ClientData, ClientUpdate, Order, Params, Prepare, Yardstick
from fedaccord.seeds import generator, global_seed

REPORT_EXAMPLES = 64


@dataclass(frozen=True)
class Site:
    """What it takes to run clients: the same value serves every engine."""

    model: nn.Module
    objective: Objective
    clients: Sequence[ClientData]
    prepare: Prepare
    yardstick: Yardstick
    seed: int
    store: str = "auto"  # where theta_i lives: memory, disk, or auto: on disk if it would not fit


def train(
    site: Site, model: nn.Module, order: Order, client: int, private: Params | None = None
) -> tuple[ClientUpdate, Params | None]:
    """One client's round: what it sends, and what it keeps to itself (theta_i; None if there is nothing to keep).

    `model` is a workspace: its parameters are overwritten.
    """
    data, prepare, seed, hyper = site.clients[client], site.prepare, site.seed, order.hyper
    reports: list[float | None] = [None, None]
    for number, params in enumerate((order.params, order.previous)):
        if order.report_loss and params is not None:
            load_params(model, params)
            part = generator(seed, "report", order.round, client)
            reports[number] = loss_on_a_part(model, data, prepare, site.yardstick, part)
    load_params(model, order.params)  #                                                                        7
    model.train()
    loss_of = site.objective.begin(model, order, client, seed, private)
    weights = [*(weight for weight in model.parameters() if weight.requires_grad), *loss_of.weights]
    velocity: list[Tensor] = []
    total = torch.zeros((), device=data.targets.device)
    augment = generator(seed, "augment", order.round, client)
    batches = minibatches(len(data), hyper.batch_size, hyper.steps, generator(seed, "batches", order.round, client))
    with global_seed(seed, "dropout", order.round, client):
        for index in batches:  #                                                                               8
            inputs, targets = prepare(data.inputs[index], augment), data.targets[index]  #                     9
            loss = loss_of(inputs, targets)
            gradients = torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True)
            descend(weights, gradients, hyper.lr, hyper.momentum, velocity)  #                                10
            total += loss.detach()
    update = ClientUpdate(client, read_params(model), len(data), float(total) / hyper.steps, *reports)
    kept = loss_of.keep()
    if kept is not None and not all(bool(value.isfinite().all()) for value in kept.values()):
        kept = private  # a round that blew up must not spoil the next one
    return update, kept  #                                                                                    12


@torch.inference_mode()
def loss_on_a_part(
    model: nn.Module, data: ClientData, prepare: Prepare, yardstick: Yardstick, generator: torch.Generator
) -> float:
    """The scalar of the paper's second way of line 15: the loss on a small part of the client's data."""
    part = torch.randperm(len(data), generator=generator)[:REPORT_EXAMPLES]
    model.eval()
    return float(yardstick(model(prepare(data.inputs[part], None)), data.targets[part]))


def descend(
    weights: list[nn.Parameter], gradients: tuple[Tensor, ...], lr: float, momentum: float, velocity: list[Tensor]
) -> None:
    """Line 10: one step of SGD, in place; `velocity` starts empty each round and is filled if there is momentum."""
    step: list[Tensor] = list(gradients)
    with torch.no_grad():
        if momentum:
            if velocity:
                torch._foreach_mul_(velocity, momentum)
                torch._foreach_add_(velocity, step)
            else:
                velocity.extend(gradient.clone() for gradient in gradients)
            step = velocity
        torch._foreach_add_(list(weights), step, alpha=-lr)


def minibatches(examples: int, batch_size: int, steps: int, generator: torch.Generator) -> Tensor:
    """Line 9: the examples of each step, (steps, batch): shuffled passes over the client's data, end to end.

    A client with fewer examples than a batch uses all that it has in every step.
    """
    batch = min(batch_size, examples)
    passes = -(-steps * batch // examples)
    stream = torch.cat([torch.randperm(examples, generator=generator) for _ in range(passes)])
    return stream[: steps * batch].view(steps, batch)
