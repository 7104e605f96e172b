"""The choice of the clients that train in a round (line 5)."""

import math
from collections.abc import Callable

import torch

from fedaccord.core.seeds import generator


def sample_cohort(clients: int, fraction: float, seed: int, round: int, passes: bool = True) -> tuple[int, ...]:
    """Line 5: select C*K clients (at least one), and return them in client order.

    With `passes`, all clients are put in a new random order and cut into cohorts; the last cohort of a pass is filled
    up with the clients that were first in it. So every client trains at least once in 1/C rounds.
    """
    # PAPER (line 5): a random selection. HERE: in shuffled passes. WHY: whose turn it was is most of the noise in L_t
    # where clients differ; see docs/deviations.md.
    size = cohort_size(clients, fraction)
    if size == clients:
        return tuple(range(clients))
    number, place = divmod(round - 1, pass_length(clients, fraction)) if passes else (round - 1, 0)
    shuffled = torch.randperm(clients, generator=generator(seed, "cohort", number + 1)).tolist()
    return tuple(sorted(shuffled[(place * size + each) % clients] for each in range(size)))


def times_asked(clients: int, fraction: float, seed: int, passes: bool = True) -> Callable[[int], int]:
    """Return a function that counts the cohorts, up to and including a round, of the client that was in most."""
    counts, known = [0] * clients, [0]

    def most(round: int) -> int:
        for t in range(len(known), round + 1):
            for client in sample_cohort(clients, fraction, seed, t, passes):
                counts[client] += 1
            known.append(max(counts))
        return known[round]

    return most


def pass_length(clients: int, fraction: float) -> int:
    """Return how many rounds it takes until every client has trained."""
    return math.ceil(clients / cohort_size(clients, fraction))


def cohort_size(clients: int, fraction: float) -> int:
    return min(clients, max(1, round(fraction * clients)))
