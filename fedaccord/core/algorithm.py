"""The paper's Algorithm 1. The numbers at the right margin are its line numbers."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar
from weakref import ref

import torch

from fedaccord.core.cohorts import sample_cohort
from fedaccord.core.errors import DataError
from fedaccord.core.observing import observation
from fedaccord.core.protocols import Engine, LossOf, Measured, MetricsOf, Policy, Proposal
from fedaccord.core.records import (
    Accepted,
    Best,
    ClientUpdate,
    Hyper,
    Order,
    Packages,
    Params,
    Refusal,
    RoundLog,
    ServerState,
    Snapshot,
    Stretch,
    finite,
    printable,
)
from fedaccord.core.seeds import generator
from fedaccord.core.stopwatch import Stopwatch

T = TypeVar("T")

LAST, BEST = "last", "best"
"""The names under which the model of the last round and the best model so far may be handed out."""
SETTLED = 15
"""The round from which on hardly more than a hundredth of the short running mean is the first model."""


class Aggregated(Protocol):
    """The result of line 14: a round's updates, aggregated."""

    @property
    def model(self) -> Snapshot: ...
    @property
    def accepted(self) -> list[Accepted]: ...
    @property
    def refused(self) -> list[Refusal]: ...
    @property
    def step_norm(self) -> float: ...
    @property
    def model_norm(self) -> float: ...
    @property
    def reported(self) -> Mapping[str, float]: ...
    @property
    def bytes_up(self) -> int: ...
    @property
    def weights(self) -> Collection[str]: ...
    @property
    def scaled(self) -> Callable[[float], Snapshot]: ...


class Server(Protocol):
    """The server's side of a method: line 14."""

    def open(self, folder: Path | None) -> None: ...
    def start(self, params: Params) -> Snapshot: ...
    def to_send(self, model: Snapshot) -> Packages: ...
    def models(self, model: Snapshot) -> dict[str, Params]: ...
    def aggregate(
        self,
        round: int,
        before: Snapshot,
        updates: Iterable[ClientUpdate | Refusal],
        hyper: Hyper,
        total: int | None,
        cohort: Sequence[int],
        each: Mapping[int, Hyper],
    ) -> Aggregated: ...


@dataclass(frozen=True)
class Verdict:
    """Lines 15 and 16: the outcome of a round."""

    model: Snapshot
    loss: float | None  # of the model that is rewarded
    last_loss: float | None  # of the model itself
    reward: float | None  # of the oldest choice that was still without one
    carried_out: bool = True  # whether this round's own hyper-parameters had any effect
    guard: str | None = None  # what a guard did that the paper does not do, in words
    stretch: Stretch | None = None  # the length of the server's step, where it was searched for


Measure = Callable[[Snapshot, str], Measured]
"""(a snapshot, the name of its last model or of a running mean) -> the loss of that model."""

Guard = Callable[[ServerState, Aggregated, Measure], Verdict]
"""(the state before the round, the result of line 14, a function that measures) -> the outcome of the round."""


@dataclass(frozen=True)
class Watch:
    """How the best model so far is found on the server's set, and what it is used for."""

    patience: int = 0  # rounds without a better model after which the run ends; 0: no limit
    keep: bool = False  # whether the best model is kept and handed out
    metric: Callable[[Params], float | None] | None = None  # None: the loss decides
    higher: bool = False  # whether a higher score is better

    def better(self, score: float, kept: Best | None) -> bool:
        """Return whether this score beats the best so far; an equal score does not."""
        return kept is None or (score > kept.score if self.higher else score < kept.score)


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
    passes: bool = True  # cohorts in shuffled passes over all clients; False: at random, as printed
    seed: int = 0
    total_examples: int | None = None  # the paper's N; None: the cohort's
    test_every: int = 1
    clients_report: bool = False  # L_t comes from the clients (the paper's second way)
    paired: bool = False  # the clients measure w_{t-1} as well, on the same examples
    clients_test: bool = False  # the clients measure the metrics, each on a part of its own data
    own_parts: bool = False  # each client keeps a part of the model to itself
    watch: Watch | None = None  # how the best model is found, which takes a set at the server
    data: Callable[[], Iterable[torch.Tensor]] = tuple  # the clients' data, to recognise it after a resume


def start(experiment: Experiment, params: Params) -> ServerState:
    """Lines 1 and 2: return the state before the first round, with the initial model's loss."""
    model = experiment.server.start(params)
    loss = experiment.loss(params, []).loss
    if loss is not None and not math.isfinite(loss):
        raise DataError(
            "the loss before the first round is not finite: is there a NaN in the validation data or the model?"
        )
    psi = experiment.policy.start()
    return ServerState(0, model, loss, psi, last_loss=loss, first_loss=loss, best_loss=loss)


def run(experiment: Experiment, state: ServerState) -> Iterator[tuple[ServerState, RoundLog]]:
    """Line 3: run round after round, and yield the new state and the log of each; the caller may stop after any."""
    while not over(experiment, state.round, state.kept):
        state, log = run_round(experiment, state)
        yield state, log


def run_round(ex: Experiment, state: ServerState) -> tuple[ServerState, RoundLog]:
    """Lines 4-18: run one round, and return the new state and the round's log."""
    t, clock = state.round + 1, Stopwatch()
    cohort = sample_cohort(ex.clients, ex.fraction, ex.seed, t, ex.passes)  #                            5
    with clock("policy"):
        h, psi = ex.policy.propose(state.policy, t, cohort, generator(ex.seed, "policy", t))  #          4
    order = Order(t, cohort, state.params, h.hyper, h.each, ex.server.to_send(state.model),
                  {i: state.model.accepted[i] for i in cohort if i in state.model.accepted},
                  ex.clients_report, state.previous.params if ex.paired and state.previous else None,
                  ex.clients_test and tests_in(ex, t))  # fmt: skip
    updates = clock.each("train", ex.engine.train(order))  #                                          6-13
    with clock("aggregate"):
        mean = ex.server.aggregate(t, state.model, updates, h.hyper, ex.total_examples, cohort, h.each)  # 14
    with clock("evaluate"):
        measure = measuring(ex, mean.accepted)
        verdict = ex.guard(state, mean, measure)  #                                                  15, 16
        score, kept = watched(ex, t, verdict.model, state.kept, measure)
        handed, metrics = tested(ex, t, verdict.model, kept, measure, mean.accepted)
    with clock("policy"):
        seen = observation(t, state, order, mean, verdict, metrics, clock)
        psi_next = ex.policy.learn(psi, seen)  #                                                     17-18

    log = RoundLog(
        round=t,
        hyper={name: h.hyper[name] for name in ex.policy.names},
        cohort=list(cohort),
        refused=[{"client": refusal.client, "why": printable(refusal.why)} for refusal in mean.refused],
        loss=verdict.loss,
        metrics=metrics,
        reward=verdict.reward,
        policy=ex.policy.describe(psi, psi_next),
        guard=verdict.guard,
        clients={str(one.client): one.entry() | own_choice(h, ex.policy.names, one.client) for one in mean.accepted},
        step_norm=finite(mean.step_norm),
        method=dict(mean.reported),
        last_loss=verdict.last_loss,
        stretch=None if verdict.stretch is None else verdict.stretch.taken,
        handed=handed,
        score=score,
        best=None if kept is None else kept.round,
        bytes=seen.bytes,
        seconds=clock.seconds(),
    )
    # the model before this one is kept only where its successor's loss is known a round late
    fallback = state.model if verdict.carried_out else state.previous
    previous = fallback if ex.clients_report else None
    first, best = extremes(state, verdict.last_loss)
    return ServerState(t, verdict.model, verdict.loss, psi_next, previous, verdict.last_loss, first, best, kept), log


def tests_in(ex: Experiment, round: int) -> bool:
    """Return whether the metrics are measured in this round."""
    return round % ex.test_every == 0 or round == ex.rounds


def tested(
    ex: Experiment, round: int, model: Snapshot, kept: Best | None, measure: Measure, accepted: Sequence[Accepted]
) -> tuple[str | None, dict[str, float]]:
    """Return the name and the metrics of the model that would be handed out, or None and what the clients measured.

    The model is chosen in the last round, and in every tested round if there is a test set. Without a test set, its
    metrics are those that the clients measured.
    """
    reported = mean_metrics(accepted)
    if not over(ex, round, kept) and (ex.metrics is None or not tests_in(ex, round)):
        return None, reported
    name, params = handed_out(ex, round, model, measure, kept)
    return name, reported if ex.metrics is None else ex.metrics(params)


def mean_metrics(accepted: Sequence[Accepted]) -> dict[str, float]:
    """Return the means of the metrics that the clients measured, weighted by examples; empty if none was asked for."""
    names = dict.fromkeys(name for each in accepted for name in each.metrics)
    found = {}
    for name in names:
        own = [(each.examples, each.metrics[name]) for each in accepted if name in each.metrics]
        found[name] = math.fsum(n * value for n, value in own) / sum(n for n, _ in own)
    return found


def extremes(state: ServerState, loss: float | None) -> tuple[float | None, float | None]:
    """Return the first and the smallest loss of the last model, this one included; None for both without a first."""
    unknown = state.first_loss is None and not state.model.accepted  # the model is still the first one
    first = loss if unknown else state.first_loss
    known = [each for each in (state.best_loss, loss) if each is not None]
    return first, None if first is None else min(known, default=None)


def own_choice(h: Proposal, names: Sequence[str], client: int) -> dict[str, dict[str, Any]]:
    """Return the log entry of the hyper-parameters that were chosen for this client alone; empty if there are none."""
    return {"hyper": {name: h.each[client][name] for name in names}} if client in h.each else {}


def measuring(ex: Experiment, accepted: Sequence[Accepted] = ()) -> Measure:
    """Line 15: return a function that measures the loss of a model or of a running mean of it, each only once."""
    known: dict[int, tuple[ref[Snapshot], dict[str, Measured]]] = {}  # by id; weak references let tried models go

    def measure(model: Snapshot, which: str) -> Measured:
        own, found = known.get(id(model), (None, {}))
        if own is None or own() is not model:
            known[id(model)] = (ref(model), found := {})
        if which not in found:
            found[which] = ex.loss(ex.server.models(model)[which], accepted)
        return found[which]

    return measure


def over(ex: Experiment, round: int, kept: Best | None) -> bool:
    """Return whether the run ends with this round: it is the last, or there was no better model for too long."""
    waited = ex.watch is not None and kept is not None and out_of_patience(ex.watch.patience, round, kept.round)
    return waited or round >= ex.rounds


def out_of_patience(patience: int, round: int, best: int | None) -> bool:
    """Return whether the best round is at least `patience` rounds ago; never, if `patience` is 0."""
    return patience > 0 and best is not None and round - best >= patience


def watched(
    ex: Experiment, round: int, model: Snapshot, kept: Best | None, measure: Measure
) -> tuple[float | None, Best | None]:
    """Return this round's score on the server's set and the best model so far; None for both if nothing is watched."""
    if ex.watch is None:
        return None, None
    name, params = handed_out(ex, round, model, measure)
    score = measure(model, name).loss if ex.watch.metric is None else ex.watch.metric(params)
    score = None if score is None else finite(score)
    if score is None or not ex.watch.better(score, kept):
        return score, kept
    return score, Best(round, score, params if ex.watch.keep else {})


def handed_out(
    ex: Experiment, round: int, model: Snapshot, measure: Measure, kept: Best | None = None
) -> tuple[str, Params]:
    """Return the name and the parameters of the model to use: the best so far if that is kept, or else this round's.

    Of this round's last model and its running means it is the one with the smallest loss at the server. Without a set
    at the server they cannot be told apart; then it is the first of the means, once that no longer lags behind.
    """
    if kept is not None and kept.params:
        return BEST, kept.params
    models = ex.server.models(model)
    if len(models) == 1 or ex.own_parts:  # a client's own part goes with the model that it received
        return LAST, models[LAST]
    if ex.clients_report:
        name = LAST if round < SETTLED else next(name for name in models if name != LAST)
        return name, models[name]
    losses = {name: measure(model, name).loss for name in models}
    usable = {name: loss for name, loss in losses.items() if loss is not None and math.isfinite(loss)}
    best = min(usable, key=lambda name: usable[name]) if usable else LAST
    return best, models[best]
