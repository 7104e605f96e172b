"""Algorithm 1. The numbers at the right margin are the paper's line numbers."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import torch

from fedaccord.core.errors import DataError
from fedaccord.core.protocols import Engine, LossOf, Measured, MetricsOf, Policy
from fedaccord.core.records import (
    Accepted,
    ClientUpdate,
    Hyper,
    Observation,
    Order,
    Packages,
    Params,
    Refusal,
    RoundLog,
    ServerState,
    Snapshot,
    finite,
    size_of,
)
from fedaccord.core.seeds import generator

T = TypeVar("T")


class Aggregated(Protocol):
    """What line 14 makes of a round's updates."""

    @property
    def model(self) -> Snapshot: ...
    @property
    def accepted(self) -> list[Accepted]: ...
    @property
    def refused(self) -> list[Refusal]: ...
    @property
    def step_norm(self) -> float: ...
    @property
    def reported(self) -> Mapping[str, float]: ...
    @property
    def bytes_up(self) -> int: ...


class Server(Protocol):
    """The server's side of a method: line 14."""

    def start(self, params: Params) -> Snapshot: ...
    def to_send(self, model: Snapshot) -> Packages: ...
    def hand_out(self, model: Snapshot) -> Params: ...
    def aggregate(
        self, round: int, before: Snapshot, updates: Iterable[ClientUpdate | Refusal], hyper: Hyper, total: int | None
    ) -> Aggregated: ...


@dataclass(frozen=True)
class Verdict:
    """Line 16: what becomes of a round."""

    model: Snapshot
    loss: float | None
    reward: float | None  # of the oldest choice whose reward was not known
    carried_out: bool = True  # whether this round's own hyper-parameters had any effect
    guard: str | None = None  # what was done that the paper does not do, in words


Guard = Callable[[ServerState, Snapshot, Measured, int], Verdict]
"""(state before, the new model, its loss, number of accepted updates) -> what becomes of the round."""


@dataclass(frozen=True)
class Experiment:
    """A whole run as a value: who trains, how hyper-parameters are chosen, what the server does, how it is measured."""

    engine: Engine
    policy: Policy
    server: Server
    loss: LossOf
    guard: Guard
    metrics: MetricsOf | None
    clients: int
    rounds: int
    fraction: float = 1.0
    seed: int = 0
    total_examples: int | None = None  # the paper's N; None: the cohort's
    test_every: int = 1
    clients_report: bool = False  # L_t comes from the clients (the paper's second way)
    paired: bool = False  # they measure w_{t-1} as well, on the same examples
    data: Callable[[], Iterable[torch.Tensor]] = tuple  # what the clients hold here, to know it again after a resume


def start(experiment: Experiment, params: Params) -> ServerState:
    """Lines 1 and 2: the state before the first round."""
    model = experiment.server.start(params)
    loss = experiment.loss(experiment.server.hand_out(model), []).loss
    if loss is not None and not math.isfinite(loss):
        raise DataError(
            "the loss before the first round is not finite: is there a NaN in the validation data or the model?"
        )
    return ServerState(round=0, model=model, loss=loss, policy=experiment.policy.start())


def run(experiment: Experiment, state: ServerState) -> Iterator[tuple[ServerState, RoundLog]]:
    """Line 3: round after round. The caller keeps what it wants and may stop after any round."""
    while state.round < experiment.rounds:
        state, log = run_round(experiment, state)
        yield state, log


def run_round(ex: Experiment, state: ServerState) -> tuple[ServerState, RoundLog]:
    """One round: lines 4-18."""
    t, clock = state.round + 1, Stopwatch()
    cohort = sample_cohort(ex.clients, ex.fraction, generator(ex.seed, "cohort", t))  #                  5
    with clock("policy"):
        h, psi = ex.policy.propose(state.policy, t, cohort, generator(ex.seed, "policy", t))  #          4
    order = Order(t, cohort, state.params, h.hyper, h.each, ex.server.to_send(state.model),
                  {i: state.model.accepted[i] for i in cohort if i in state.model.accepted},
                  ex.clients_report, state.previous.params if ex.paired and state.previous else None)  # fmt: skip
    updates = clock.each("train", ex.engine.train(order))  #                                          6-13
    with clock("aggregate"):
        mean = ex.server.aggregate(t, state.model, updates, h.hyper, ex.total_examples)  #              14
    with clock("evaluate"):
        measured = ex.loss(ex.server.hand_out(mean.model), mean.accepted)  #                            15
    verdict = ex.guard(state, mean.model, measured, len(mean.accepted))  #                              16
    with clock("evaluate"):
        due = ex.metrics is not None and (t % ex.test_every == 0 or t == ex.rounds)
        metrics = ex.metrics(ex.server.hand_out(verdict.model)) if ex.metrics and due else {}
    with clock("policy"):
        seen = observation(t, state, order, mean, verdict, metrics, clock)
        psi_next = ex.policy.learn(psi, seen)  #                                                     17-18

    log = RoundLog(
        round=t,
        hyper={name: h.hyper[name] for name in ex.policy.names},
        cohort=list(cohort),
        refused=[vars(refusal) for refusal in mean.refused],
        loss=verdict.loss,
        metrics=metrics,
        reward=verdict.reward,
        policy=ex.policy.describe(psi, psi_next),
        guard=verdict.guard,
        clients={str(each.client): each.entry() for each in mean.accepted},
        step_norm=finite(mean.step_norm),
        method=dict(mean.reported),
        seconds=clock.seconds(),
    )
    # the model before this one is kept only where its successor's loss is known a round late
    fallback = state.model if verdict.model is mean.model else state.previous
    return ServerState(t, verdict.model, verdict.loss, psi_next, fallback if ex.clients_report else None), log


def observation(
    t: int,
    state: ServerState,
    order: Order,
    mean: Aggregated,
    verdict: Verdict,
    metrics: Mapping[str, float],
    clock: "Stopwatch",
) -> Observation:
    """What a policy may learn from: everything that the server has seen of this round."""
    norms = {each.client: each.update_norm for each in mean.accepted}
    examples = sum(each.examples for each in mean.accepted)
    average = math.fsum(each.examples * each.update_norm for each in mean.accepted) / examples if examples else 0.0
    again = sum(state.model.accepted.get(client) == t - 1 for client in order.cohort)
    down = sum(size_of(params) for params in (order.params, *order.down.values()))
    return Observation(
        round=t,
        reward=verdict.reward,
        carried_out=verdict.carried_out,
        loss=verdict.loss,
        metrics=metrics,
        update_norms=norms,
        step_norm=finite(mean.step_norm),
        alignment=mean.step_norm / average if average else None,
        overlap=again / len(order.cohort),
        bytes=down * len(order.cohort) + mean.bytes_up,
        seconds=clock.seconds(),
    )


def sample_cohort(clients: int, fraction: float, generator: torch.Generator) -> tuple[int, ...]:
    """Line 5: a random selection of C*K clients (at least one), in client order."""
    size = cohort_size(clients, fraction)
    if size == clients:
        return tuple(range(clients))
    return tuple(sorted(torch.randperm(clients, generator=generator)[:size].tolist()))


def cohort_size(clients: int, fraction: float) -> int:
    return min(clients, max(1, round(fraction * clients)))


@dataclass
class Stopwatch:
    """Seconds spent in each part. A part inside another counts for itself alone."""

    parts: dict[str, float] = field(default_factory=dict)
    _inner: float = 0.0

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        begin, outer, self._inner = time.perf_counter(), self._inner, 0.0
        yield
        spent = time.perf_counter() - begin
        self.parts[part] = self.parts.get(part, 0.0) + spent - self._inner
        self._inner = outer + spent

    def each(self, part: str, items: Iterable[T]) -> Iterator[T]:
        """The same items; the time to produce each is counted."""
        iterator = iter(items)
        while True:
            with self(part):
                item = next(iterator, None)
            if item is None:
                return
            yield item

    def seconds(self) -> dict[str, float]:
        return {part: round(spent, 6) for part, spent in self.parts.items()}
