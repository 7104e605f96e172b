"""The interfaces of a method, a server step, a policy, an engine and an evaluator.

A `Method` is a tuple of parts. Each `Part` brings any of: something that clients do (`ClientPart`), something that the
server does (`ServerStep`), a source of hyper-parameters (`Policy`); with the settings and the slots that it needs.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from fedaccord.core.batches import Batch
from fedaccord.core.errors import SettingsError
from fedaccord.core.records import (
    Accepted,
    ClientData,
    ClientUpdate,
    Hyper,
    Observation,
    Order,
    Packages,
    Params,
    PolicyState,
    Refusal,
)
from fedaccord.core.settings import Setting
from fedaccord.core.travel import Travel

# ---------------------------------------------------------------- packages: what a method sends and keeps

WEIGHTS, STATE, SCALAR, OWN = "weights", "state", "scalar", "own"


@dataclass(frozen=True)
class Slot:
    """A named package of tensors. What is not declared as a slot can neither travel nor be kept.

    `like` says which tensors it has: WEIGHTS, one like each trained parameter of the model; STATE, one like each tensor
    of its state; SCALAR, a single number; OWN, those of the modules that the client part trains beside the model.
    """

    name: str
    like: str = WEIGHTS
    weighted: bool = True  # sent up: averaged by the clients' numbers of examples; False: every client counts the same
    most: Callable[[Hyper], float] | None = None  # sent up: the largest norm that an honest client can send

    def template(self, model: nn.Module, travel: Travel | None = None) -> Params:
        """Return zeros with the slot's names, shapes and types; of the model's tensors, only those that travel."""
        if self.like == SCALAR:
            return {"value": torch.zeros((), dtype=torch.float64)}
        tensors = model.state_dict() if self.like == STATE else trained_weights(model)
        return {
            name: torch.zeros_like(value, memory_format=torch.contiguous_format)
            for name, value in tensors.items()
            if travel is None or name in travel.names
        }


@dataclass(frozen=True)
class Slots:
    """The slots that a part sends down, sends up, keeps at each client and keeps at the server."""

    down: tuple[Slot, ...] = ()
    up: tuple[Slot, ...] = ()
    client: tuple[Slot, ...] = ()
    server: tuple[Slot, ...] = ()


def trained_weights(module: nn.Module) -> dict[str, Tensor]:
    return {name: weight for name, weight in module.named_parameters() if weight.requires_grad}


# ---------------------------------------------------------------- the client's side of a method


@dataclass(frozen=True)
class Beginning:
    """What a client part knows when a client begins its round. `model` holds the received parameters already."""

    model: nn.Module
    received: Params
    hyper: Hyper
    down: Packages  # what the server sent in this part's slots
    kept: Packages  # what the client kept after its last round that counted; empty before its first
    round: int
    client: int
    seed: int
    data: ClientData | None = None  # what the client trains on; it may be read, and never leaves


@dataclass(frozen=True)
class Step:
    """One optimizer step that is about to be made: lists of the same length, one tensor for each trained weight.

    In a stack of clients every tensor has a leading axis for the clients.
    """

    weights: list[Tensor]
    gradients: list[Tensor]
    hyper: Hyper
    received: list[Tensor]  # the weights as they were received
    down: Mapping[str, list[Tensor]]  # what the server sent in this part's slots that are like WEIGHTS
    kept: Mapping[str, list[Tensor]]  # what the client kept in such slots, zeros before its first round
    stacked: bool = False  # whether every tensor has that leading axis
    memory: dict[str, Any] = field(default_factory=dict)  # whatever must last from step to step in this round
    turn: list[Tensor] = field(default_factory=list)
    """For a part that looks back, from the second step on: the gradients of this mini-batch at these weights, minus its
    gradients at the weights of the step before."""


@dataclass(frozen=True)
class End:
    """What a client part knows when a client's round is over."""

    received: Params
    params: Params
    hyper: Hyper
    down: Packages
    kept: Packages  # as at the beginning; slots like WEIGHTS are zeros before the first round
    memory: Mapping[str, Any] = field(default_factory=dict)  # what `correct` left in Step.memory
    place: int = 0  # this client's row in it, where clients were stacked


@dataclass(frozen=True)
class Outgoing:
    """What a client part sends up, and what it keeps, in declared slots only."""

    sent: Packages = field(default_factory=dict)
    kept: Packages = field(default_factory=dict)


class Work:
    """What a client part adds to the loss of one client in one round; this base class adds nothing."""

    trained: Sequence[nn.Module] = ()  # trained along with the model
    shared: Sequence[nn.Module] = ()  # run but not trained, the same for all clients of the round
    own: Sequence[nn.Module] = ()  # run but not trained, with values of this client's own

    def watch(self, inputs: Batch) -> AbstractContextManager[Any]:
        """Return a context manager to enter around the model's forward pass."""
        return nullcontext()

    def term(self, inputs: Batch, output: Any, targets: Batch) -> Tensor | None:
        """Return a term to add to the loss, with a graph to all that is trained, or None."""
        return None


NOTHING, THE_WEIGHTS, THE_GRADIENTS = "", "weights", "gradients"
CROSS_ENTROPY = "the clients' cross-entropy"
"""What a part may replace (`Part.replaces`); then the task must not bring a loss of its own."""


class ClientPart:
    """What a part of a method does at the clients. Override what is needed."""

    looks_back = False
    """Whether `correct` needs `Step.turn`, for which every mini-batch is run twice."""
    stacks = False
    """Whether a stack of clients may be trained at once: `correct` allows for the leading axis, and the term that
    `begin` returns is the same function in every round and for every client, of its inputs and of the modules that its
    Work lists."""

    def corrects(self, hyper: Hyper) -> str:
        """Return what `correct` changes, given these values: NOTHING, THE_WEIGHTS, or THE_GRADIENTS (and weights)."""
        return NOTHING

    def begin(self, at: Beginning) -> Work:
        """Begin a client's round, and return what this part adds to the client's loss."""
        return Work()

    def correct(self, step: Step) -> None:
        """Change gradients or weights in place before the optimizer's step; this is called outside of autograd."""

    def finish(self, end: End, work: Work) -> Outgoing:
        """Return what a client sends and keeps after its last step; `work` is what `begin` returned for it."""
        return Outgoing()

    def own_template(self) -> Params:
        """Return tensors like those that a client keeps in a slot like OWN."""
        return {}


# ---------------------------------------------------------------- the server's side of a method


@dataclass(frozen=True)
class Mean:
    """A round's accepted updates, averaged; a server step makes the next model of it."""

    received: Params  # w_t
    params: Params  # the model so far; each step of the chain may replace it
    sent: Packages  # what the method's clients sent up, averaged slot by slot
    accepted: int  # how many updates are in it
    clients: int  # how many clients there are in all
    buffers: frozenset[str]  # names in the model's state that are not trained
    hyper: Hyper
    norm: float = 0.0  # of the clients' mean step, before anything was done to it
    square: float = 0.0  # the mean of the squared norms of the clients' own steps
    share: float = 1.0  # how much of the clients' mean step this is: the guard may try less of it, or more

    def step(self, name: str) -> Tensor:
        """Return how far the model has moved so far in this tensor."""
        return self.params[name] - self.received[name]


class ServerStep:
    """One step of the chain that makes the next model from the clients' mean. Override what is needed."""

    holds = False
    """Whether this step needs all of a round's updates at once (`together`, `centre`): then the server holds them in
    memory, where it otherwise keeps a running mean and drops each update."""
    equal = False
    """Whether every client counts the same in the mean, whatever its number of examples."""

    def open(self, folder: Path | None) -> None:
        """Prepare for the first round, or for going on after a resume; without a run folder, `folder` is None."""

    def init(self, params: Params, zeros: Packages) -> Packages:
        """Return the part's server slots before the first round; `zeros` has the tensors that were declared."""
        return zeros

    def transform(self, received: Params, update: ClientUpdate, buffers: frozenset[str]) -> ClientUpdate:
        """Return one client's update as it shall enter the mean; `buffers`: names in it that are not trained."""
        return update

    def together(
        self, received: Params, updates: Sequence[ClientUpdate], buffers: frozenset[str]
    ) -> Sequence[ClientUpdate]:
        """Return the updates of a round, changed with all of them known; `buffers`: the names that are not trained."""
        return updates

    def centre(self, tables: Sequence[Params]) -> Params | None:
        """Return the table that replaces the mean of these tables of tensors, one per client; None keeps the mean."""
        return None

    def settle(
        self, round: int, received: Params, mean: Params, trained: Sequence[str], accepted: int, asked: int
    ) -> Params:
        """Return the clients' mean, changed once a round before anything is derived from it."""
        return mean

    def spent(self, asked: Callable[[int], int], round: int) -> Mapping[str, float]:
        """Return figures for the log; `asked`: how often the client asked most often was asked, up to a given round."""
        return {}

    def apply(self, state: Packages, mean: Mean) -> tuple[Params, Packages]:
        """Return the next model and the part's next server slots, as new tensors: a round may be rolled back."""
        return mean.params, state

    def means(self, state: Packages) -> Mapping[str, Params]:
        """Return models besides the last that may be rewarded and handed out, by name; clients go on from the last."""
        return {}


# ---------------------------------------------------------------- where hyper-parameters come from


@dataclass(frozen=True)
class Proposal:
    """h_t: the hyper-parameters of all clients, except those that have their own in `each`."""

    hyper: Hyper
    each: Mapping[int, Hyper] = field(default_factory=dict)


class Policy(Protocol):
    """A source of each round's hyper-parameters: lines 4, 17 and 18."""

    @property
    def names(self) -> tuple[str, ...]:
        """The hyper-parameters that this policy chooses (the others stay as the settings say)."""
        ...

    def start(self) -> PolicyState: ...

    def propose(
        self, state: PolicyState, round: int, cohort: Sequence[int], generator: torch.Generator
    ) -> tuple[Proposal, PolicyState]: ...

    def learn(self, state: PolicyState, seen: Observation) -> PolicyState: ...

    def describe(self, before: PolicyState, after: PolicyState) -> dict[str, Any]:
        """Return what the log keeps of this round's decision, as JSON values."""
        ...


# ---------------------------------------------------------------- a method


@dataclass(frozen=True)
class Built:
    """What a client part is made from: the model, two inputs as the model sees them, and the settings by name.

    `travel`: which of the model's tensors travel; None: all. `tuned`: the hyper-parameters that a policy chooses.
    """

    model: nn.Module
    example: Batch
    settings: Mapping[str, Any]
    travel: Travel | None = None
    tuned: frozenset[str] = frozenset()

    def uses(self, name: str) -> bool:
        """Return whether a setting may be other than zero: it is set to another value, or a policy may choose one."""
        return name in self.tuned or bool(self.settings[name])


class Part:
    """One ingredient of a method, such as RM. Override what it brings."""

    name = ""
    about = ""  # one sentence
    cost = 1.0  # of a client's step, as a multiple of a plain one's, by `fedaccord bench rounds` on MNIST
    settings: tuple[Setting, ...] = ()
    slots = Slots()
    sets_length = False  # whether it decides how far the server goes, so that nothing else may search for a length
    replaces = ""  # what it replaces by its own version, so that no other part of a method may; "" for nothing
    takes_start = True  # whether the setting `start` may say where its policy begins

    def prepare(self, model: nn.Module, settings: Mapping[str, Any]) -> None:
        """Change the model in place, wherever it is built, before anything else is done with it.

        This may freeze weights, or draw them by settings["seed"], which is the same everywhere.
        """

    def client(self, built: Built) -> ClientPart | None:
        return None

    def server(self, settings: Mapping[str, Any]) -> ServerStep | None:
        return None

    def policy(self, first: Hyper, settings: Mapping[str, Any]) -> Policy | None:
        """Return the part's policy, if it brings one; `first`: the hyper-parameters as the settings have them."""
        return None

    def tunes(self, settings: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the hyper-parameters that its policy chooses; their settings count only if it `begins` with them."""
        return ()

    def begins(self, settings: Mapping[str, Any]) -> bool:
        """Return whether its policy begins with the values that the settings give to what it chooses."""
        return False

    def stretches(self, settings: Mapping[str, Any]) -> bool:
        """Return whether the server searches for the length of its step, by the running mean's loss on its own set."""
        return False

    def follows(self, settings: Mapping[str, Any]) -> bool:
        """Return whether its policy lowers the learning rate after a harmful round, which early on is then undone."""
        return False

    def remarks(self, counts: np.ndarray) -> list[str]:
        """Return what a person should know before the first round; `counts`: examples by client and class."""
        return []

    def report(self, rounds: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return sentences about a run for its page, from the lines of its log."""
        return []

    def own(self, packages: Packages) -> dict[str, Params]:
        """Return this part's packages, under the slots' own names."""
        start = f"{self.name}."
        return {name.removeprefix(start): params for name, params in packages.items() if name.startswith(start)}

    def named(self, packages: Packages) -> dict[str, Params]:
        """Return this part's packages, under names that no two parts share: part.slot."""
        return {f"{self.name}.{name}": params for name, params in packages.items()}


@dataclass(frozen=True)
class Method:
    """What clients and server do, as a value: a name and its parts."""

    name: str
    parts: tuple[Part, ...] = ()

    def __post_init__(self) -> None:
        """Raise SettingsError if two parts replace the same thing: together they would be neither of the two."""
        taken: dict[str, str] = {}
        for part in self.parts:
            for what in filter(None, (part.replaces, "the length of the server's step" if part.sets_length else "")):
                if what in taken:
                    raise SettingsError(
                        f"method {self.name}: {taken[what]} and {part.name} cannot be joined, because each replaces "
                        f"{what} by its own; take one of them"
                    )
                taken[what] = part.name

    @property
    def settings(self) -> dict[str, Setting]:
        return {each.name: each for part in self.parts for each in part.settings}

    def slots(self, kind: str) -> dict[str, tuple[Part, Slot]]:
        """Return all slots of a kind (down, up, client, server), by a name that no two parts share: part.slot."""
        return {f"{p.name}.{s.name}": (p, s) for p in self.parts for s in getattr(p.slots, kind)}

    @property
    def cost(self) -> float:
        """The rough cost of a client's step, as a multiple of a plain one's."""
        return math.prod(part.cost for part in self.parts)

    def remarks(self, counts: np.ndarray | None) -> list[str]:
        """Return its parts' remarks on how the classes are divided, where that is known before the first round."""
        return [] if counts is None else [said for part in self.parts for said in part.remarks(counts)]

    def prepare(self, model: nn.Module, settings: Mapping[str, Any]) -> None:
        """Let each part change the model before anything else is done with it."""
        for part in self.parts:
            part.prepare(model, settings)

    def tunes(self, settings: Mapping[str, Any]) -> set[str]:
        """Return the names of the hyper-parameters that its policy chooses."""
        return {name for part in self.parts for name in part.tunes(settings)}

    def begins(self, settings: Mapping[str, Any]) -> bool:
        """Return whether its policy begins with the values that the settings give to what it chooses."""
        return any(part.begins(settings) for part in self.parts)

    def stretches(self, settings: Mapping[str, Any]) -> bool:
        """Return whether one of its parts has the server search for the length of its step, and none sets it itself."""
        return any(part.stretches(settings) for part in self.parts) and not any(p.sets_length for p in self.parts)

    def follows(self, settings: Mapping[str, Any]) -> bool:
        """Return whether the policy of one of its parts lowers the learning rate after a harmful round."""
        return any(part.follows(settings) for part in self.parts)

    def policy(self, first: Hyper, settings: Mapping[str, Any], otherwise: Policy) -> Policy:
        """Return the policy that one of its parts brings, or `otherwise`; raise SettingsError if several bring one."""
        found = [policy for part in self.parts if (policy := part.policy(first, settings)) is not None]
        if len(found) > 1:
            raise SettingsError(f"method {self.name}: two of its parts choose the hyper-parameters")
        return found[0] if found else otherwise


# ---------------------------------------------------------------- who runs the clients, and who measures


class Engine(Protocol):
    """What runs the clients: lines 6-13. Every engine gives the same result."""

    def train(self, order: Order) -> Iterator[ClientUpdate | Refusal]:
        """Yield the cohort's updates in client order, each as soon as it and all before it are there."""
        ...

    def open(self, folder: Path | None) -> None:
        """Prepare for the first round; `folder` is for what clients keep to themselves (None: no run folder)."""
        ...

    def expect(self, accepted: Mapping[int, int]) -> None:
        """Make sure after a resume that what each client kept in its last round that counted is still there."""
        ...

    def save(self) -> None:
        """Make what the clients keep durable, before the server's own checkpoint."""
        ...

    def prune(self, accepted: Mapping[int, int]) -> None:
        """Drop what clients kept before these rounds, which are those that the oldest checkpoint goes on from."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Measured:
    """The newest known loss, and the loss to compare it with (None: the one known before)."""

    loss: float | None
    before: float | None = None


class LossOf(Protocol):
    """Line 15: the loss of the aggregate model, L."""

    def __call__(self, params: Params, clients: Sequence[Accepted], /) -> Measured:
        """Return the loss; `clients` are the round's accepted updates, none before the first round."""
        ...


MetricsOf = Callable[[Params], dict[str, float]]
"""(parameters) -> the metrics of that model on the test set, by name."""
