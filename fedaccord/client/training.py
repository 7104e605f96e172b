"""Lines 7-12: what one client does with the model it receives."""

import copy
import time
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from fedaccord.client.optimizers import ClientOptimizer
from fedaccord.client.side import ClientRound, ClientSide
from fedaccord.core.batches import Batch, clone, output_of
from fedaccord.core.errors import FedAccordError, TaskError, first_line
from fedaccord.core.params import load_params, read_params
from fedaccord.core.protocols import trained_weights
from fedaccord.core.records import (
    ClientData,
    ClientUpdate,
    LossFunction,
    Metric,
    Objective,
    Order,
    Packages,
    Params,
    Prepare,
    metrics_on,
)
from fedaccord.core.seeds import generator, global_seed
from fedaccord.core.travel import HOME, Travel

REPORT_EXAMPLES = 64
TEST_BATCH = 128


@dataclass(frozen=True)
class Site:
    """Everything that it takes to run clients; the same value serves every engine."""

    model: nn.Module
    method: ClientSide
    clients: Sequence[ClientData]
    prepare: Prepare
    objective: Objective
    measure: LossFunction  # the loss that clients report for L_t
    seed: int
    ready: bool = False  # whether the clients' inputs are already what the model sees: `prepare` changes nothing
    optimizer: ClientOptimizer = field(default_factory=ClientOptimizer)
    store: str = "auto"  # where clients keep things: memory, disk, or auto: on disk if it would not fit
    travel: Travel | None = None  # which of the model's tensors travel; None: all
    stays: Params = field(default_factory=dict)  # first values of what does not travel but may change in training
    still: tuple[str, ...] = ()  # modules that are not to be changed, not even their statistics
    tests: Sequence[ClientData] = ()  # what each client keeps to measure the metrics on; empty: none does
    metrics: Sequence[Metric] = ()
    beside: Params = field(default_factory=dict)  # first values of the buffers that are not in the model's state
    threads: int = 1  # torch's, wherever the clients are trained: another number may give other last bits

    @property
    def names(self) -> Container[str] | None:
        """The names of the tensors that travel; None: all."""
        return None if self.travel is None else self.travel.names

    def whole(self, params: Params, kept: Packages) -> Params:
        """Return what a client puts into the model: what travelled, and its own part as it kept it, or as it starts."""
        return {**self.stays, **kept.get(HOME, {}), **params} if self.stays else params

    def load(self, model: nn.Module, params: Params, kept: Packages) -> None:
        """Put a client's model into the workspace, which another client may have used before.

        Buffers that are no part of the model's state begin as they were, since nothing else would reset them.
        """
        load_params(model, self.whole(params, kept))
        for name, value in self.beside.items():
            place, _, own = name.rpartition(".")
            setattr(model.get_submodule(place), own, value.clone())

    def train_mode(self, model: nn.Module) -> None:
        """Put the model into training mode, except for the modules whose buffers must not change."""
        model.train()
        for name in self.still:
            model.get_submodule(name).eval()

    def trained(self, model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the trained weights in two tables: those that travel, and those that stay."""
        weights = trained_weights(model)
        if self.travel is None or not self.travel.home:
            return weights, {}
        own = {name: weight for name, weight in weights.items() if name in self.travel.names}
        return own, {name: weight for name, weight in weights.items() if name not in own}

    def kept_at_home(self, model: nn.Module) -> Packages:
        """Return a copy of the client's own part of the model, for it to keep."""
        return {HOME: read_params(model, self.travel.home)} if self.travel is not None and self.travel.home else {}


class Trainer(Protocol):
    """A way for a process to train the clients that it is given."""

    def groups(self, clients: Sequence[int], order: Order) -> list[list[int]]:
        """Divide the clients into the groups that are trained together, in the same way on every engine."""
        ...

    def train(
        self, order: Order, clients: Sequence[int], kept: Sequence[Packages]
    ) -> Iterator[tuple[ClientUpdate, Packages]]:
        """Train one group, and yield each client's update and what it keeps now; `kept` is what each kept before."""
        ...


class OneByOne:
    """The reference trainer: a loop that trains one client after the other."""

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
    """Run one client's round, and return what it sends and what it keeps to itself.

    `model` is a workspace: its parameters are overwritten.
    """
    with failure_named(client, order.round):
        return one_round(site, model, order, client, kept)


def one_round(site: Site, model: nn.Module, order: Order, client: int, kept: Packages) -> tuple[ClientUpdate, Packages]:
    """Run one client's round, like `train`, but without adding the client and the round to an error."""
    end = None if order.seconds is None else time.monotonic() + order.seconds
    data, hyper = site.clients[client], order.hyper_of(client)
    if (device := next(model.parameters()).device).type != "cpu":  # what was kept on disk is read to the CPU
        kept = {slot: {name: value.to(device) for name, value in params.items()} for slot, params in kept.items()}
    reports = (*reported(site, model, order, client, kept), tested(site, model, order, client, kept))
    site.load(model, order.params, kept)  #                                                                   7
    site.train_mode(model)
    work = site.method.begin(site.objective, model, order, hyper, client, site.seed, kept, data)
    own, home = site.trained(model)
    beside = [weight for part in work.trained for weight in trained_weights(part).values()]
    received = [order.params[name] for name in own]
    corrections = site.method.corrections(list(own), hyper, received, order.down, site.method.held(kept))
    descend = site.optimizer.begin([*own.values(), *home.values()], beside, hyper, corrections, kept)
    total = torch.zeros((), device=device)
    augment = generator(site.seed, "augment", order.round, client)
    done = 0
    batches = data.batches(minibatches(site, order, client), generator(site.seed, "reading", order.round, client))
    with global_seed(site.seed, "dropout", order.round, client), closing(batches):
        for batch in batches:  #                                                                            8, 9
            inputs = site.prepare(batch.inputs, augment)
            if corrections is not None and (last := corrections.last):
                corrections.before = looked_back(model, work, list(own.values()), last, clone(inputs), batch.targets)
            loss = work(inputs, batch.targets)  #                                                             10
            descend(torch.autograd.grad(loss, descend.weights, allow_unused=True, materialize_grads=True))  # 10
            total += loss.detach()
            done += 1
            if end is not None and time.monotonic() >= end:
                break
    params = read_params(model, order.params)
    fewer = done if done < hyper.steps else None
    beside_method = {**descend.kept(), **site.kept_at_home(model)}
    sent, keeps = work.finish(params, beside_method, corrections, steps=fewer)  #                             12
    mean, share = float(total) / done, done / hyper.steps
    return ClientUpdate(client, params, len(data), mean, sent, *reports, round=order.round, done=share), keeps


def looked_back(
    model: nn.Module,
    work: ClientRound,
    weights: Sequence[Tensor],
    last: Sequence[Tensor],
    inputs: Batch,
    targets: Batch,
) -> Sequence[Tensor]:
    """Return the mini-batch's gradients at the weights `last`; restore weights, buffers and torch's random state."""
    here = [[each.detach().clone() for each in tensors] for tensors in (weights, list(model.buffers()))]
    with torch.random.fork_rng():
        with torch.no_grad():
            for weight, other in zip(weights, last, strict=True):
                weight.copy_(other)
        found = torch.autograd.grad(work(inputs, targets), weights, allow_unused=True, materialize_grads=True)
    with torch.no_grad():
        for tensors, values in zip((weights, list(model.buffers())), here, strict=True):
            for each, value in zip(tensors, values, strict=True):
                each.copy_(value)
    return found


@torch.no_grad()
def reported(
    site: Site, model: nn.Module, order: Order, client: int, kept: Packages
) -> tuple[float | None, float | None]:
    """Line 15, the paper's second way: return the client's loss of w_t and, if asked for, of w_{t-1}.

    Both are measured on the same small part of the client's data.
    """
    if not order.report_loss:
        return None, None
    losses: list[float | None] = [None, None]
    data, draw = site.clients[client], generator(site.seed, "report", order.round, client)
    some = data[torch.randperm(len(data), generator=draw)[:REPORT_EXAMPLES]]
    for number, params in enumerate((order.params, order.previous)):
        if params is not None:
            site.load(model, params, kept)
            with global_seed(site.seed, "report", order.round, client):
                output = output_of(model.eval(), site.prepare(clone(some.inputs), None))
            losses[number] = float(site.measure(output, some.targets))
    return losses[0], losses[1]


@torch.no_grad()
def tested(site: Site, model: nn.Module, order: Order, client: int, kept: Packages) -> Mapping[str, float]:
    """Return the metrics of w_t, with the client's own part of the model if it has one, on its examples for tests."""
    if not order.report_metrics or not site.tests or not len(site.tests[client]):
        return {}
    site.load(model, order.params, kept)
    model.eval()
    batches = []
    with global_seed(site.seed, "test", order.round, client):
        for first in range(0, len(site.tests[client]), TEST_BATCH):
            some = site.tests[client][first : first + TEST_BATCH]
            batches.append((output_of(model, site.prepare(clone(some.inputs), None)), some.targets))
    return metrics_on(batches, site.metrics)


@contextmanager
def failure_named(client: int, round: int) -> Iterator[None]:
    """Turn whatever the user's model, loss or data raise inside the block into a TaskError with client and round."""
    place = f"client {client}, round {round}"
    try:
        yield
    except TaskError as error:
        raise TaskError(f"{place}: {error}") from error
    except FedAccordError:
        raise
    except Exception as error:
        raise TaskError(f"{place}: training failed: {type(error).__name__}: {first_line(error)}") from error


def minibatches(site: Site, order: Order, client: int) -> Tensor:
    """Line 9: draw the examples of each step, (steps, batch), from shuffled passes over the client's data, end to end.

    A client with fewer examples than a batch uses all that it has in every step.
    """
    hyper = order.hyper_of(client)
    examples, steps = len(site.clients[client]), hyper.steps
    batch = min(hyper.batch_size, examples)
    draw = generator(site.seed, "batches", order.round, client)
    passes = -(-steps * batch // examples)
    stream = torch.cat([torch.randperm(examples, generator=draw) for _ in range(passes)])
    return stream[: steps * batch].view(steps, batch)
