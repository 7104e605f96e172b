"""Lines 7-12: what one client does with the model it receives."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from fedaccord.client.optimizers import ClientOptimizer
from fedaccord.client.side import ClientSide
from fedaccord.core.batches import clone, output_of
from fedaccord.core.errors import FedAccordError, TaskError
from fedaccord.core.params import load_params, read_params
from fedaccord.core.protocols import trained_weights
from fedaccord.core.records import ClientData, ClientUpdate, LossFunction, Objective, Order, Packages, Prepare
from fedaccord.core.seeds import generator, global_seed

REPORT_EXAMPLES = 64


@dataclass(frozen=True)
class Site:
    """What it takes to run clients: the same value serves every engine."""

    model: nn.Module
    method: ClientSide
    clients: Sequence[ClientData]
    prepare: Prepare
    objective: Objective
    measure: LossFunction  # what a client's reports of L_t are measured by
    seed: int
    ready: bool = False  # whether the clients' inputs are already what the model sees: `prepare` changes nothing
    optimizer: ClientOptimizer = field(default_factory=ClientOptimizer)
    store: str = "auto"  # where clients keep things: memory, disk, or auto: on disk if it would not fit


class Trainer(Protocol):
    """How a process trains the clients it is given."""

    def groups(self, clients: Sequence[int], order: Order) -> list[list[int]]:
        """The clients, cut into the groups that are trained together; the same cut on every engine."""
        ...

    def train(
        self, order: Order, clients: Sequence[int], kept: Sequence[Packages]
    ) -> Iterator[tuple[ClientUpdate, Packages]]:
        """One group; `kept` is what each of them kept. Their updates, and what they keep now."""
        ...


class OneByOne:
    """A loop: the reference."""

    def __init__(self, site: Site):
        self.site = site
        self.workspace = copy.deepcopy(site.model)

    def groups(self, clients: Sequence[int], order: Order) -> list[list[int]]:
        return [[client] for client in clients]

    def train(
        self, order: Order, clients: Sequence[int], kept: Sequence[Packages]
    ) -> Iterator[tuple[ClientUpdate, Packages]]:
        for client, before in zip(clients, kept, strict=True):
            yield train(self.site, self.workspace, order, client, before)


def train(site: Site, model: nn.Module, order: Order, client: int, kept: Packages) -> tuple[ClientUpdate, Packages]:
    """One client's round: what it sends, and what it keeps to itself.

    `model` is a workspace: its parameters are overwritten.
    """
    data, hyper = site.clients[client], order.hyper_of(client)
    reports = reported(site, model, order, client)
    load_params(model, order.params)  #                                                                        7
    model.train()
    work = site.method.begin(site.objective, model, order, hyper, client, site.seed, kept)
    own = trained_weights(model)
    beside = [weight for part in work.trained for weight in trained_weights(part).values()]
    received = [order.params[name] for name in own]
    corrections = site.method.corrections(list(own), hyper, received, order.down, site.method.held(kept))
    descend = site.optimizer.begin(list(own.values()), beside, hyper, corrections, kept)
    total = torch.zeros((), device=next(model.parameters()).device)
    augment = generator(site.seed, "augment", order.round, client)
    batches = data.batches(minibatches(site, order, client), generator(site.seed, "reading", order.round, client))
    with global_seed(site.seed, "dropout", order.round, client), failure_named(client, order.round):
        for batch in batches:  #                                                                               8
            loss = work(site.prepare(batch.inputs, augment), batch.targets)  #                                 9
            descend(torch.autograd.grad(loss, descend.weights, allow_unused=True, materialize_grads=True))  # 10
            total += loss.detach()
    params = read_params(model)
    sent, keeps = work.finish(
        params, descend.kept()
    )  #                                                                      12
    return ClientUpdate(client, params, len(data), float(total) / hyper.steps, sent, *reports), keeps


@torch.no_grad()
def reported(site: Site, model: nn.Module, order: Order, client: int) -> tuple[float | None, float | None]:
    """The scalars of the paper's second way of line 15: the loss of w_t, and if asked for that of w_{t-1}, on the same
    small part of the client's data."""
    if not order.report_loss:
        return None, None
    losses: list[float | None] = [None, None]
    data, draw = site.clients[client], generator(site.seed, "report", order.round, client)
    some = data[torch.randperm(len(data), generator=draw)[:REPORT_EXAMPLES]]
    for number, params in enumerate((order.params, order.previous)):
        if params is not None:
            load_params(model, params)
            output = output_of(model.eval(), site.prepare(clone(some.inputs), None))
            losses[number] = float(site.measure(output, some.targets))
    return losses[0], losses[1]


@contextmanager
def failure_named(client: int, round: int) -> Iterator[None]:
    """Whatever the user's model, loss or data raise is told with the place where it happened."""
    try:
        yield
    except FedAccordError:
        raise
    except Exception as error:
        raise TaskError(f"client {client}, round {round}: training failed: {type(error).__name__}: {error}") from error


def minibatches(site: Site, order: Order, client: int) -> Tensor:
    """Line 9: the examples of each step, (steps, batch): shuffled passes over the client's data, end to end.

    A client with fewer examples than a batch uses all that it has in every step.
    """
    hyper = order.hyper_of(client)
    examples, steps = len(site.clients[client]), hyper.steps
    batch = min(hyper.batch_size, examples)
    draw = generator(site.seed, "batches", order.round, client)
    passes = -(-steps * batch // examples)
    stream = torch.cat([torch.randperm(examples, generator=draw) for _ in range(passes)])
    return stream[: steps * batch].view(steps, batch)
