"""A method's client parts, bound to one model, as the loop and the stacks call them."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from fedaccord.core.batches import Batch, output_of
from fedaccord.core.errors import MethodError, UpdateRefused
from fedaccord.core.packages import check, flatten
from fedaccord.core.protocols import (
    NOTHING,
    OWN,
    THE_GRADIENTS,
    WEIGHTS,
    Beginning,
    Built,
    ClientPart,
    End,
    Method,
    Part,
    Step,
    Work,
)
from fedaccord.core.records import ClientData, Hyper, Objective, Order, Packages, Params
from fedaccord.core.seeds import global_seed


class ClientSide:
    """All that a method does at a client. A part sees its own slots only, under their own names."""

    def __init__(self, method: Method, built: Built):
        made = ((part, part.client(built)) for part in method.parts)
        self.parts: list[tuple[Part, ClientPart]] = [(part, client) for part, client in made if client is not None]
        self.settings = method.settings
        owners = dict(self.parts)
        self.kept: dict[str, Params] = {}  # templates of what a client keeps
        for name, (part, slot) in method.slots("client").items():
            template = owners[part].own_template() if slot.like == OWN else slot.template(built.model, built.travel)
            if template:
                self.kept[name] = template
        self.up = {n: slot.template(built.model, built.travel) for n, (_, slot) in method.slots("up").items()}
        self.down = {n: slot.template(built.model, built.travel) for n, (_, slot) in method.slots("down").items()}
        self.zeros = {n: self.kept[n] for n, (_, s) in method.slots("client").items() if s.like != OWN}
        self.weights = {
            kind: {name for name, (_, slot) in method.slots(kind).items() if slot.like == WEIGHTS}
            for kind in ("down", "client")
        }

    def begin(
        self,
        objective: Objective,
        model: nn.Module,
        order: Order,
        hyper: Hyper,
        client: int,
        seed: int,
        kept: Packages,
        data: ClientData | None = None,
    ) -> "ClientRound":
        """Begin one client's round; `model` holds the received parameters already."""
        works = []
        with global_seed(seed, "begin", order.round, client) if self.parts else nullcontext():
            for part, made in self.parts:
                at = Beginning(
                    model, order.params, hyper, part.own(order.down), part.own(kept), order.round, client, seed, data
                )
                works.append(made.begin(at))
        return ClientRound(self, objective, model, order, client, hyper, kept, works, seed)

    def corrections(
        self,
        weights: Sequence[str],
        hyper: Hyper,
        received: list[Tensor],
        down: Packages,
        kept: Packages,
        stacked: bool = False,
    ) -> "Corrections | None":
        """Return the hook before each optimizer step, or None if no part has one.

        `weights`: the names of what is trained and travels; `received`: its values as they came. `stacked`: every
        tensor has a leading axis for the clients.
        """
        active = [(part, made) for part, made in self.parts if made.corrects(hyper) != NOTHING]
        if not active:
            return None
        down = {name: down[name] for name in down if name in self.weights["down"]}
        kept = {name: kept[name] for name in kept if name in self.weights["client"]}
        steps = []
        for part, made in active:
            sent = {slot: [params[name] for name in weights] for slot, params in part.own(down).items()}
            held = {slot: [params[name] for name in weights] for slot, params in part.own(kept).items()}
            steps.append((made, Step([], [], hyper, received, sent, held, stacked)))
        gradients = any(made.corrects(hyper) == THE_GRADIENTS for _, made in active)
        return Corrections(steps, gradients, len(weights), any(made.looks_back for _, made in active))

    def held(self, kept: Packages) -> Packages:
        """Return what a client kept, with zeros in the slots in which it has not kept anything yet."""
        return {**self.zeros, **kept}


class Corrections:
    """The parts' in-place hooks before each optimizer step, as one function of weights and gradients."""

    def __init__(self, steps: Sequence[tuple[ClientPart, Step]], gradients: bool, count: int, looks_back: bool = False):
        self.steps = steps
        self.count = count  # how many of the trained weights travel: they come first
        self.gradients = gradients  # whether gradients may be changed: then they must not be shared with anything
        self.looks_back = looks_back
        self.last: list[Tensor] = []  # the weights of the step before, if a part looks back
        self.before: Sequence[Tensor] = ()  # this mini-batch's gradients at `last`, set by whoever runs the steps

    def __call__(self, weights: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        if self.looks_back:
            turn = list(torch._foreach_sub(list(gradients[: self.count]), list(self.before))) if self.last else []
            for _, step in self.steps:
                step.turn[:] = turn
            self.last, self.before = [weight.detach().clone() for weight in weights[: self.count]], ()
        for made, step in self.steps:
            step.weights[:], step.gradients[:] = weights[: self.count], gradients[: self.count]
            made.correct(step)

    def memory(self, made: ClientPart) -> Mapping[str, Any]:
        """Return what a part has left in its steps' memory."""
        return next((step.memory for other, step in self.steps if other is made), {})


class ClientRound:
    """One client in one round: its loss with all terms, and in the end what its parts send and keep."""

    def __init__(
        self,
        side: ClientSide,
        objective: Objective,
        model: nn.Module,
        order: Order,
        client: int,
        hyper: Hyper,
        kept: Packages,
        works: Sequence[Work],
        seed: int,
    ):
        self.side, self.objective, self.model, self.order = side, objective, model, order
        self.client, self.hyper, self.kept, self.works, self.seed = client, hyper, kept, works, seed
        self.trained = [module for work in works for module in work.trained]
        self.shared = [module for work in works for module in work.shared]
        self.own = [module for work in works for module in work.own]

    def __call__(self, inputs: Batch, targets: Batch) -> Tensor:
        """Compute the loss of one mini-batch: a scalar with a graph to all that is trained."""
        with ExitStack() as stack:
            for work in self.works:
                stack.enter_context(work.watch(inputs))
            output = output_of(self.model, inputs)
        loss = self.objective(output, targets, self.hyper)
        for work in self.works:
            term = work.term(inputs, output, targets)
            if term is not None:
                loss = loss + term
        return loss

    def finish(
        self,
        params: Params,
        beside: Packages | None = None,
        corrections: Corrections | None = None,
        place: int = 0,
        steps: int | None = None,
    ) -> tuple[Packages, Packages]:
        """Line 12: return what the client sends up beside the model, and what it keeps.

        `beside`: what it keeps that is not the method's own. `corrections`: those of its steps, and `place` this
        client's row among the clients that they were made for. `steps`: the iterations that it did, where they are
        fewer than it was asked for. If the round blew up, the client keeps what it had: a bad round must not spoil the
        next one.
        """
        sent: dict[str, Params] = {}
        kept: dict[str, Params] = dict(beside or {})
        held = self.side.held(self.kept)
        hyper = self.order.hyper_of(self.client)
        hyper = hyper if steps is None else hyper.but({"steps": steps})
        with global_seed(self.seed, "finish", self.order.round, self.client) if self.works else nullcontext():
            for (part, made), work in zip(self.side.parts, self.works, strict=True):
                down, mine = part.own(self.order.down), part.own(held)
                memory = {} if corrections is None else corrections.memory(made)
                out = made.finish(End(self.order.params, params, hyper, down, mine, memory, place), work)
                sent |= part.named(out.sent)
                kept |= part.named(out.kept)
        declared(sent, self.side.up, "sends up")
        declared(kept, self.side.kept, "keeps")
        sound = all(bool(value.isfinite().all()) for value in flatten(kept).values())
        return sent, kept if sound else self.kept


def declared(packages: Packages, templates: Mapping[str, Params], does: str) -> None:
    """Raise MethodError unless a method sends or keeps exactly the slots and tensors that it declares."""
    for slot in sorted(packages.keys() ^ templates.keys()):
        what = "which it did not declare" if slot in packages else "as it declares, but there is none"
        raise MethodError(f"the method {does} {slot!r}, {what}")
    for slot, params in packages.items():
        try:
            check(params, templates[slot], "the declared slot")
        except UpdateRefused as error:
            raise MethodError(f"the method {does} {slot!r}: {error}") from None
