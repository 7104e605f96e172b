"""Algorithm 1. The numbers at the right margin are the paper's line numbers."""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from fedaccord.core.errors import DataError
from fedaccord.core.records import Engine, LossOf, Order, Params, Policy, RoundLog, ServerState
from fedaccord.core.seeds import generator
from fedaccord.server.aggregate import aggregate, finite
from fedaccord.server.guard import judge

T = TypeVar("T")


@dataclass(frozen=True)
class Federation:
    """A whole experiment as a value: who trains, how a round's hyper-parameters are chosen, how it is judged."""

    engine: Engine
    policy: Policy
    loss: LossOf
    accuracy: Callable[[Params], float] | None
    clients: int
    total_examples: int
    rounds: int
    fraction: float = 1.0
    seed: int = 0
    weighting: str = "cohort"
    test_every: int = 1
    clients_report: bool = False  # L_t comes from the clients (the paper's second way)
    paired: bool = False  # they measure w_{t-1} as well, on the same examples
    guards: bool = True
    min_replies: int = 1  # with fewer, a round is skipped
    buffers: frozenset[str] = frozenset()  # names in the model's state that are not trained
    data: Callable[[], Iterable[torch.Tensor]] = tuple  # what the clients hold here, to know it again after a resume


def start(fed: Federation, params: Params) -> ServerState:
    """Lines 1 and 2: the state before the first round."""
    loss = fed.loss(params, []).loss
    if loss is not None and not math.isfinite(loss):
        raise DataError(
            "the loss before the first round is not finite: is there a NaN in the validation data or the model?"
        )
    return ServerState(round=0, params=params, loss=loss, policy=fed.policy.start())


def run(fed: Federation, state: ServerState) -> Iterator[tuple[ServerState, RoundLog]]:
    """Line 3: round after round. The caller keeps what it wants and may stop after any round."""
    while state.round < fed.rounds:
        state, log = run_round(fed, state)
        yield state, log


def run_round(fed: Federation, state: ServerState) -> tuple[ServerState, RoundLog]:
    """One round: lines 4-18."""
    t, clock = state.round + 1, Stopwatch()
    with clock("policy"):
        hyper, psi = fed.policy.sample(state.policy, t, generator(fed.seed, "policy", t))  #             4
    cohort = sample_cohort(fed.clients, fed.fraction, generator(fed.seed, "cohort", t))  #               5
    previous = state.previous if fed.paired else None
    updates = fed.engine.train(Order(t, cohort, state.params, hyper, fed.clients_report, previous))  # 6-13
    with clock("aggregate"):
        total = fed.total_examples if fed.weighting == "population" else None
        mean = aggregate(state.params, clock.each("train", updates), hyper.server_lr, total, fed.buffers)  #  14
    with clock("evaluate"):
        measured = fed.loss(mean.params, mean.clients)  #                                               15
    verdict = judge(state, mean.params, measured, len(mean.clients), fed.guards, fed.min_replies)  #    16
    with clock("policy"):
        kept = psi if verdict.carried_out else fed.policy.drop(psi)
        psi_next = fed.policy.update(kept, verdict.reward)  #                                        17-18
    with clock("evaluate"):
        due = t % fed.test_every == 0 or t == fed.rounds
        accuracy = fed.accuracy(verdict.params) if fed.accuracy is not None and due else None

    log = RoundLog(
        round=t,
        hyper={name: getattr(hyper, name) for name in fed.policy.names},
        cohort=list(cohort),
        refused=mean.refused,
        loss=verdict.loss,
        accuracy=accuracy,
        reward=verdict.reward,
        policy=fed.policy.describe(psi, psi_next),
        guard=verdict.guard,
        clients={str(entry["client"]): {k: v for k, v in entry.items() if k != "client"} for entry in mean.clients},
        step_norm=finite(mean.step_norm),
        seconds=clock.seconds(),
    )
    # the model before this one is kept only where its successor's loss is known a round late
    fallback = state.params if verdict.params is mean.params else state.previous
    late = fallback if fed.clients_report else None
    return ServerState(t, verdict.params, verdict.loss, psi_next, late), log


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
