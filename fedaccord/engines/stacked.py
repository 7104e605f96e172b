"""Many small clients as one batched computation: their weights are stacked, and one call does a step for all of them.

The loss of one client is vectorised over the clients by torch.func.vmap, once, and kept as a flat graph of torch calls;
a step is that graph, one backward pass and one update of the stack. It sums in another order than a loop over clients,
so it agrees with the other engines within float32's tolerance, not to the bit. How the cohort is cut into stacks does
not depend on the number of workers, so its own bits do not either.
"""

import copy
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from fedaccord.client.optimizers import Sgd
from fedaccord.client.side import ClientRound, Corrections
from fedaccord.client.training import Site, failure_named, minibatches, reported, tested
from fedaccord.core.batches import Batch, clone, leaves, like, together
from fedaccord.core.errors import EngineError, first_line
from fedaccord.core.params import by_client, load_params, read_params
from fedaccord.core.protocols import ClientPart, Work, trained_weights
from fedaccord.core.records import OPTIMIZER, ClientUpdate, Examples, Hyper, Order, Packages, Params, size_of
from fedaccord.core.seeds import generator

STACK = 8
"""The most clients in a stack: the weights of more would not fit a core's cache."""
GRAPHS = 256
"""The most traced graphs that are remembered."""
STACK_BYTES = 2**28
"""The most bytes of weights in a stack: with gradients and what the clients keep it takes a few times as much."""

Graph = Callable[..., Sequence[Any]]
"""Trained, own and shared weights, inputs, targets -> the gradient of each trained weight, and at the end the losses. A
gradient that is a product of two matrices is left as these two: the update does the product and the step at once."""


class Whole(nn.Module):
    """A client's loss as one module, so that all of its weights can be given as arguments."""

    def __init__(self, work: ClientRound):
        super().__init__()
        self.model = work.model
        self.beside = nn.ModuleList(work.trained)  # trained along, each client's own
        self.own = nn.ModuleList(work.own)  # not trained, each client's own
        self.shared = nn.ModuleList(work.shared)  # not trained, the same for all
        self.work = work

    def forward(self, inputs: Batch, targets: Batch) -> Tensor:
        return self.work(inputs, targets)


@dataclass(frozen=True)
class Stack:
    """Some clients of a cohort, with equal hyper-parameters and mini-batches of equal size, ready to be trained."""

    clients: Sequence[int]
    hyper: Hyper
    reports: Sequence[tuple[float | None, float | None, Mapping[str, float]]]
    kept: Sequence[Packages]  # what each kept from its last round
    rounds: Sequence[ClientRound]
    whole: Whole
    trained: Params  # the model's weights, then what is trained beside it: (clients, ...) each
    own: Params  # (clients, ...) each
    shared: Params  # the same for all

    def arguments(self) -> list[Tensor]:
        return [*self.trained.values(), *self.own.values(), *self.shared.values()]


@dataclass(frozen=True)
class TracedHyper(Hyper):
    """h_t as a loss term may see it in a stack: without the values that only the optimizer takes.

    A traced graph is used again for other rates and numbers of steps, so a term that read them would be wrong there.
    """

    def __getattribute__(self, name: str) -> Any:
        if name in OPTIMIZER:
            raise EngineError(f"a term of the loss depends on {name}")
        return super().__getattribute__(name)


class Stacks:
    """A trainer that trains clients in stacks."""

    def __init__(self, site: Site):
        self.site = site
        self.workspace = copy.deepcopy(site.model)
        self.graphs: dict[Any, Graph] = {}
        self.table = one_table(site) if site.ready else None

    def groups(self, clients: Sequence[int], order: Order) -> list[list[int]]:
        """Cut the clients into stacks of at most STACK, with equal hyper-parameters and batch sizes in each.

        The number of stacks is even if it can be, so that two workers have the same to do.
        """
        each = size_of(dict(self.site.model.named_parameters()))
        most = max(1, min(STACK, STACK_BYTES // max(1, each)))
        alike: dict[Any, list[int]] = {}
        for client in clients:
            hyper = order.hyper_of(client)
            batch = min(hyper.batch_size, len(self.site.clients[client]))
            alike.setdefault((batch, *sorted(hyper.values().items())), []).append(client)
        stacks = []
        for group in alike.values():
            count = min(len(group), 2 * math.ceil(len(group) / (2 * most)))
            stacks += [group[len(group) * n // count : len(group) * (n + 1) // count] for n in range(count)]
        return stacks

    def train(
        self, order: Order, clients: Sequence[int], kept: Sequence[Packages]
    ) -> Iterator[tuple[ClientUpdate, Packages]]:
        stack = self.begin(order, clients, kept)
        with failure_named(clients[0], order.round):
            losses, corrections = self.run(stack, self.graph(stack), order)
        for place, loss in enumerate(losses):
            with failure_named(clients[place], order.round):
                ended = self.finish(stack, place, loss, corrections)
            yield ended

    def begin(self, order: Order, clients: Sequence[int], kept: Sequence[Packages]) -> Stack:
        """Line 7 for each client: load the received parameters and what it kept, and return them all as a stack."""
        site, model = self.site, self.workspace
        reports = []
        for client in clients:
            with failure_named(client, order.round):
                found = *reported(site, model, order, client, {}), tested(site, model, order, client, {})
            reports.append(found)
        load_params(model, order.params)
        site.train_mode(model)
        hyper = order.hyper_of(clients[0])
        traced = TracedHyper(**vars(hyper))
        rounds, beside, own = [], [], []
        for client, before in zip(clients, kept, strict=True):
            data = site.clients[client]
            with failure_named(client, order.round):
                work = site.method.begin(site.objective, model, order, traced, client, site.seed, before, data)
            rounds.append(work)
            whole = Whole(work)
            beside.append(values(trained_weights(whole), "beside."))
            own.append(values(whole.state_dict(), "own."))
        trained = {
            name: value.detach().expand(len(clients), *value.shape).clone(memory_format=torch.contiguous_format)
            for name, value in trained_weights(whole).items()
            if not name.startswith("beside.")
        } | stacked(beside)
        shared = {name: value.detach() for name, value in whole.state_dict().items() if name.startswith("shared.")}
        return Stack(clients, hyper, reports, kept, rounds, whole, trained, stacked(own), shared)

    def graph(self, stack: Stack) -> Graph:
        """Return the traced step of this stack, made once for each shape and all that a term of the loss could read."""
        inputs, targets = self.example(stack)
        key = (*(each.shape for each in (*leaves(inputs), *leaves(targets))), *sorted(stack.hyper.own.items()))
        if key not in self.graphs:
            if len(self.graphs) >= GRAPHS:
                self.graphs.pop(next(iter(self.graphs)))
            self.graphs[key] = trace(stack, inputs, targets)
        return self.graphs[key]

    def example(self, stack: Stack) -> tuple[Batch, Batch]:
        """Return inputs and targets of the shapes that this stack's steps have."""
        batch = min(stack.hyper.batch_size, len(self.site.clients[stack.clients[0]]))
        index = torch.zeros(len(stack.clients), 1, batch, dtype=torch.long)
        return next(self.batches(stack, index, [torch.Generator() for _ in stack.clients]))

    def run(self, stack: Stack, graph: Graph, order: Order) -> tuple[list[float], Corrections | None]:
        """Lines 8-11: train a whole stack; return each client's mean loss, and the hook that ran before each step."""
        model = {n.removeprefix("model."): v for n, v in stack.trained.items() if not n.startswith("beside.")}
        beside = [value for name, value in stack.trained.items() if name.startswith("beside.")]
        received = [order.params[name].expand_as(value) for name, value in model.items()]
        corrections = self.site.method.corrections(
            list(model), stack.hyper, received, wide(order.down, len(stack.clients)), self.held(stack), stacked=True
        )
        nesterov = self.site.optimizer.nesterov
        descend = StackDescent(list(model.values()), beside, stack.hyper, corrections, nesterov)
        index = torch.stack([minibatches(self.site, order, client) for client in stack.clients])
        augment = [generator(self.site.seed, "augment", order.round, client) for client in stack.clients]
        total, arguments = torch.zeros(len(stack.clients)), stack.arguments()
        with torch.no_grad():
            for inputs, targets in self.batches(stack, index, augment):
                if corrections is not None and corrections.last:
                    other = [*corrections.last, *arguments[len(corrections.last) :]]
                    *before, _ = graph(*other, *leaves(clone(inputs)), *leaves(targets))
                    corrections.before = [torch.bmm(*g) if isinstance(g, tuple) else g for g in before[: len(model)]]
                *gradients, losses = graph(*arguments, *leaves(inputs), *leaves(targets))
                descend(gradients)
                total += losses
        return [float(value) / stack.hyper.steps for value in total], corrections

    def held(self, stack: Stack) -> Packages:
        """Return what the clients kept in slots like the weights, with a leading axis for the clients."""
        held = [self.site.method.held(kept) for kept in stack.kept]
        like_weights = self.site.method.weights["client"]
        return {
            slot: {name: torch.stack([each[slot][name] for each in held]) for name in held[0][slot]}
            for slot in held[0]
            if slot in like_weights
        }

    def batches(self, stack: Stack, index: Tensor, augment: Sequence[torch.Generator]) -> Iterator[tuple[Batch, Batch]]:
        """Line 9: yield (clients, batch, ...) inputs and targets, step by step; `index` is (clients, steps, batch)."""
        if self.table is not None:  # all in one table that needs no preparation: one gather serves the stack
            inputs, targets, first = self.table
            at = index + torch.tensor([first[client] for client in stack.clients]).view(-1, 1, 1)
            for rows in at.transpose(0, 1).contiguous():
                yield inputs.index_select(0, rows.view(-1)).view(*rows.shape, *inputs.shape[1:]), targets[rows]
            return
        data = [self.site.clients[client] for client in stack.clients]
        for rows in index.transpose(0, 1):
            parts = [own[row] for own, row in zip(data, rows, strict=True)]
            seen = [self.site.prepare(part.inputs, draw) for part, draw in zip(parts, augment, strict=True)]
            yield together(seen, torch.stack), together([part.targets for part in parts], torch.stack)

    def finish(
        self, stack: Stack, place: int, loss: float, corrections: Corrections | None
    ) -> tuple[ClientUpdate, Packages]:
        """Line 12: return what the client sends, and what it keeps."""
        with torch.no_grad():
            for name, weight in trained_weights(stack.whole).items():
                weight.copy_(stack.trained[name][place])
        client, params = stack.clients[place], read_params(self.workspace, self.site.names)
        sent, keeps = stack.rounds[place].finish(params, None, corrections, place)
        examples = len(self.site.clients[client])
        reports, round = stack.reports[place], stack.rounds[place].order.round
        return ClientUpdate(client, params, examples, loss, sent, *reports, round=round), keeps


def values(tensors: Mapping[str, Tensor], start: str) -> Params:
    """Return copies of the tensors whose names begin with `start`."""
    return {name: value.detach().clone() for name, value in tensors.items() if name.startswith(start)}


def stacked(rows: Sequence[Params]) -> Params:
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def wide(packages: Packages, clients: int) -> Packages:
    """Return the packages with a leading axis for the clients, without a copy."""
    return {
        slot: {name: value.expand(clients, *value.shape) for name, value in params.items()}
        for slot, params in packages.items()
    }


class StackDescent(Sgd):
    """Line 10, SGD, for a stack, without a tensor for a gradient that is a product of two matrices."""

    def __call__(self, gradients: Sequence[Tensor | tuple[Tensor, Tensor]]) -> None:
        changed = self.momentum or self.longest or self.decay
        if changed or (self.corrections is not None and self.corrections.gradients):
            super().__call__([torch.bmm(*g) if isinstance(g, tuple) else g for g in gradients])
            return
        if self.corrections is not None:  # they change the weights alone
            self.corrections(self.weights, [])
        whole = [place for place, gradient in enumerate(gradients) if isinstance(gradient, Tensor)]
        if whole:
            weights, steps = [self.weights[place] for place in whole], [gradients[place] for place in whole]
            torch._foreach_add_(weights, steps, alpha=-self.lr)  # type: ignore[arg-type]
        for weight, gradient in zip(self.weights, gradients, strict=True):
            if isinstance(gradient, tuple):
                weight.baddbmm_(*gradient, alpha=-self.lr)

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """Return the length of each client's gradient."""
        return torch.stack([by_client(gradient).norm(dim=1) for gradient in gradients]).norm(dim=0)


def trace(stack: Stack, inputs: Batch, targets: Batch) -> GraphModule:
    """Trace the loss and gradient of one client, vectorised over the stack, into a flat list of torch calls."""
    names, own, shared = list(stack.trained), list(stack.own), list(stack.shared)
    data, given = [*leaves(inputs), *leaves(targets)], len(leaves(inputs))

    def loss(
        trained: Sequence[Tensor], own_: Sequence[Tensor], shared_: Sequence[Tensor], data: Sequence[Tensor]
    ) -> Tensor:
        weights = dict(zip([*names, *own, *shared], [*trained, *own_, *shared_], strict=True))
        batch = like(inputs, data[:given]), like(targets, data[given:])
        result: Tensor = functional_call(stack.whole, weights, batch)
        return result

    def step(*tensors: Tensor) -> list[Tensor]:
        trained, rest = list(tensors[: len(names)]), list(tensors[len(names) : -len(data)])
        batched = vmap(grad_and_value(loss), in_dims=(0, 0 if own else None, None, 0))
        gradients, losses = batched(trained, rest[: len(own)], rest[len(own) :], list(tensors[-len(data) :]))
        return [*gradients, losses]

    try:
        with warnings.catch_warnings():  # "a performance drop": such calls are done client by client
            warnings.simplefilter("ignore", UserWarning)
            graph = make_fx(step)(*stack.arguments(), *data)
    except Exception as error:  # whatever torch says of a model that it cannot vectorise
        reason = first_line(error) or type(error).__name__
        raise EngineError(f"this model's clients cannot be stacked: {reason}") from error
    if baked_in(graph, stack):
        raise EngineError("a term of the loss reads tensors of no module in its Work's trained, shared or own")
    return lean(graph)


def baked_in(graph: GraphModule, stack: Stack) -> bool:
    """Return whether the graph holds, as a constant, a tensor of this round: it would be stale in the next."""
    places = {tensor.data_ptr() for tensor in tensors_of(vars(graph))}
    places -= {tensor.data_ptr() for tensor in tensors_of(stack.whole.model)}
    suspects = ((work.works, work.order.params, work.order.down, work.kept) for work in stack.rounds)
    return any(tensor.data_ptr() in places for tensor in tensors_of(list(suspects)))


def tensors_of(value: Any) -> Iterator[Tensor]:
    """Yield all tensors in nested containers, modules and works."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, nn.Module):
        yield from (*value.parameters(), *value.buffers())
    elif isinstance(value, Mapping):
        yield from (tensor for each in value.values() for tensor in tensors_of(each))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        yield from (tensor for each in value for tensor in tensors_of(each))
    elif isinstance(value, Work):
        yield from tensors_of(vars(value))


def lean(graph: GraphModule) -> GraphModule:
    """Remove the calls that change nothing from a graph, and merge each sum with a product into one call.

    Vectorising leaves many such calls behind: in a network of two hidden layers they are half of all calls.
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
    """Try to stack this model's clients; return why that cannot be done (dropout, BatchNorm ...), or None if it can."""
    if site.optimizer.make is not None or site.optimizer.keep:
        return "the clients step by an optimizer of torch's, each for itself"
    if site.travel is not None and site.travel.home:
        return "a part of the model stays with each client"
    if not all(isinstance(client, Examples) for client in site.clients):
        return "a Dataset is read for each client by itself"
    for part, made in site.method.parts:
        own = type(made).begin is not ClientPart.begin or type(made).correct is not ClientPart.correct
        if own and not made.stacks:
            return f"{part.name} does not say that its clients may be stacked (`stacks = True`, docs/extend.md)"
    stacks = Stacks(site)
    client, *others = [number for number, data in enumerate(site.clients) if len(data)]

    def code(round: int, client: int, number: float) -> str:
        """Return the step as traced for this client in this round, with this number in every scalar that is sent."""
        down = {slot: {n: v + number * (v.dim() == 0) for n, v in each.items()} for slot, each in sent.items()}
        order = Order(round, (), read_params(site.model, site.names), hyper, down=down)
        stack = stacks.begin(order, [client, client], [{}, {}])
        return str(trace(stack, *stacks.example(stack)).code)

    device = next(site.model.parameters()).device
    sent = {slot: {n: v.to(device) for n, v in template.items()} for slot, template in site.method.down.items()}
    batch = min(hyper.batch_size, len(site.clients[client]))
    alike = (other for other in others if min(hyper.batch_size, len(site.clients[other])) == batch)
    try:
        first = code(1, client, 0.0)
        if site.method.parts and code(2, next(alike, client), 1.0) != first:
            return "a term of the loss depends on the round, the client or a number that is sent, not on tensors alone"
    except EngineError as error:
        return str(error)
    return None


def one_table(site: Site) -> tuple[Tensor, Tensor, list[int]] | None:
    """Return (inputs, targets, each client's first row) if all clients are slices of two tensors; otherwise None."""
    views = [(client.inputs, client.targets) for client in site.clients if isinstance(client, Examples)]
    plain = len(views) == len(site.clients) and all(isinstance(each, Tensor) for pair in views for each in pair)
    if not plain or views[0][0]._base is None or views[0][1]._base is None:
        return None
    inputs, targets = (each._base for each in views[0])
    same = all(x._base is inputs and y._base is targets for x, y in views)
    if not same or len(inputs) != len(targets):
        return None
    rows = [(first_row(x, inputs), first_row(y, targets)) if len(x) else (0, 0) for x, y in views]
    first = [row for row, other in rows if row is not None and row == other]
    return (inputs, targets, first) if len(first) == len(rows) else None


def first_row(view: Tensor, table: Tensor) -> int | None:
    """Return the row of a table at which a view of it begins; None if the view is not one of whole successive rows."""
    alike = view.dtype == table.dtype and view.stride() == table.stride() and view.shape[1:] == table.shape[1:]
    if not alike or not table.stride(0):
        return None
    row, beside = divmod(int(view.storage_offset()) - int(table.storage_offset()), table.stride(0))
    return None if beside else row
