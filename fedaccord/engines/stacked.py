"""Many small clients as one batched computation: their weights are stacked, and one call does a step for all of them.

The loss of one client is vectorised over the clients by torch.func.vmap, once, and kept as a flat graph of torch calls;
a step is that graph, one backward pass and one update of the stack. It sums in another order than a loop over clients,
so it agrees with the other engines within float32's tolerance, not to the bit. How the cohort is cut into stacks does
not depend on the number of workers, so its own bits do not either.
"""

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from fedaccord.client.objective import ClientLoss, load_params, read_params
from fedaccord.client.training import Descent, Site, minibatches, reported, trainable, unspoilt
from fedaccord.core.errors import EngineError
from fedaccord.core.records import ClientUpdate, Hyper, Order, Params
from fedaccord.core.seeds import generator

STACK = 8
"""Clients in a stack at most: the weights of more would not fit a core's cache."""
STACK_BYTES = 2**28
"""And no more than this of weights: a stack, its gradients and what the clients keep come to a few times as much."""

Graph = Callable[..., Sequence[Any]]
"""Trained and fixed weights, inputs, targets -> the gradient of each trained weight, and at the end the losses. A
gradient that is a product of two matrices is left as these two: the update does the product and the step at once."""


class Whole(nn.Module):
    """A client's loss as one module, so that all of its weights can be given as arguments."""

    def __init__(self, model: nn.Module, loss_of: ClientLoss):
        super().__init__()
        self.model = model
        self.theta = nn.ModuleList(loss_of.trained)
        self.fixed = nn.ModuleList(loss_of.fixed)
        self.loss_of = loss_of

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return self.loss_of(inputs, targets)


@dataclass(frozen=True)
class Stack:
    """Some clients of a cohort, with mini-batches of equal size, ready to be trained."""

    clients: Sequence[int]
    reports: Sequence[tuple[float | None, float | None]]
    private: Sequence[Params | None]  # what each kept from its last round
    whole: Whole
    trained: Params  # the model's weights, then theta: (clients, ...) each
    fixed: Params  # the received model, the same for all


class Stacks:
    """Trains clients in stacks."""

    def __init__(self, site: Site):
        self.site = site
        self.workspace = copy.deepcopy(site.model)
        self.graphs: dict[Any, Graph] = {}
        self.table = one_table(site) if site.ready else None

    def groups(self, clients: Sequence[int], hyper: Hyper) -> list[list[int]]:
        """Stacks of clients whose mini-batches are of one size, as equal as can be, and an even number of them."""
        each = sum(value.numel() * value.element_size() for value in self.site.model.parameters())
        most = max(1, min(STACK, STACK_BYTES // max(1, each)))
        alike: dict[int, list[int]] = {}
        for client in clients:
            alike.setdefault(min(hyper.batch_size, len(self.site.clients[client])), []).append(client)
        stacks = []
        for group in alike.values():
            count = min(len(group), 2 * math.ceil(len(group) / (2 * most)))
            stacks += [group[len(group) * n // count : len(group) * (n + 1) // count] for n in range(count)]
        return stacks

    def train(
        self, order: Order, clients: Sequence[int], private: Sequence[Params | None]
    ) -> Iterator[tuple[ClientUpdate, Params | None]]:
        stack = self.begin(order, clients, private)
        losses = self.run(stack, self.graph(stack, order.hyper), order)
        for place, loss in enumerate(losses):
            yield self.finish(stack, place, loss)

    def begin(self, order: Order, clients: Sequence[int], private: Sequence[Params | None]) -> Stack:
        """Line 7 for each client: the received parameters, and what it kept."""
        site, model = self.site, self.workspace
        reports = [reported(site, model, order, client) for client in clients]
        load_params(model, order.params)
        model.train()
        rows: list[Params] = []
        for client, kept in zip(clients, private, strict=True):
            whole = Whole(model, site.objective.begin(model, order, client, site.seed, kept))
            rows.append({name: value.detach().clone() for name, value in trainable(whole).items() if theta(name)})
        trained = {
            name: value.detach().expand(len(clients), *value.shape).clone(memory_format=torch.contiguous_format)
            for name, value in trainable(whole).items()
            if not theta(name)
        } | {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
        fixed = {f"fixed.{name}": value.detach() for name, value in whole.fixed.state_dict().items()}
        return Stack(clients, reports, private, whole, trained, fixed)

    def graph(self, stack: Stack, hyper: Hyper) -> Graph:
        """The step of a stack of this shape, made once for each shape and each weight in the loss."""
        index = torch.zeros(len(stack.clients), 1, self.batch(stack, hyper), dtype=torch.long)
        inputs, targets = next(self.batches(stack, index, [torch.Generator() for _ in stack.clients]))
        key = (inputs.shape, hyper.entropy_min, hyper.entropy_weight, hyper.rm_weight)
        if key not in self.graphs:
            self.graphs[key] = trace(stack, inputs, targets)
        return self.graphs[key]

    def batch(self, stack: Stack, hyper: Hyper) -> int:
        return min(hyper.batch_size, len(self.site.clients[stack.clients[0]]))

    def run(self, stack: Stack, graph: Graph, order: Order) -> list[float]:
        """Lines 8-11 for a whole stack; each client's mean loss."""
        received = {name.removeprefix("model."): value for name, value in stack.trained.items() if not theta(name)}
        anchor = [order.params[name].expand_as(value) for name, value in received.items()]
        descend = StackDescent(list(stack.trained.values()), order.hyper, stack.whole.loss_of.pull, anchor)
        index = torch.stack([minibatches(self.site, order, client) for client in stack.clients])
        augment = [generator(self.site.seed, "augment", order.round, client) for client in stack.clients]
        total = torch.zeros(len(stack.clients))
        with torch.no_grad():
            for inputs, targets in self.batches(stack, index, augment):
                *gradients, losses = graph(*stack.trained.values(), *stack.fixed.values(), inputs, targets)
                descend(gradients)
                total += losses
        return [float(value) / order.hyper.steps for value in total]

    def batches(
        self, stack: Stack, index: Tensor, augment: Sequence[torch.Generator]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Line 9: (clients, batch, ...) inputs and targets, step by step. `index` is (clients, steps, batch)."""
        if self.table is not None:  # all in one table that needs no preparing: one gather serves the stack
            inputs, targets, first = self.table
            at = index + torch.tensor([first[client] for client in stack.clients]).view(-1, 1, 1)
            for rows in at.transpose(0, 1).contiguous():
                yield inputs.index_select(0, rows.view(-1)).view(*rows.shape, *inputs.shape[1:]), targets[rows]
            return
        data = [self.site.clients[client] for client in stack.clients]
        for rows in index.transpose(0, 1):
            parts = zip(data, rows, augment, strict=True)
            inputs = torch.stack([self.site.prepare(own.inputs[row], draw) for own, row, draw in parts])
            yield inputs, torch.stack([own.targets[row] for own, row in zip(data, rows, strict=True)])

    def finish(self, stack: Stack, place: int, loss: float) -> tuple[ClientUpdate, Params | None]:
        """Line 12: what the client sends, and what it keeps."""
        with torch.no_grad():
            for name, weight in trainable(stack.whole).items():
                weight.copy_(stack.trained[name][place])
        client = stack.clients[place]
        examples = len(self.site.clients[client])
        update = ClientUpdate(client, read_params(self.workspace), examples, loss, *stack.reports[place])
        return update, unspoilt(stack.whole.loss_of.keep(), stack.private[place])


class StackDescent(Descent):
    """Line 10 for a stack, without a tensor for a gradient that is a product."""

    def __call__(self, gradients: Sequence[Tensor | tuple[Tensor, Tensor]]) -> None:
        if self.momentum or self.pull:
            super().__call__([torch.bmm(*g) if isinstance(g, tuple) else g for g in gradients])
            return
        whole = [place for place, gradient in enumerate(gradients) if isinstance(gradient, Tensor)]
        if whole:
            weights, steps = [self.weights[place] for place in whole], [gradients[place] for place in whole]
            torch._foreach_add_(weights, steps, alpha=-self.lr)  # type: ignore[arg-type]
        for weight, gradient in zip(self.weights, gradients, strict=True):
            if isinstance(gradient, tuple):
                weight.baddbmm_(*gradient, alpha=-self.lr)


def trace(stack: Stack, inputs: Tensor, targets: Tensor) -> Graph:
    """Loss and gradient of one client, vectorised over the stack, as a flat list of torch calls."""
    names, fixed = list(stack.trained), list(stack.fixed)

    def loss(trained: Sequence[Tensor], fixed_: Sequence[Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        weights = dict(zip(names, trained, strict=True)) | dict(zip(fixed, fixed_, strict=True))
        result: Tensor = functional_call(stack.whole, weights, (inputs, targets))
        return result

    def step(*tensors: Tensor) -> list[Tensor]:
        trained, fixed_ = list(tensors[: len(names)]), list(tensors[len(names) : -2])
        batched = vmap(grad_and_value(loss), in_dims=(0, None, 0, 0))
        gradients, losses = batched(trained, fixed_, *tensors[-2:])
        return [*gradients, losses]

    try:
        with warnings.catch_warnings():  # "a performance drop": such calls are done client by client
            warnings.simplefilter("ignore", UserWarning)
            graph = make_fx(step)(*stack.trained.values(), *stack.fixed.values(), inputs, targets)
    except Exception as error:  # whatever torch says of a model that it cannot vectorise
        reason = str(error).strip().splitlines()[0]
        raise EngineError(f"this model's clients cannot be stacked: {reason}") from error
    return lean(graph)


def lean(graph: GraphModule) -> GraphModule:
    """The same without the calls that change nothing, and with sums and products in one call.

    Vectorising leaves many behind: in a network of two hidden layers they are half of all calls.
    """
    aten = torch.ops.aten
    for node in graph.graph.nodes:
        if node.op != "call_function":
            continue
        first = node.args[0] if node.args and isinstance(node.args[0], Node) else None
        same = first is not None and shape(first) == shape(node)
        if (
            (node.target in (aten.expand.default, aten.view.default, aten._unsafe_view.default) and same)
            or (node.target is aten.mul.Scalar and node.args[1] == 1)
            or node.target is aten.detach.default
        ):
            node.replace_all_uses_with(first)
        elif node.target is aten.transpose.int and first is not None and first.target is aten.transpose.int:
            back = first.args[0] if first.args[1:] == node.args[1:] else node
            node.replace_all_uses_with(back)
    graph.graph.eliminate_dead_code()
    for node in graph.graph.nodes:
        if node.target is aten.add.Tensor and len(node.args) == 2 and is_product(node.args[1]):
            bias, product = node.args
            if isinstance(bias, Node) and len(product.users) == 1 and shape(bias)[1:2] == (1,):
                node.target, node.args = aten.baddbmm.default, (bias, *product.args)
    output = next(node for node in graph.graph.nodes if node.op == "output")
    *gradients, losses = output.args[0]
    output.args = ([tuple(g.args) if is_product(g) else g for g in gradients] + [losses],)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph


def is_product(node: object) -> bool:
    return isinstance(node, Node) and node.target is torch.ops.aten.bmm.default


def shape(node: Node) -> tuple[int, ...]:
    value = node.meta.get("val")
    return tuple(value.shape) if isinstance(value, Tensor) else ()


def cannot_stack(site: Site, hyper: Hyper) -> str | None:
    """Why this model's clients cannot be trained in stacks (dropout, BatchNorm ...); None if they can. Tries it."""
    stacks = Stacks(site)
    client = next(number for number, data in enumerate(site.clients) if len(data))
    order = Order(1, (), read_params(site.model), hyper)
    try:
        stacks.graph(stacks.begin(order, [client, client], [None, None]), hyper)
    except EngineError as error:
        return str(error)
    return None


def theta(name: str) -> bool:
    return name.startswith("theta.")


def one_table(site: Site) -> tuple[Tensor, Tensor, list[int]] | None:
    """(inputs, targets, each client's first row) if all clients are slices of the same two tensors; otherwise None."""
    inputs, targets = site.clients[0].inputs._base, site.clients[0].targets._base
    if inputs is None or targets is None:
        return None
    first = []
    for client in site.clients:
        row = int(client.targets.storage_offset() - targets.storage_offset())
        if client.inputs._base is not inputs or client.targets._base is not targets or len(inputs) != len(targets):
            return None
        first.append(row)
    return inputs, targets, first
