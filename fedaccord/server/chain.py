"""Line 14 as a chain: receive (checks) -> transform -> mean -> the steps of the method and of the settings.

The state of all steps is named tensors in declared slots, part of the snapshot that a roll-back puts back.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedaccord.core.algorithm import LAST
from fedaccord.core.errors import DataError, Diverged, UpdateRefused
from fedaccord.core.protocols import SCALAR, Mean, Method, Part, ServerStep, Slot
from fedaccord.core.records import Accepted, ClientUpdate, Hyper, Packages, Params, Refusal, Snapshot, size_of
from fedaccord.core.travel import Travel, travel_of
from fedaccord.server.judge import Judge
from fedaccord.server.privacy import refuse_leaks
from fedaccord.server.sizes import Sizes
from fedaccord.server.vectors import absorb, distance, norm_of, scale

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
"""The types that torch can average (FLOATS) or compare and sort (INTEGERS), and check for absurd values."""


@dataclass(frozen=True)
class Aggregate:
    """The result of aggregating a round's updates."""

    model: Snapshot
    accepted: list[Accepted]
    refused: list[Refusal]
    step_norm: float = 0.0  # ||mean - w_t||: against the clients' own norms it says how far they agree
    model_norm: float = 0.0  # ||w_t||, of what is trained
    reported: Mapping[str, float] = field(default_factory=dict)  # the method's scalars, averaged
    bytes_up: int = 0  # the size of the accepted updates
    weights: Collection[str] = ()  # the names of what makes up a step: floats that are no buffers
    scaled: Callable[[float], Snapshot] = field(kw_only=True)  # factor -> the next snapshot, its step times that


@dataclass(frozen=True)
class Taken:
    """An update that enters the mean."""

    update: ClientUpdate
    norm: float  # ||w_i - w||, as it was sent
    moved: float | None  # the norm of what enters the mean, if it differs
    done: float  # the share of its iterations, as it was sent; the update has the share that it counts for

    def without_tensors(self) -> Accepted:
        """Return what is kept of the update after the round."""
        own = self.update
        losses = own.received_loss, own.previous_loss
        counts = own.done if own.done != self.done else None
        return Accepted(
            own.client, own.examples, own.loss, self.norm, *losses, self.moved, own.metrics, self.done, counts
        )


class ServerChain:
    """The server's side of a method, for a model: from the clients' updates to the next snapshot."""

    def __init__(
        self,
        method: Method,
        model: nn.Module,
        settings: Mapping[str, Any],
        clients: int,
        travel: Travel | None = None,
        sizes: Sizes | None = None,
        asked: Callable[[int], int] = lambda round: round,
    ):
        self.clients, self.asked = clients, asked
        there = travel_of(model).names if travel is None else travel.names
        refuse_odd_types({name: value for name, value in model.state_dict().items() if name in there})
        made = ((part, part.server(settings)) for part in method.parts)
        self.steps: list[tuple[Part, ServerStep]] = [(part, step) for part, step in made if step is not None]
        self.holding = [step for _, step in self.steps if step.holds]
        self.centred = any(step.centre([{}]) is not None for step in self.holding)  # then all updates enter as one step
        self.up: dict[str, tuple[Slot, Params]] = {
            name: (slot, slot.template(model, travel)) for name, (_, slot) in method.slots("up").items()
        }
        self.down = list(method.slots("down"))
        self.keeps = {name: slot.template(model, travel) for name, (_, slot) in method.slots("server").items()}
        weights = dict(model.named_parameters(remove_duplicate=False))
        self.buffers = there - weights.keys()
        self.weights = [name for name, value in weights.items() if name in there and value.is_floating_point()]
        first = {id(value): name for name, value in reversed(weights.items())}
        self.tied = {name: first[id(weights[name])] for name in self.weights if first[id(weights[name])] != name}
        self.trained = [name for name in self.weights if weights[name].requires_grad and name not in self.tied]
        self.equal = any(step.equal for _, step in self.steps)
        refuse_leaks(method, settings, self.up, self.buffers)
        self.judge = Judge(self.up, self.weights, self.buffers, clients, sizes)

    def open(self, folder: Path | None) -> None:
        """Prepare all steps for the first round, or for going on after a resume; None: there is no run folder."""
        for _, step in self.steps:
            step.open(folder)

    def start(self, params: Params) -> Snapshot:
        """Return the snapshot before the first round."""
        server: dict[str, Params] = dict(self.keeps)
        for part, step in self.steps:
            server |= part.named(step.init(params, part.own(self.keeps)))
        return Snapshot(params, server)

    def to_send(self, model: Snapshot) -> Packages:
        """Return what is sent down beside the model: each slot that is sent down is one that the server keeps."""
        return {name: model.server[name] for name in self.down}

    def models(self, model: Snapshot) -> dict[str, Params]:
        """Return all models that may be measured and handed out, by name: the last one, and running means of it."""
        found = {LAST: model.params}
        for part, step in self.steps:
            found |= step.means(part.own(model.server))
        return found

    def aggregate(
        self,
        round: int,
        before: Snapshot,
        updates: Iterable[ClientUpdate | Refusal],
        hyper: Hyper,
        total_examples: int | None = None,
        cohort: Collection[int] | None = None,
        each: Mapping[int, Hyper] | None = None,
    ) -> Aggregate:
        """Line 14: compute w_{t+1} = w_t + sum_i (n_i / N) (w_t^i - w_t), then apply the method's own steps.

        The mean is a running one, so memory does not grow with the cohort unless a step needs all updates at once.
        `total_examples` is the paper's N, the size of all clients' data; None makes the weights of the cohort sum to 1.
        `cohort`: the clients that were asked; None: any. `each`: the hyper-parameters of clients that have their own.
        An update that is refused leaves no trace but its reason: all else is as if its client had not replied.
        """
        # PAPER (line 14): N is all data, so with C < 1 the weights sum to about C and every step is shortened by it.
        # HERE: N is the cohort's data unless total_examples is given. WHY: FedAvg's own weights; docs/deviations.md.
        received = before.params
        mean: Params = {}
        sent: dict[str, Params] = {}
        accepted: list[Accepted] = []
        refused: list[Refusal] = []
        seen = 0.0
        judged = self.judged(round, received, updates, cohort, refused, lambda client: (each or {}).get(client, hyper))
        for taken in self.together(received, judged) if self.holding else judged:
            update, counted = taken.update, taken.without_tensors()
            accepted.append(counted)
            seen += counted.weight
            by_size, alike = counted.weight / seen, 1 / len(accepted)
            absorb(mean, update.params, alike if self.equal else by_size)
            for name, (slot, _) in self.up.items():
                absorb(sent.setdefault(name, {}), update.sent[name], by_size if slot.weighted else alike)
        if not accepted:
            return Aggregate(before, accepted, refused, weights=self.weights, scaled=lambda factor: before)
        params, count = {name: mean[name] for name in received}, len(accepted)
        for _, step in self.steps:
            params = step.settle(round, received, params, self.trained, count, count if cohort is None else len(cohort))
        params |= {name: params[other].clone() for name, other in self.tied.items()}  # one tensor under several names
        step_norm = distance(received, params, self.weights)
        whole = 1.0 if total_examples is None else seen / total_examples
        scale(params, received, whole, self.buffers)
        square = step_norm * step_norm if self.centred else self.square(accepted)
        averaged = Mean(received, params, sent, count, self.clients, self.buffers, hyper, step_norm, square, whole)

        def scaled(factor: float) -> Snapshot:
            copies = {name: value.clone() for name, value in params.items()}
            scale(copies, received, factor, self.buffers)
            return self.stepped(round, before, replace(averaged, params=copies, share=whole * factor), accepted)

        model = self.stepped(round, before, averaged, accepted)
        reported = {name: float(sent[name]["value"]) for name, (slot, _) in self.up.items() if slot.like == SCALAR}
        for _, step in self.steps:
            reported |= step.spent(self.asked, round)
        up = (size_of(received) + sum(size_of(template) for _, template in self.up.values())) * len(accepted)
        own = norm_of([received[name] for name in self.trained])
        return Aggregate(model, accepted, refused, step_norm, own, reported, up, self.weights, scaled=scaled)

    def judged(
        self,
        round: int,
        received: Params,
        updates: Iterable[ClientUpdate | Refusal],
        cohort: Collection[int] | None,
        refused: list[Refusal],
        hyper_of: Callable[[int], Hyper],
    ) -> Iterator[Taken]:
        """Yield the updates that count, each as the steps' transforms leave it; append the others to `refused`."""
        bounds = self.judge.bounds(received)
        came: set[int] = set()
        for update in updates:
            if isinstance(update, Refusal):
                refused.append(update)
                continue
            try:
                self.judge.who(update, round, cohort, came)
                came.add(update.client)
                norm = self.judge.check(received, update, bounds, hyper_of(update.client))
            except UpdateRefused as error:
                why = str(error)[:200]  # it may quote what a stranger sent
                refused.append(Refusal(update.client, why, isinstance(error, Diverged)))
                continue
            self.judge.sizes.register(update.client, update.examples)
            changed = update
            for _, step in self.steps:
                changed = step.transform(received, changed, self.buffers)
            yield Taken(changed, norm, self.moved(received, update, changed, None), update.done)

    def moved(self, received: Params, before: ClientUpdate, after: ClientUpdate, known: float | None) -> float | None:
        """Return the length of an update's step after a step of the chain; the known one if that left the weights."""
        if all(after.params[name] is before.params[name] for name in self.weights):
            return known
        return distance(received, after.params, self.weights)

    def together(self, received: Params, judged: Iterable[Taken]) -> list[Taken]:
        """Return the round's updates as changed by the steps that need all of them at once."""
        held = list(judged)
        for step in self.holding if held else ():
            after = step.together(received, [each.update for each in held], self.buffers)
            held = [
                replace(each, update=new, moved=self.moved(received, each.update, new, each.moved))
                for each, new in zip(held, after, strict=True)
            ]
            centre = step.centre([each.update.params for each in held])
            if centre is None:
                continue
            slots = {name: step.centre([each.update.sent[name] for each in held]) for name in self.up}
            sent = {name: params for name, params in slots.items() if params is not None}
            held = [
                replace(each, update=replace(each.update, params=centre, sent={**each.update.sent, **sent}))
                for each in held
            ]
        return held

    def square(self, accepted: Sequence[Accepted]) -> float:
        """Return the mean of the squared norms of the steps that entered the mean, weighted as they are there."""
        weights = [1.0 if self.equal else each.weight for each in accepted]
        squares = (weight * each.entered * each.entered for weight, each in zip(weights, accepted, strict=True))
        return math.fsum(squares) / math.fsum(weights)

    def stepped(self, round: int, before: Snapshot, mean: Mean, accepted: list[Accepted]) -> Snapshot:
        """Apply the steps that follow the mean, each to its own part's slots, and return the next snapshot."""
        server, params = dict(before.server), mean.params
        for part, step in self.steps:
            own = replace(mean, params=params, sent=part.own(mean.sent))
            params, state = step.apply(part.own(server), own)
            server |= part.named(state)
        return Snapshot(params, server, {**before.accepted, **{each.client: round for each in accepted}})


def refuse_odd_types(params: Params) -> None:
    """Raise DataError for tensors that can be neither judged nor averaged."""
    for name, value in params.items():
        if value.is_complex():
            raise DataError(f"model: {name} has complex numbers, which are not averaged here; keep two real tensors")
        if value.dtype not in (*FLOATS, *INTEGERS):
            kind = str(value.dtype).removeprefix("torch.")
            raise DataError(f"model: {name} is of type {kind}, which is not averaged here; keep it as float32 or int64")
