"""What a policy is told about a round: how far the clients went, whether they agree, and what the round cost."""

import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from fedaccord.core.records import Accepted, Observation, Order, Packages, ServerState, Snapshot, finite, size_of
from fedaccord.core.stopwatch import Stopwatch

if TYPE_CHECKING:
    from fedaccord.core.algorithm import Aggregated, Verdict

PLAUSIBLE = (0.003, 0.2)
"""The plausible range of the clients' steps in a first round, as a share of the model's norm. In the middle of the grid
they were 0.01 to 0.08 on all problems of the lab; a network that went further than this range often did not recover."""
FIRST_ROUNDS = 4
"""The number of rounds in which a first step outside that range may be corrected."""


def observation(
    t: int,
    state: ServerState,
    order: Order,
    mean: "Aggregated",
    verdict: "Verdict",
    metrics: Mapping[str, float],
    clock: Stopwatch,
) -> Observation:
    """Return everything that the server has seen of this round, for a policy to learn from."""
    norms = {each.client: each.update_norm for each in mean.accepted}
    average = weighted_mean(mean.accepted, lambda each: each.entered)
    alignment = mean.step_norm / average if average else None
    diverged = sum(refusal.diverged for refusal in mean.refused)
    again = sum(state.model.accepted.get(client) == t - 1 for client in order.cohort)
    down = sum(size_of(params) for params in (order.params, order.previous or {}, *order.down.values()))
    return Observation(
        round=t,
        reward=verdict.reward,
        carried_out=verdict.carried_out,
        loss=verdict.loss,
        metrics=metrics,
        update_norms=norms,
        relative=relative_norm(mean),
        diverged=diverged / max(1, diverged + len(mean.accepted)),
        step_norm=finite(mean.step_norm),
        alignment=alignment,
        cosine=mean_cosine(alignment, [each.weight * each.entered for each in mean.accepted]),
        turn=turn_of(state.previous, state.model, mean.model, mean.weights),
        overlap=again / len(order.cohort),
        stretch=verdict.stretch,
        bytes=down * len(order.cohort) + mean.bytes_up,
        seconds=clock.seconds(),
        losses={each.client: each.loss for each in mean.accepted},
        examples={each.client: each.examples for each in mean.accepted},
        blown=tuple(refusal.client for refusal in mean.refused if refusal.diverged),
        method={**scalars_of(mean.model.server), **mean.reported} if mean.accepted else {},
    )


def scalars_of(packages: Packages) -> dict[str, float]:
    """Return the packages that are a single number, as floats by name."""
    return {name: float(each["value"]) for name, each in packages.items() if list(each) == ["value"]}


def weighted_mean(accepted: Sequence[Accepted], of: Callable[[Accepted], float]) -> float:
    """Return the mean of a figure over the accepted clients, weighted as their models are; 0 if there are none."""
    total = math.fsum(each.weight for each in accepted)
    return math.fsum(each.weight * of(each) for each in accepted) / total if total else 0.0


def relative_norm(mean: "Aggregated") -> float | None:
    """Return how far the clients went, on average, as a share of the model's norm; None if either is zero.

    A step that was cut counts as far as it entered the mean; a factor by which all steps were scaled does not count.
    """
    average = weighted_mean(mean.accepted, lambda each: each.entered)
    if not average or not mean.model_norm:
        return None
    scale = statistics.median(each.update_norm / each.entered for each in mean.accepted if each.entered)
    return average * scale / mean.model_norm


def mean_cosine(alignment: float | None, weighted: Sequence[float]) -> float | None:
    """Return the mean cosine between the steps of two clients; None if it is unknown, or there are not two.

    `weighted`: the norms of the clients' steps, each times its weight in the mean. With shares q_i of their sum,
    ||sum_i q_i u_i||^2 = sum_i q_i^2 + sum_(i != j) q_i q_j cos_ij for directions u_i, and the left side is the
    alignment's square.
    """
    total = math.fsum(weighted)
    same = math.fsum((each / total) ** 2 for each in weighted) if total else 1.0
    return None if alignment is None or same > 1 - 1e-9 else (alignment**2 - same) / (1 - same)


def turn_of(before: Snapshot | None, here: Snapshot, there: Snapshot, weights: Collection[str]) -> float | None:
    """Return the cosine between two consecutive steps; None if the model before both was not kept, or a step is 0.

    Only the weights count: a BatchNorm's statistics drift their own way.
    """
    if before is None:
        return None
    products, trained = [], set(weights)
    for name, w in here.params.items():
        if name in trained:
            a, b = (step.double().flatten() for step in (w - before.params[name], there.params[name] - w))
            products.append((float(a @ b), float(a @ a), float(b @ b)))
    along, first, second = (math.fsum(each[which] for each in products) for which in range(3))
    return finite(along / math.sqrt(first * second)) if first and second else None
