"""Lines 7-12: what one client does with the model it receives."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from fedaccord.client.objective import Objective, load_params, read_params
from fedaccord.core.records import ClientData, ClientUpdate, Hyper, Order, Params, Prepare, Yardstick
from fedaccord.core.seeds import generator, global_seed

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
    ready: bool = False  # whether the clients' inputs are already what the model sees: `prepare` changes nothing
    store: str = "auto"  # where theta_i lives: memory, disk, or auto: on disk if it would not fit


class Trainer(Protocol):
    """How a process trains the clients it is given."""

    def groups(self, clients: Sequence[int], hyper: Hyper) -> list[list[int]]:
        """The clients, cut into the groups that are trained together; the same cut on every engine."""
        ...

    def train(
        self, order: Order, clients: Sequence[int], private: Sequence[Params | None]
    ) -> Iterator[tuple[ClientUpdate, Params | None]]:
        """One group; `private` is what each of them kept. Their updates, and what they keep now."""
        ...


class OneByOne:
    """A loop: the reference."""

    def __init__(self, site: Site):
        self.site = site
        self.workspace = copy.deepcopy(site.model)

    def groups(self, clients: Sequence[int], hyper: Hyper) -> list[list[int]]:
        return [[client] for client in clients]

    def train(
        self, order: Order, clients: Sequence[int], private: Sequence[Params | None]
    ) -> Iterator[tuple[ClientUpdate, Params | None]]:
        for client, kept in zip(clients, private, strict=True):
            yield train(self.site, self.workspace, order, client, kept)


def train(
    site: Site, model: nn.Module, order: Order, client: int, private: Params | None = None
) -> tuple[ClientUpdate, Params | None]:
    """One client's round: what it sends, and what it keeps to itself (theta_i; None if there is nothing to keep).

    `model` is a workspace: its parameters are overwritten.
    """
    data, hyper = site.clients[client], order.hyper
    reports = reported(site, model, order, client)
    load_params(model, order.params)  #                                                                        7
    model.train()
    loss_of = site.objective.begin(model, order, client, site.seed, private)
    own, beside = trainable(model), [weight for part in loss_of.trained for weight in trainable(part).values()]
    descend = Descent([*own.values(), *beside], hyper, loss_of.pull, [order.params[name] for name in own])
    total = torch.zeros((), device=data.targets.device)
    augment = generator(site.seed, "augment", order.round, client)
    batches = minibatches(site, order, client)
    with global_seed(site.seed, "dropout", order.round, client):
        for index in batches:  #                                                                               8
            inputs, targets = site.prepare(data.inputs[index], augment), data.targets[index]  #                9
            loss = loss_of(inputs, targets)
            descend(torch.autograd.grad(loss, descend.weights, allow_unused=True, materialize_grads=True))  # 10
            total += loss.detach()
    update = ClientUpdate(client, read_params(model), len(data), float(total) / hyper.steps, *reports)
    return update, unspoilt(loss_of.keep(), private)  #                                                       12


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: weight for name, weight in module.named_parameters() if weight.requires_grad}


def unspoilt(kept: Params | None, before: Params | None) -> Params | None:
    """What the client keeps; if its round blew up, what it had: a bad round must not spoil the next one."""
    sound = kept is None or all(bool(value.isfinite().all()) for value in kept.values())
    return kept if sound else before


@torch.no_grad()
def reported(site: Site, model: nn.Module, order: Order, client: int) -> tuple[float | None, float | None]:
    """The scalars of the paper's second way of line 15: the loss of w_t, and if asked for that of w_{t-1}, on the same
    small part of the client's data."""
    if not order.report_loss:
        return None, None
    losses: list[float | None] = [None, None]
    data, draw = site.clients[client], generator(site.seed, "report", order.round, client)
    part = torch.randperm(len(data), generator=draw)[:REPORT_EXAMPLES]
    for number, params in enumerate((order.params, order.previous)):
        if params is not None:
            load_params(model, params)
            scores = model.eval()(site.prepare(data.inputs[part], None))
            losses[number] = float(site.yardstick(scores, data.targets[part]))
    return losses[0], losses[1]


class Descent:
    """Line 10: SGD in place, all weights at once; momentum starts anew each round.

    `pull` is the weight of ||w_t - w_t^i||_2^2 (FA+WD) and `anchor` is w_t, the first of the weights as they were
    received. Its gradient, 2 pull (w_t^i - w_t), is added here: it needs no graph.
    """

    def __init__(self, weights: Sequence[Tensor], hyper: Hyper, pull: float, anchor: Sequence[Tensor]):
        self.weights = list(weights)
        self.lr, self.momentum = hyper.lr, hyper.momentum
        self.pull, self.anchor = pull, list(anchor)
        self.velocity: list[Tensor] = []

    @torch.no_grad()
    def __call__(self, gradients: Sequence[Tensor]) -> None:
        step = list(gradients)
        if self.pull:
            moved = self.weights[: len(self.anchor)]
            if self.momentum:
                apart = torch._foreach_sub(moved, self.anchor)
                step[: len(moved)] = torch._foreach_add(step[: len(moved)], apart, alpha=2 * self.pull)
            else:  # w - lr (g + 2 pull (w - w_t)), without a tensor for the second term
                torch._foreach_lerp_(moved, self.anchor, 2 * self.lr * self.pull)
        if self.momentum and self.velocity:
            torch._foreach_mul_(self.velocity, self.momentum)
            torch._foreach_add_(self.velocity, step)
            step = self.velocity
        elif self.momentum:
            self.velocity = step = [gradient.clone() for gradient in step]
        torch._foreach_add_(self.weights, step, alpha=-self.lr)


def minibatches(site: Site, order: Order, client: int) -> Tensor:
    """Line 9: the examples of each step, (steps, batch): shuffled passes over the client's data, end to end.

    A client with fewer examples than a batch uses all that it has in every step.
    """
    examples, steps = len(site.clients[client]), order.hyper.steps
    batch = min(order.hyper.batch_size, examples)
    draw = generator(site.seed, "batches", order.round, client)
    passes = -(-steps * batch // examples)
    stream = torch.cat([torch.randperm(examples, generator=draw) for _ in range(passes)])
    return stream[: steps * batch].view(steps, batch)
