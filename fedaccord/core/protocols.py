"""The seams: what a method, a server step, a policy, an engine and an evaluator are to the rest.

A `Method` is a tuple of parts. Each `Part` brings any of: something that clients do (`ClientPart`), something that the
server does (`ServerStep`), where hyper-parameters come from (`Policy`); with the settings and the slots that it needs.
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
    weighted: bool = True  # sent up: averaged by the clients' numbers of examples, or each counts the same
    most: Callable[[Hyper], float] | None = None  # sent up: the largest norm that an honest client's can have

    def template(self, model: nn.Module, travel: Travel | None = None) -> Params:
        """Zeros of the right names, shapes and types; of the model, only what travels."""
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
    """All that a part sends down, sends up, keeps at each client and keeps at the server."""

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
    memory: dict[str, Any] = field(default_factory=dict)  # whatever shall last from step to step of this round
    turn: list[Tensor] = field(default_factory=list)
    """For a part that looks back, from the second step on: the loss's gradients here less those of the same mini-batch
    at the weights of the step before."""


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
    """What a client part sends up, and what it keeps; only declared slots."""

    sent: Packages = field(default_factory=dict)
    kept: Packages = field(default_factory=dict)


class Work:
    """What a client part adds to the loss of one client in one round. This one adds nothing."""

    trained: Sequence[nn.Module] = ()  # trained along with the model
    shared: Sequence[nn.Module] = ()  # run but not trained, the same for all clients of the round
    own: Sequence[nn.Module] = ()  # run but not trained, with values of this client's own

    def watch(self, inputs: Batch) -> AbstractContextManager[Any]:
        """Entered around the model's forward pass."""
        return nullcontext()

    def term(self, inputs: Batch, output: Any, targets: Batch) -> Tensor | None:
        """A term of the loss, with a graph to all that is trained."""
        return None


NOTHING, THE_WEIGHTS, THE_GRADIENTS = "", "weights", "gradients"


class ClientPart:
    """What a part of a method does at the clients. Override what is needed."""

    looks_back = False
    """Whether `correct` wants `Step.turn`, for which every mini-batch is run twice."""

    def corrects(self, hyper: Hyper) -> str:
        """What `correct` changes with these hyper-parameters: NOTHING, THE_WEIGHTS, or THE_GRADIENTS (and weights)."""
        return NOTHING

    def begin(self, at: Beginning) -> Work:
        """Called for each client at the beginning of its round."""
        return Work()

    def correct(self, step: Step) -> None:
        """Change gradients or weights, in place, before the optimizer's step; outside of autograd."""

    def finish(self, end: End, work: Work) -> Outgoing:
        """What is sent and kept after a client's last step; `work` is what `begin` returned for it."""
        return Outgoing()

    def own_template(self) -> Params:
        """For a slot like OWN: tensors like those that a client keeps."""
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
        """How far the model has moved so far in this tensor."""
        return self.params[name] - self.received[name]


class ServerStep:
    """One step of the chain that makes the next model from the clients' mean. Override what is needed."""

    holds = False
    """Whether it wants all of a round's updates at once (`together`, `centre`): then the server holds them in memory,
    where it otherwise keeps a running mean and lets each go."""
    equal = False
    """Whether every client shall count the same in the mean, whatever its number of examples."""

    def open(self, folder: Path | None) -> None:
        """Called before the first round and after a resume; None: there is no run folder."""

    def init(self, params: Params, zeros: Packages) -> Packages:
        """The part's server slots before the first round; `zeros` has the tensors that were declared."""
        return zeros

    def transform(self, received: Params, update: ClientUpdate, buffers: frozenset[str]) -> ClientUpdate:
        """Change one client's update before it enters the mean; `buffers`: names in it that are not trained."""
        return update

    def together(
        self, received: Params, updates: Sequence[ClientUpdate], buffers: frozenset[str]
    ) -> Sequence[ClientUpdate]:
        """Change the updates of a round when all of them are known; `buffers`: the names that are not trained."""
        return updates

    def centre(self, tables: Sequence[Params]) -> Params | None:
        """What stands for these tables of tensors, one a client; None: their mean."""
        return None

    def settle(
        self, round: int, received: Params, mean: Params, trained: Sequence[str], accepted: int, asked: int
    ) -> Params:
        """Change the clients' mean before anything is derived from it, once a round."""
        return mean

    def spent(self, asked: Callable[[int], int], round: int) -> Mapping[str, float]:
        """Figures for the log; `asked`: how often the client that was asked most often was asked up to a round."""
        return {}

    def apply(self, state: Packages, mean: Mean) -> tuple[Params, Packages]:
        """The next model and the next values of the part's server slots, as new tensors: a round may be rolled back."""
        return mean.params, state

    def means(self, state: Packages) -> Mapping[str, Params]:
        """Other models than the last that may be rewarded and handed out, by name; clients go on from the last."""
        return {}


# ---------------------------------------------------------------- where hyper-parameters come from


@dataclass(frozen=True)
class Proposal:
    """h_t: the same for all clients, or one for each of those that are named."""

    hyper: Hyper
    each: Mapping[int, Hyper] = field(default_factory=dict)


class Policy(Protocol):
    """Where a round's hyper-parameters come from: lines 4 and 16-18."""

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
        """What the log keeps of this round's decision; JSON values."""
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
        """Whether a setting is ever other than zero: it is given so, or a policy may choose it so."""
        return name in self.tuned or bool(self.settings[name])


class Part:
    """One ingredient of a method, such as RM. Override what it brings."""

    name = ""
    about = ""  # one sentence
    cost = 1.0  # of a client's step as a multiple of a plain one, by `fedaccord bench rounds` on MNIST
    settings: tuple[Setting, ...] = ()
    slots = Slots()
    sets_length = False  # whether it decides how far the server goes, so that nobody else may look for a length
    replaces = ""  # what it does in a way of its own, so that no other part of a method may; "" for nothing
    takes_start = True  # whether the setting `start` may say where its policy begins

    def prepare(self, model: nn.Module, settings: Mapping[str, Any]) -> None:
        """Change the model in place before anything else is done with it, wherever it is built: freeze weights, or
        draw them by settings["seed"], which is the same everywhere."""

    def client(self, built: Built) -> ClientPart | None:
        return None

    def server(self, settings: Mapping[str, Any]) -> ServerStep | None:
        return None

    def policy(self, first: Hyper, settings: Mapping[str, Any]) -> Policy | None:
        """`first`: the hyper-parameters as the settings have them."""
        return None

    def tunes(self, settings: Mapping[str, Any]) -> tuple[str, ...]:
        """The hyper-parameters that its policy chooses: what the settings say of them counts only if it `begins`."""
        return ()

    def begins(self, settings: Mapping[str, Any]) -> bool:
        """Whether its policy begins with what the settings say of the hyper-parameters that it chooses."""
        return False

    def stretches(self, settings: Mapping[str, Any]) -> bool:
        """Whether the server looks for the length of its step, by the running mean's loss on its own set."""
        return False

    def follows(self, settings: Mapping[str, Any]) -> bool:
        """Whether its policy lowers the rate after a round that did harm: early on such a round is then undone."""
        return False

    def remarks(self, counts: np.ndarray) -> list[str]:
        """What a person should know before the first round; `counts`: examples by client and class."""
        return []

    def report(self, rounds: Sequence[Mapping[str, Any]]) -> list[str]:
        """Sentences about a run for its page, from the lines of its log."""
        return []

    def own(self, packages: Packages) -> dict[str, Params]:
        """This part's packages, under the slots' own names."""
        start = f"{self.name}."
        return {name.removeprefix(start): params for name, params in packages.items() if name.startswith(start)}

    def named(self, packages: Packages) -> dict[str, Params]:
        """The same under names that no two parts share: part.slot."""
        return {f"{self.name}.{name}": params for name, params in packages.items()}


@dataclass(frozen=True)
class Method:
    """What clients and server do, as a value: a name and its parts."""

    name: str
    parts: tuple[Part, ...] = ()

    def __post_init__(self) -> None:
        """Refuse parts that each do the same thing in a way of its own: their sum is neither the one nor the other."""
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
        """All slots of a kind (down, up, client, server), by a name that no two parts share: part.slot."""
        return {f"{p.name}.{s.name}": (p, s) for p in self.parts for s in getattr(p.slots, kind)}

    @property
    def cost(self) -> float:
        """Of a client's step, roughly, as a multiple of a plain one."""
        return math.prod(part.cost for part in self.parts)

    def remarks(self, counts: np.ndarray | None) -> list[str]:
        """What its parts say before the first round of how the classes are divided, where that is known."""
        return [] if counts is None else [said for part in self.parts for said in part.remarks(counts)]

    def prepare(self, model: nn.Module, settings: Mapping[str, Any]) -> None:
        """Let each part change the model before anything else is done with it."""
        for part in self.parts:
            part.prepare(model, settings)

    def tunes(self, settings: Mapping[str, Any]) -> set[str]:
        """The hyper-parameters that its policy chooses."""
        return {name for part in self.parts for name in part.tunes(settings)}

    def begins(self, settings: Mapping[str, Any]) -> bool:
        """Whether its policy begins with what the settings say of the hyper-parameters that it chooses."""
        return any(part.begins(settings) for part in self.parts)

    def stretches(self, settings: Mapping[str, Any]) -> bool:
        """Whether one of its parts has the server look for the length of its step, and none sets it by itself."""
        return any(part.stretches(settings) for part in self.parts) and not any(p.sets_length for p in self.parts)

    def follows(self, settings: Mapping[str, Any]) -> bool:
        """Whether the policy of one of its parts lowers the rate after a round that did harm."""
        return any(part.follows(settings) for part in self.parts)

    def policy(self, first: Hyper, settings: Mapping[str, Any], otherwise: Policy) -> Policy:
        """That of its parts, of which only one may bring one; or `otherwise`."""
        found = [policy for part in self.parts if (policy := part.policy(first, settings)) is not None]
        if len(found) > 1:
            raise SettingsError(f"method {self.name}: two of its parts choose the hyper-parameters")
        return found[0] if found else otherwise


# ---------------------------------------------------------------- who runs the clients, and who measures


class Engine(Protocol):
    """Who runs the clients: lines 6-13. Every engine gives the same answer."""

    def train(self, order: Order) -> Iterator[ClientUpdate | Refusal]:
        """The cohort's updates, in client order, each as soon as it and all before it are there."""
        ...

    def open(self, folder: Path | None) -> None:
        """Before the first round: the folder for what clients keep to themselves (None: there is no run folder)."""
        ...

    def expect(self, accepted: Mapping[int, int]) -> None:
        """After a resume: what each client kept in its last round that counted must be there."""
        ...

    def save(self) -> None:
        """Make what the clients keep durable, before the server's own checkpoint."""
        ...

    def prune(self, accepted: Mapping[int, int]) -> None:
        """The oldest checkpoint goes on from these rounds of the clients: what is older may go."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Measured:
    """The newest loss that is known, and what to compare it with (None: the one known before)."""

    loss: float | None
    before: float | None = None


class LossOf(Protocol):
    """Line 15: the loss of the aggregate model, L."""

    def __call__(self, params: Params, clients: Sequence[Accepted], /) -> Measured:
        """`clients`: the round's accepted updates; empty before the first round."""
        ...


MetricsOf = Callable[[Params], dict[str, float]]
"""A model's metrics on the test set, by name."""
