"""FedEx: every client draws its own hyper-parameters from a distribution that follows exponentiated gradients.

This is FedEx (Khodak et al., 2021, "Federated hyperparameter tuning") as its code has it for a grid: a distribution
theta over the values of each axis, uniform at first. Client i draws j_i and ends with loss s_i; with p_i its share of
the examples and lambda a mean of earlier rounds' losses,
    gradient_j = sum_i p_i (s_i - lambda) [j_i = j] / theta_j;      theta <- theta exp(-eta_t gradient), normalised
The state is a plain JSON value:
    z         log theta of each axis
    past      for each axis, the sum that the schedule of its step has accumulated
    trace     the discounted sum of earlier rounds' mean losses, and of their weights
    drawn     what each client of this round drew: the number of the value on each axis
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedaccord.core.protocols import Proposal
from fedaccord.core.records import Hyper, Observation, PolicyState
from fedaccord.policy.gaussian import pick, softmax
from fedaccord.policy.grid import HyperGrid

DECAYING, ADAPTIVE, AGGRESSIVE, CONSTANT = "decaying", "adaptive", "aggressive", "constant"
"""eta_t is eta_0 divided by the root of t, the root of the sum of all squared largest gradients, the largest, or 1."""


@dataclass(frozen=True)
class Exponentiated:
    first: Hyper  # the values of what is not in the grid
    grid: HyperGrid
    rate: float = 0.0  # eta_0; 0: sqrt(2 ln k) for k values
    schedule: str = DECAYING
    discount: float = 0.0  # of lambda: 0 takes the last round's mean alone, 1 that of all

    @property
    def names(self) -> tuple[str, ...]:
        return self.grid.names

    def start(self) -> PolicyState:
        sizes = [len(axis.values) for axis in self.grid.axes]
        z = [[-math.log(size)] * size for size in sizes]
        return {"z": z, "past": [0.0] * len(sizes), "trace": [0.0, 0.0], "drawn": {}}

    def propose(
        self, state: PolicyState, round: int, cohort: Sequence[int], generator: torch.Generator
    ) -> tuple[Proposal, PolicyState]:
        """Draw hyper-parameters for each client; the round as a whole gets the likeliest values."""
        theta = [softmax(np.array(z)) for z in state["z"]]
        uniform = torch.rand(len(cohort), len(theta), generator=generator, dtype=torch.float64).tolist()
        drawn = {
            client: [pick(p, each) for p, each in zip(theta, row, strict=True)]
            for client, row in zip(cohort, uniform, strict=True)
        }
        each = {client: self.first.but(self.grid.choice(tuple(index))) for client, index in drawn.items()}
        named = {str(client): index for client, index in drawn.items()}
        return Proposal(self.first.but(self.likeliest(state)), each), {**state, "drawn": named}

    def likeliest(self, state: PolicyState) -> dict[str, Any]:
        return self.grid.choice(tuple(int(np.argmax(z)) for z in state["z"]))

    def learn(self, state: PolicyState, seen: Observation) -> PolicyState:
        """Move theta by one step; clients that did not answer do not count."""
        # FedEx: s_i is the error of w_i on examples of client i that are held out, and p_i their share. HERE: its mean
        # training loss over the round, each mini-batch before the step that is made on it, and its share of all
        # examples. WHY: clients send both anyway; within a pass it is of examples that the round has not seen yet. The
        # weight of a term of that loss is therefore no fit axis: zero would always win.
        known = {client: loss for client, loss in seen.losses.items() if math.isfinite(loss)}
        if not known:
            return state
        # FedEx: says nothing of a client that blew up. HERE: it counts as the worst of the round, and no less than
        # lambda, with the mean number of examples. WHY: otherwise nobody would learn that its choice was bad.
        size = math.fsum(seen.examples[client] for client in known) / len(known)
        examples = {client: float(seen.examples[client]) for client in known}
        total, weight = state["trace"]
        mean = math.fsum(examples[client] * loss for client, loss in known.items()) / math.fsum(examples.values())
        # FedEx's code: lambda = 0 in the first round. HERE: that round's own mean. WHY: every choice would look bad.
        baseline = total / weight if weight else mean
        worst = max(baseline, *known.values())
        blown = dict.fromkeys((*seen.blown, *(seen.losses.keys() - known.keys())), worst)
        examples |= dict.fromkeys(blown, size)
        every = math.fsum(examples.values())
        credit = {client: examples[client] / every * (s - baseline) for client, s in {**known, **blown}.items()}
        moved = [self.moved(axis, state, credit) for axis in range(len(state["z"]))]
        trace = [self.discount * total + mean, self.discount * weight + 1.0]
        return {**state, "z": [z for z, _ in moved], "past": [past for _, past in moved], "trace": trace}

    def moved(self, axis: int, state: PolicyState, credit: dict[int, float]) -> tuple[list[float], float]:
        """Return log theta of one axis after its step, and the sum that its schedule has accumulated."""
        z = np.array(state["z"][axis])
        theta, gradient = softmax(z), np.zeros(len(z))
        for client, each in credit.items():
            j = state["drawn"][str(client)][axis]
            gradient[j] += each / theta[j]
        largest = float(np.abs(gradient).max())
        grown = {DECAYING: 1.0, ADAPTIVE: largest**2}.get(self.schedule, 0.0)
        past = state["past"][axis] + grown
        below = {AGGRESSIVE: largest, CONSTANT: 1.0}.get(self.schedule, math.sqrt(past))
        rate = (self.rate or math.sqrt(2 * math.log(len(z)))) / below if below else 0.0
        z = z - rate * gradient
        z = z - (z.max() + math.log(float(np.exp(z - z.max()).sum())))
        return z.tolist(), past

    def describe(self, before: PolicyState, after: PolicyState) -> dict[str, Any]:
        likely, entropy = self.likeliest(after), [-float(np.exp(z) @ np.array(z)) for z in after["z"]]
        told = ", ".join(f"{name} {value:.3g}" for name, value in likely.items())
        spread = ", ".join(f"{math.exp(each):.1f} of {len(z)}" for each, z in zip(entropy, after["z"], strict=True))
        return {"likely": likely, "entropy": entropy, "why": f"likeliest now: {told} (as if among {spread} values)"}
