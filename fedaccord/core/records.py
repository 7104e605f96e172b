"""The nouns: what is passed between the parts. Frozen values, no behaviour."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

Params = dict[str, Tensor]
"""A model's state by name: parameters and persistent buffers."""

PolicyState = Mapping[str, Any]
"""What a policy knows (psi, its window of rewards): plain JSON values, so a checkpoint holds them exactly."""


@dataclass(frozen=True)
class Hyper:
    """The hyper-parameters of one round, h_t. A policy may choose any of them; all of them take effect."""

    lr: float
    steps: int
    batch_size: int = 64
    momentum: float = 0.0
    entropy_min: float | None = 0.0  # None: a share of ln K, K the number of class scores
    entropy_weight: float = 0.0
    wd_weight: float = 0.0
    rm_weight: float = 0.0
    server_lr: float = 1.0


@dataclass(frozen=True)
class Examples:
    """Inputs and their class numbers, as two tensors of equal length."""

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: Any) -> "Examples":
        return Examples(self.inputs[index], self.targets[index])

    def to(self, device: torch.device | str) -> "Examples":
        return Examples(self.inputs.to(device), self.targets.to(device))


ClientData = Examples
"""One client's data. In the simulator it is a view into one contiguous tensor, never a copy."""

Prepare = Callable[[Tensor, torch.Generator | None], Tensor]
"""Stored inputs -> what the model sees. With a generator (training only) it may augment."""

Yardstick = Callable[[Tensor, Tensor], Tensor]
"""(class scores, targets) -> their mean loss: what L_t is measured by, the same in every round."""


@dataclass(frozen=True)
class Order:
    """What the server sends down once a round: lines 6 and 7."""

    round: int
    cohort: tuple[int, ...]
    params: Params
    hyper: Hyper
    report_loss: bool = False  # whether a client shall measure the received model on a part of its data
    previous: Params | None = None  # w_{t-1}, if it shall measure that one too, on the same part


@dataclass(frozen=True)
class ClientUpdate:
    """What a client sends back. There is no field that could carry data or theta_i."""

    client: int
    params: Params  # w_t^i
    examples: int  # n_i
    loss: float  # mean of the client's training loss over the round
    received_loss: float | None = None  # loss of w_t on a small part of the client's data, if asked for
    previous_loss: float | None = None  # loss of w_{t-1} on the same part, if asked for


@dataclass(frozen=True)
class Refusal:
    """A client of the cohort from which no update came: it said no, or did not answer in time."""

    client: int
    why: str


@dataclass(frozen=True)
class ServerState:
    """All that the server carries from round to round; a checkpoint is this and nothing else."""

    round: int  # rounds finished, t - 1
    params: Params  # w_t
    loss: float | None  # L_t
    policy: PolicyState  # psi_t
    previous: Params | None = None  # w_{t-1}, kept only where L_t is known a round late (the clients report it)


@dataclass(frozen=True)
class RoundLog:
    """One line of rounds.jsonl. `seconds` is the only field that is not deterministic."""

    round: int
    hyper: dict[str, Any]
    cohort: list[int]
    refused: list[dict[str, Any]]
    loss: float | None
    accuracy: float | None
    reward: float | None
    policy: dict[str, Any]
    guard: str | None
    clients: dict[str, dict[str, Any]]
    step_norm: float | None = None  # ||w_{t+1} - w_t|| of the mean of the clients' models
    seconds: dict[str, float] = field(default_factory=dict)


class Policy(Protocol):
    """Where a round's hyper-parameters come from: lines 4 and 16-18."""

    @property
    def names(self) -> tuple[str, ...]:
        """The fields of Hyper that this policy chooses (the others stay as the settings say)."""
        ...

    def start(self) -> PolicyState: ...

    def sample(self, state: PolicyState, round: int, generator: torch.Generator) -> tuple[Hyper, PolicyState]: ...

    def update(self, state: PolicyState, reward: float | None) -> PolicyState:
        """Learn from the reward of the oldest choice that waits for one; None: it is not known yet."""
        ...

    def drop(self, state: PolicyState) -> PolicyState:
        """The newest choice was never carried out."""
        ...

    def describe(self, before: PolicyState, after: PolicyState) -> dict[str, Any]:
        """What the log keeps of this round's decision; JSON values."""
        ...


class Engine(Protocol):
    """Who runs the clients: lines 6-13. Every engine gives the same answer."""

    def train(self, order: Order) -> Iterator[ClientUpdate | Refusal]:
        """The cohort's updates, in client order, each as soon as it and all before it are there."""
        ...

    def open(self, folder: Path | None) -> None:
        """Before the first round: the folder for what clients keep to themselves (None: there is no run folder)."""
        ...

    def expect(self, newest: Mapping[int, int]) -> None:
        """After a resume: the round in which each client last kept something, as `save` said it then."""
        ...

    def save(self) -> dict[int, int]:
        """Make what the clients keep durable, before the server's own checkpoint; client -> the round it is from."""
        ...

    def prune(self, committed: int) -> None:
        """The oldest checkpoint that is kept is of round `committed`: what is only of use before it may go."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Measured:
    """The newest loss that is known, and what to compare it with (None: the one known before)."""

    loss: float | None
    before: float | None = None


class LossOf(Protocol):
    """Line 15: the loss of the aggregate model, L."""

    def __call__(self, params: Params, clients: Sequence[Mapping[str, Any]], /) -> Measured:
        """`clients` are the round's accepted updates as the log shows them; empty before the first round."""
        ...
