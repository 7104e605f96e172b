"""The values that are passed between the parts: frozen, and with hardly any behaviour."""

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from fedaccord.core.batches import Batch, count, leaves, mapped, plain, together
from fedaccord.core.errors import MethodError, TaskError, first_line
from fedaccord.core.modules import described

Params = dict[str, Tensor]
"""Tensors by name: a model's state (parameters and persistent buffers), or one package of a method."""

Packages = Mapping[str, Params]
"""What a method sends or keeps: the name of a declared slot -> its tensors."""


def size_of(params: Mapping[str, Tensor]) -> int:
    """Return the size of these tensors in bytes."""
    return sum(value.numel() * value.element_size() for value in params.values())


PolicyState = Mapping[str, Any]
"""What a policy knows (psi, its window of rewards): plain JSON values, so a checkpoint holds them exactly."""


@dataclass(frozen=True)
class Hyper:
    """The hyper-parameters of one round, h_t. A policy may choose any of them; all of them take effect.

    All but `own` are the optimizer's; `own` are those of the loss, the method and the server step, by name. None leaves
    a value to whoever uses it.
    """

    lr: float
    steps: int
    batch_size: int = 64
    momentum: float = 0.0
    own: Mapping[str, float | None] = field(default_factory=dict)
    weight_decay: float = 0.0
    clip_gradient: float = 0.0  # 0: gradients may be of any length

    def __getitem__(self, name: str) -> Any:
        if name in OPTIMIZER:
            return getattr(self, name)
        if name not in self.own:
            raise MethodError(f"'{name}' is no hyper-parameter of this run; its Setting must say hyper=True")
        return self.own[name]

    def get(self, name: str, default: Any = None) -> Any:
        return getattr(self, name) if name in OPTIMIZER else self.own.get(name, default)

    def but(self, values: Mapping[str, Any]) -> "Hyper":
        """Return a copy with these values, whatever hyper-parameters they name; a whole number stays one."""
        values = {name: round(value) if type(self.get(name)) is int else value for name, value in values.items()}
        core = {name: value for name, value in values.items() if name in OPTIMIZER}
        own = {name: value for name, value in values.items() if name not in OPTIMIZER}
        return replace(self, **core, own={**self.own, **own})

    def values(self) -> dict[str, Any]:
        """Return all hyper-parameters by name."""
        return {**{name: getattr(self, name) for name in OPTIMIZER}, **self.own}


OPTIMIZER = tuple(item.name for item in fields(Hyper) if item.name != "own")
"""The optimizer's hyper-parameters."""
WHOLE = tuple(item.name for item in fields(Hyper) if item.type is int)
"""Those of them that are whole numbers."""


class ClientData(Protocol):
    """A set of examples, any of which may be asked for: held in memory, or read when they are needed."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any) -> "Examples":
        """Return the examples of a slice, or of a tensor of indices."""
        ...

    def batches(self, index: Tensor, draw: torch.Generator) -> Generator["Examples", None, None]:
        """Yield the examples of each row of indices; `draw` is for processes that read them ahead."""
        ...

    def part(self, index: Any) -> "ClientData":
        """Return some of the examples, without reading any that is not in memory."""
        ...

    def to(self, device: torch.device | str) -> "ClientData": ...

    def marks(self) -> Iterable[Tensor]:
        """Return tensors by which this data is recognised after a resume."""
        ...


@dataclass(frozen=True)
class Examples:
    """Inputs and their targets, in memory; each a tensor, or a tuple or dict of tensors, all of equal length.

    In the simulator a client's examples are views into tensors of all clients, never copies.
    """

    inputs: Batch
    targets: Batch

    def __len__(self) -> int:
        return count(self.targets)

    def __getitem__(self, index: Any) -> "Examples":
        return Examples(mapped(lambda x: x[index], self.inputs), mapped(lambda y: y[index], self.targets))

    def batches(self, index: Tensor, draw: torch.Generator) -> Generator["Examples", None, None]:
        return (self[row] for row in index)

    def part(self, index: Any) -> "Examples":
        return self[index]

    def to(self, device: torch.device | str) -> "Examples":
        return Examples(mapped(lambda x: x.to(device), self.inputs), mapped(lambda y: y.to(device), self.targets))

    def marks(self) -> Iterable[Tensor]:
        return (*leaves(self.inputs), *leaves(self.targets))


Prepare = Callable[[Batch, torch.Generator | None], Batch]
"""(stored inputs, generator) -> what the model sees. With a generator (training only) it may augment."""

Objective = Callable[[Any, Batch, Hyper], Tensor]
"""(model output, targets, hyper-parameters) -> the mean loss of a batch: what the clients minimise."""

LossFunction = Callable[[Any, Batch], Tensor]
"""(model output, targets) -> their mean loss: the measure of L_t, the same in every round."""


@dataclass(frozen=True)
class Metric:
    """A figure by which a model is judged on a test set: a function of all outputs and targets."""

    name: str
    measure: Callable[[Any, Batch], float]
    higher: bool = True  # whether more is better
    percent: bool = False  # whether it is shown as a percentage

    def of(self, outputs: Any, targets: Batch) -> float:
        """Return the metric's value; raise TaskError with its name if the user's function fails."""
        try:
            return float(self.measure(outputs, targets))
        except Exception as error:
            raise TaskError(f"metric {self.name} failed: {type(error).__name__}: {first_line(error)}") from error


def metrics_on(batches: Iterable[tuple[Any, Batch]], metrics: Sequence[Metric]) -> dict[str, float]:
    """Return the metrics of a model's (outputs, targets), by name, without those that are not finite.

    Batches of several lengths are padded if their targets are class numbers, of which one marks a place without a
    target. If they are not, each metric is its mean over the batches, weighted by their examples.
    """
    pairs = [(plain(outputs), plain(targets)) for outputs, targets in batches]
    if metrics and not leaves(pairs[0][0]):
        raise TaskError(
            f"metrics: the model gives {described(pairs[0][0])}, in which no tensors can be found; let it give "
            "a tensor, or a tuple or dict of tensors"
        )
    lengths = {tuple(leaf.shape[1:] for leaf in leaves(targets)) for _, targets in pairs}
    numbers = all(leaf.dtype == torch.int64 for leaf in leaves(pairs[0][1]))
    if len(lengths) == 1 or numbers:
        outputs, targets = (together(side) for side in zip(*pairs, strict=True))
        pairs = [(outputs, targets)]
    sizes = [count(targets) for _, targets in pairs]
    found = {
        metric.name: math.fsum(n * metric.of(*pair) for n, pair in zip(sizes, pairs, strict=True)) / sum(sizes)
        for metric in metrics
    }
    return {name: value for name, value in found.items() if math.isfinite(value)}


@dataclass(frozen=True)
class Order:
    """What the server sends down once a round: lines 6 and 7."""

    round: int
    cohort: tuple[int, ...]
    params: Params
    hyper: Hyper
    each: Mapping[int, Hyper] = field(default_factory=dict)  # where clients have hyper-parameters of their own
    down: Packages = field(default_factory=dict)  # what the method sends beside the model
    since: Mapping[int, int] = field(default_factory=dict)  # client -> the round whose kept values it goes on from
    report_loss: bool = False  # whether each client measures the received model on a part of its data
    previous: Params | None = None  # w_{t-1}, if each client measures that one too, on the same part
    report_metrics: bool = False  # whether each client measures the metrics of w_t on the part kept for that
    seconds: float | None = None  # after which a client sends what it has done; None: when it has done all

    def hyper_of(self, client: int) -> Hyper:
        return self.each.get(client, self.hyper)


@dataclass(frozen=True)
class ClientUpdate:
    """What a client sends back. There is no field that could carry its data or what it keeps to itself."""

    client: int
    params: Params  # w_t^i
    examples: int  # n_i
    loss: float  # mean of the client's training loss over the round
    sent: Packages = field(default_factory=dict)  # what the method sends up beside the model
    received_loss: float | None = None  # loss of w_t on a small part of the client's data, if asked for
    previous_loss: float | None = None  # loss of w_{t-1} on the same part, if asked for
    metrics: Mapping[str, float] = field(default_factory=dict)  # of w_t and its own part of the model, if asked for
    round: int = 0  # in which it was trained; 0: not stated
    done: float = 1.0  # share of the SGD iterations that it did, where it had to stop early


@dataclass(frozen=True)
class Accepted:
    """An update that was used, without its tensors: what L_t is computed from and what the log keeps."""

    client: int
    examples: int
    loss: float
    update_norm: float  # ||w_i - w||, as it was sent, without buffers
    received_loss: float | None = None
    previous_loss: float | None = None
    moved: float | None = None  # the norm of what entered the mean, if it differs: it was clipped, or scaled
    metrics: Mapping[str, float] = field(default_factory=dict)
    done: float = 1.0  # share of the SGD iterations that it did
    counts: float | None = None  # share of its examples that counts in the mean, if that is another

    @property
    def weight(self) -> float:
        """The update's weight in the mean, relative to the others."""
        return self.examples * (self.done if self.counts is None else self.counts)

    @property
    def entered(self) -> float:
        """The norm of the step that entered the mean."""
        return self.update_norm if self.moved is None else self.moved

    def entry(self) -> dict[str, Any]:
        """Return the update's entry in the log: JSON values, without what was not asked for."""
        reports = {"received_loss": self.received_loss, "previous_loss": self.previous_loss}
        asked = {name: finite(value) for name, value in reports.items() if value is not None}
        metrics = {"metrics": dict(self.metrics)} if self.metrics else {}
        own = {"examples": self.examples, "loss": finite(self.loss), "update_norm": self.update_norm}
        moved = {} if self.moved is None else {"moved": self.moved}
        partly = {} if self.done == 1.0 else {"done": self.done}
        return {**own, **moved, **asked, **metrics, **partly}


def finite(value: float) -> float | None:
    """Return a number, or None if it is not finite, which JSON cannot express."""
    return float(value) if math.isfinite(value) else None


def printable(text: str) -> str:
    """Replace control characters by spaces: a stranger's text must not forge a line, or move a terminal's cursor."""
    return "".join(each if each.isprintable() else " " for each in text)


@dataclass(frozen=True)
class Refusal:
    """A client of the cohort whose update was not used: it declined, did not answer in time, or was refused."""

    client: int
    why: str
    diverged: bool = False  # it answered in time, but its training blew up


@dataclass(frozen=True)
class Snapshot:
    """The model and all that goes with it: what is restored when a round is rolled back."""

    params: Params  # w_t
    server: Packages = field(default_factory=dict)  # the state of the server's steps, and what the method keeps there
    accepted: Mapping[int, int] = field(default_factory=dict)  # client -> its last round that counted


@dataclass(frozen=True)
class Best:
    """The best model so far, by what the server measures on its own set."""

    round: int
    score: float
    params: Params = field(default_factory=dict)  # empty where only its round counts


@dataclass(frozen=True)
class ServerState:
    """All that the server carries from round to round; a checkpoint is this and nothing else."""

    round: int  # rounds finished, t - 1
    model: Snapshot
    loss: float | None  # L_t, of the model that is rewarded
    policy: PolicyState  # psi_t
    previous: Snapshot | None = None  # the one before, kept only where L_t is known a round late
    last_loss: float | None = None  # of w_t itself, which the guard watches
    first_loss: float | None = None  # the first of these that was known
    best_loss: float | None = None  # the smallest so far
    kept: Best | None = None  # the best model so far, where it is kept or waited for

    @property
    def params(self) -> Params:
        return self.model.params

    @property
    def gained(self) -> float | None:
        """How far the smallest loss so far is below the first; None if they are not known."""
        return None if self.first_loss is None or self.best_loss is None else self.first_loss - self.best_loss


@dataclass(frozen=True)
class Stretch:
    """The length of the server's step, in lengths of the clients' mean step."""

    taken: float
    wanted: float  # by the loss alone, whether or not it was allowed
    reach: float  # the longest that was allowed


@dataclass(frozen=True)
class Observation:
    """What a policy may learn from after a round. Only `seconds` differs from run to run."""

    round: int
    reward: float | None  # of the oldest choice that waits for one; None: not known yet
    carried_out: bool  # whether the newest choice had any effect
    loss: float | None
    metrics: Mapping[str, float]
    update_norms: Mapping[int, float]  # ||w_i - w|| of each client that counted
    relative: float | None  # their weighted mean over ||w||; None: nobody counted, or w is zero
    diverged: float  # share of the clients that answered whose training blew up
    step_norm: float | None  # ||mean of the w_i - w||
    alignment: float | None  # step_norm over the weighted mean of the update norms: 1 if all clients agree
    cosine: float | None  # between the steps of two clients, on average; None: there are no two
    turn: float | None  # cosine between the clients' mean step and the server's step before; None: that is not known
    overlap: float  # share of the cohort that also counted in the round before
    stretch: Stretch | None  # the length of the server's step, where it was searched for
    bytes: int  # sent down to the cohort, and up by the clients that counted
    seconds: Mapping[str, float]
    losses: Mapping[int, float] = field(default_factory=dict)  # mean training loss of each client that counted
    examples: Mapping[int, int] = field(default_factory=dict)  # of each of them
    blown: tuple[int, ...] = ()  # clients whose training blew up
    method: Mapping[str, float] = field(default_factory=dict)  # scalars that its clients sent (their mean), or it keeps


@dataclass(frozen=True)
class RoundLog:
    """One line of rounds.jsonl. `seconds` is the only field that is not deterministic."""

    round: int
    hyper: dict[str, Any]
    cohort: list[int]
    refused: list[dict[str, Any]]
    loss: float | None
    metrics: dict[str, float]
    reward: float | None
    policy: dict[str, Any]
    guard: str | None
    clients: dict[str, dict[str, Any]]
    step_norm: float | None = None  # ||mean of the w_i - w||, before the server's own steps
    method: dict[str, float] = field(default_factory=dict)  # the scalars that the method reports
    last_loss: float | None = None  # of the model itself, where `loss` is that of its running mean
    stretch: float | None = None  # how far the server went along the clients' mean step, where it searched for that
    handed: str | None = None  # whose metrics these are: the last, the short or long running mean, or the best model
    score: float | None = None  # by which the best model is chosen, where it is kept or waited for
    best: int | None = None  # the round of the best model so far
    bytes: int = 0  # sent down to the cohort, and up by the clients that counted
    seconds: dict[str, float] = field(default_factory=dict)
