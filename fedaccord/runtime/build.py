"""From a task and settings to a Federation that is ready to run on this machine."""

import copy
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from fedaccord.client.objective import (
    Objective,
    Plain,
    RepresentationMatching,
    WeightDivergence,
    classification,
    read_params,
)
from fedaccord.client.training import Site
from fedaccord.config import Settings
from fedaccord.core.algorithm import Federation, cohort_size
from fedaccord.core.errors import DataError, FedAccordError, SettingsError
from fedaccord.core.processes import usable_cores
from fedaccord.core.records import ClientData, Engine, Examples, Hyper, Params, Policy, Prepare, Yardstick
from fedaccord.core.seeds import global_seed, numpy_generator
from fedaccord.data import partition
from fedaccord.data.prepare import Pixels, as_stored
from fedaccord.data.sets import Data, DataSet, as_examples
from fedaccord.engines.choose import choose
from fedaccord.policy.grid import HyperGrid
from fedaccord.policy.reinforce import Reinforce
from fedaccord.policy.schedule import FixedSchedule, Replay
from fedaccord.runtime.folder import read_rounds
from fedaccord.server.evaluate import ClientLosses, Judge
from fedaccord.tasks import Task

T = TypeVar("T")

READY_BYTES = 2**30
"""Inputs that are the same in every step are held as the floats that the model sees if they take no more than this."""


@dataclass(frozen=True)
class Simulation:
    """A Federation and what there is to know about it."""

    settings: Settings  # nothing left open
    federation: Federation
    model: nn.Module  # holds w_1
    engine: str  # which, and why
    counts: np.ndarray | None = None  # examples by client and class
    classes: tuple[str, ...] = ()

    @property
    def params(self) -> Params:
        return read_params(self.model)


def from_task(task: Task, settings: Settings) -> Simulation:
    """Gather the task's data here, divided as the settings say, and put everything together."""
    parts = parts_of(task, settings)
    simulation = simulation_of(parts.settings, parts.model, parts.clients, parts.validation, parts.test, parts.prepare)
    return replace(simulation, counts=parts.counts, classes=parts.classes)


@dataclass(frozen=True)
class Parts:
    """A task with its data at hand: what the server has, and what each client of this machine has."""

    settings: Settings  # nothing left open
    model: nn.Module  # holds w_1
    prepare: Prepare
    clients: list[ClientData]
    validation: Examples | None
    test: Examples | None
    counts: np.ndarray | None = None  # examples by client and class, where one data set was divided
    classes: tuple[str, ...] = ()


def parts_of(task: Task, settings: Settings) -> Parts:
    """The server and all clients in one place: a simulation."""
    if task.data is None:
        settings = undivided(settings)
        return ready(task, settings, list(range(clients_of(settings))), server_data(task, settings))
    data = loaded("data()", task.data)
    settings = resolve(task, settings, data)
    held, rest, owner = divide(settings, data)
    counts = partition.counts(owner, rest.targets.numpy(), clients_of(settings), len(data.classes))
    prepare, (train, validation, test) = prepared(task, settings, [rest, held, data.test])
    assert train is not None
    clients = by_owner(train, owner, clients_of(settings))
    return Parts(settings, build(task, settings), prepare, clients, validation, test, counts, data.classes)


def server_parts(task: Task, settings: Settings) -> Parts:
    """The server of a real federation: it sees no client's data."""
    settings = undivided(settings)
    return ready(task, settings, [], server_data(task, settings))


def client_parts(task: Task, settings: Settings, client: int) -> Parts:
    """One client of a real federation: what its machine holds is its own, and nothing is divided."""
    settings = undivided(settings)
    return ready(task, settings, [client], (None, None))


def ready(
    task: Task, settings: Settings, clients: Sequence[int], server: tuple[Examples | None, Examples | None]
) -> Parts:
    """Parts of these clients' own data."""
    prepare, sets = prepared(task, settings, [*server, *(my_data(task, client) for client in clients)])
    validation, test, *own = sets
    held = [each for each in own if each is not None]
    return Parts(settings, build(task, settings), prepare, held, validation, test)


def undivided(settings: Settings) -> Settings:
    """Where every client brings its own data, there is nothing to split."""
    return replace(settings, clients=clients_of(settings), split="natural", augment=bool(settings.augment))


def clients_of(settings: Settings) -> int:
    if settings.clients is None:
        raise SettingsError("clients: say how many clients bring their own data, such as clients = 3")
    return settings.clients


def my_data(task: Task, client: int) -> Examples:
    """What this client holds; of a task that has only `data`, the training part of whatever that loads here."""
    label = f"the data of client {client}"
    if task.load_my_data is not None:
        return as_examples(loaded(f"load_my_data({client})", task.load_my_data, client), label)
    return as_examples(loaded("data()", task.data_set).train, label)


def server_data(task: Task, settings: Settings) -> tuple[Examples | None, Examples | None]:
    """The server's validation and test set. Without load_server_data, from whatever `data` loads on its machine."""
    validation: Data | None
    test: Data | None
    if task.load_server_data is not None:
        validation, test = loaded("load_server_data()", task.load_server_data)
    elif task.data is not None:
        data = loaded("data()", task.data)
        held = hold_out(settings, data.train.targets.numpy()) if settings.evaluate == "server" else None
        validation, test = (None if held is None else data.train[held]), data.test
    else:
        validation = test = None
    if settings.evaluate == "clients":
        validation = None
    elif validation is None:
        raise SettingsError(
            f"evaluate = server: task {task.name} gives the server no validation set; let its load_server_data "
            "return one, or set evaluate = clients, for the server and for all clients"
        )
    return (
        None if validation is None else as_examples(validation, "the server's validation set"),
        None if test is None else as_examples(test, "the server's test set"),
    )


def loaded(name: str, load: Callable[..., T], *arguments: Any) -> T:
    """What a task's own function returns; if it fails, one line says which and why."""
    try:
        return load(*arguments)
    except FedAccordError:
        raise
    except Exception as error:  # whatever a user's code raises
        raise DataError(f"the task's {name} failed: {type(error).__name__}: {error}") from error


def build(task: Task, settings: Settings) -> nn.Module:
    """The same first parameters wherever it is built."""
    with global_seed(settings.seed, "init"):
        return task.build_model(settings.width)


def prepared(task: Task, settings: Settings, sets: Sequence[Examples | None]) -> tuple[Prepare, list[Examples | None]]:
    """Inputs that are the same floats in every step are made once, if they fit; and what is left to prepare."""
    prepare, there = task.prepare, [each for each in sets if each is not None]
    if settings.augment:
        if not isinstance(prepare, Pixels) or any(each.inputs.dim() != 4 for each in there):
            raise SettingsError(f"augment = true: the inputs of task {task.name} are not pictures")
        return replace(prepare, augment=True), list(sets)
    if not isinstance(prepare, Pixels) or sum(4 * each.inputs.numel() for each in there) > READY_BYTES:
        return prepare, list(sets)
    made = [None if each is None else Examples(prepare(each.inputs, None), each.targets) for each in sets]
    return as_stored, made


def resolve(task: Task, settings: Settings, data: DataSet) -> Settings:
    """Fill in what was left open and follows from the data."""
    clients = settings.clients
    if settings.split == "natural" and data.owner is not None:
        natural = len(np.unique(data.owner))
        if clients not in (None, natural):
            raise SettingsError(f"clients = {clients}: the natural split of {task.name} has {natural}; leave it out")
        clients = natural
    return replace(settings, clients=10 if clients is None else clients, augment=bool(settings.augment))


def divide(settings: Settings, data: DataSet) -> tuple[Examples | None, Examples, np.ndarray]:
    """The server's set, taken out first; the clients' examples; and the owner of each of these."""
    labels, natural = data.train.targets.numpy(), data.owner
    train, validation = data.train, None
    if settings.evaluate == "server":
        held = hold_out(settings, labels)
        rest = np.setdiff1d(np.arange(len(labels)), held)
        train, validation, labels = data.train[rest], data.train[held], labels[rest]
        natural = None if natural is None else natural[rest]
    assert settings.clients is not None  # resolved
    split = partition.Split(
        settings.split,
        settings.clients,
        settings.classes_per_client,
        settings.alpha,
        settings.shards_per_client,
        settings.allow_empty,
    )
    return validation, train, partition.partition(split, labels, numpy_generator(settings.seed, "split"), natural)


def hold_out(settings: Settings, labels: np.ndarray) -> np.ndarray:
    """The examples that the server keeps to measure L_t on."""
    if settings.validation_per_class == 0:
        raise SettingsError("validation_per_class = 0: the server has nothing to measure L_t on; or evaluate = clients")
    return partition.hold_out(labels, settings.validation_per_class, numpy_generator(settings.seed, "validation"))


def by_owner(train: Examples, owner: np.ndarray, clients: int) -> list[ClientData]:
    """The examples sorted by client, once; each client is a slice of the two tensors, not a copy."""
    ordered = train[np.argsort(owner, kind="stable")]
    ends = np.cumsum(np.bincount(owner, minlength=clients)).tolist()
    return [ordered[first:last] for first, last in zip([0, *ends[:-1]], ends, strict=True)]


def simulation_of(
    settings: Settings,
    model: nn.Module,
    clients: Sequence[ClientData],
    validation: Examples | None,
    test: Examples | None,
    prepare: Prepare,
) -> Simulation:
    """Model, data and settings -> Simulation. A method is a choice of objective and policy, nothing else."""
    site = site_of(settings, model, clients, prepare, [part for part in (validation, test) if part is not None])
    cohort = cohort_size(len(clients), settings.fraction)
    engine = choose(settings.engine, site, hyper_of(settings), cohort, settings.workers, settings.address)
    cores = 1 if engine.name == "serial" else settings.workers or usable_cores()
    federation = federation_of(settings, model, engine.engine, len(clients), validation, test, prepare, cores)
    federation = replace(
        federation,
        total_examples=sum(map(len, clients)),
        data=lambda: (tensor for client in clients for tensor in (client.inputs, client.targets)),
    )
    return Simulation(replace(settings, engine=engine.name), federation, model, f"{engine.name}: {engine.why}")


def site_of(
    settings: Settings,
    model: nn.Module,
    clients: Sequence[ClientData],
    prepare: Prepare,
    others: Sequence[Examples] = (),
) -> Site:
    """What it takes to run these clients; the model is put in the form in which it runs best."""
    device = find_device(settings.device)
    model.to(device)
    check_model(model, clients, others, prepare, device)
    example = prepare(next(client.inputs[:2] for client in clients if len(client)).clone().to(device), None)
    lay_out(model, example)
    return Site(
        model,
        objective_of(settings, model, example),
        [client.to(device) for client in clients],
        prepare,
        yardstick_of(settings),
        settings.seed,
        prepare is as_stored,
        settings.rm_store,
    )


def federation_of(
    settings: Settings,
    model: nn.Module,
    engine: Engine,
    clients: int,
    validation: Examples | None,
    test: Examples | None,
    prepare: Prepare,
    cores: int = 1,
) -> Federation:
    """The server's side: how a round's hyper-parameters are chosen, and how its result is judged."""
    device = next(model.parameters()).device
    judge = None if test is None else Judge(model, test.to(device), prepare, workers=cores)
    return Federation(
        engine=engine,
        policy=policy_of(settings),
        loss=ClientLosses(robust=settings.reports == "median")
        if validation is None
        else Judge(model, validation.to(device), prepare, yardstick_of(settings), cores).loss,
        accuracy=None if judge is None else judge.accuracy,
        clients=clients,
        total_examples=0,
        rounds=settings.rounds,
        fraction=settings.fraction,
        seed=settings.seed,
        weighting=settings.weighting,
        test_every=settings.test_every,
        clients_report=validation is None,
        paired=settings.paired and validation is None,
        guards=settings.guards,
        min_replies=settings.min_replies,
        buffers=frozenset(model.state_dict().keys() - dict(model.named_parameters(remove_duplicate=False)).keys()),
    )


def check_model(
    model: nn.Module, clients: Sequence[ClientData], others: Sequence[Examples], prepare: Prepare, device: torch.device
) -> None:
    """One trial on two examples: a model that does not fit the data is told in one line, before anything runs."""
    held = [part for part in (*clients, *others) if len(part)]
    if not any(len(client) for client in clients):
        raise DataError("no client has any data")
    if len(held) < len(others) + 1 or any(len(part) == 0 for part in others):
        raise DataError("the validation or test set is empty")
    was_training = model.training
    try:
        with torch.no_grad():
            scores = model.eval()(prepare(held[0].inputs[:2].clone().to(device), None))
    except FedAccordError:
        raise
    except Exception as error:  # whatever a user's model raises
        raise DataError(f"the model cannot be run on the clients' inputs: {error}") from error
    finally:
        model.train(was_training)
    largest = max(int(part.targets.max()) for part in held)
    if not isinstance(scores, torch.Tensor) or scores.dim() != 2 or scores.shape[1] <= largest:
        given = f"shape {tuple(scores.shape)}" if isinstance(scores, torch.Tensor) else f"a {type(scores).__name__}"
        raise DataError(f"the model must give (examples, {largest + 1} or more class scores), it gives {given}")
    for number, client in enumerate(clients):
        if len(client) == 1:
            check_alone(model, number, prepare(client.inputs.clone().to(device), None))
            break


@torch.no_grad()
def check_alone(model: nn.Module, client: int, inputs: Tensor) -> None:
    """A batch of one is too little for a BatchNorm over features."""
    try:
        copy.deepcopy(model).train()(inputs)
    except ValueError as error:
        raise DataError(
            f"client {client} has a single example, and the model cannot be trained on that: {error}; give it another "
            "example, leave it out, or use GroupNorm or LayerNorm in place of BatchNorm"
        ) from error


def lay_out(model: nn.Module, inputs: Tensor) -> None:
    """Channels-last memory for a model with two-dimensional convolutions, which run faster so: same sums, less moving.

    A model that takes its activations apart by `view` cannot be run that way: it stays as it is.
    """
    if not any(isinstance(module, nn.Conv2d) for module in model.modules()) or inputs.dim() != 4:
        return
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    was_training = model.training
    try:
        with torch.no_grad():
            model.eval()(inputs)
    except RuntimeError:
        model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    finally:
        model.train(was_training)


def objective_of(settings: Settings, model: nn.Module, example: Tensor) -> Objective:
    """What the method's clients minimise. `example`: two inputs as the model sees them."""
    if "WD" in settings.method:
        return WeightDivergence()
    if "RM" in settings.method:
        fresh = settings.rm_memory == "fresh"
        return RepresentationMatching(
            model, example, layer_names(settings), settings.rm_kernel, settings.rm_batch, fresh
        )
    return Plain()


def yardstick_of(settings: Settings) -> Yardstick:
    """What L_t is measured by: what the clients minimise, with the settings' entropy term even where AH tunes it."""
    # PAPER (line 15): "the loss of the aggregate model". HERE: with the entropy term. WHY: without it a model that is
    # just more sure of itself has a smaller loss, and the reward is mostly noise; see docs/deviations.md.
    hyper = hyper_of(settings)
    return partial(
        classification, hyper=hyper if settings.yardstick == "objective" else replace(hyper, entropy_weight=0.0)
    )


def policy_of(settings: Settings) -> Policy:
    """Where the method's hyper-parameters come from."""
    first = hyper_of(settings)
    if settings.replay:
        recorded = tuple(line["hyper"] for line in read_rounds(Path(settings.replay)))
        if not recorded:
            raise SettingsError(f"replay = {settings.replay}: that run has no rounds yet")
        return Replay(first, recorded=recorded)
    if "AH" not in settings.method:
        return FixedSchedule(first, settings.lr_decay, settings.steps_decay)
    grid = HyperGrid.parse(settings.grid)
    return Reinforce(
        first,
        grid,
        settings.hyper_lr,
        settings.interval,
        settings.precision,
        settings.diagonal,
        settings.baseline,
        grid.place(settings.start),
    )


def layer_names(settings: Settings) -> list[str] | None:
    """The layers of interest that were named by hand; None: they are to be found."""
    return [name.strip() for name in settings.rm_layers.split(",") if name.strip()] or None


def hyper_of(settings: Settings) -> Hyper:
    """The part of the settings that reaches a client."""
    values = dataclasses.asdict(settings)
    return Hyper(**{item.name: values[item.name] for item in dataclasses.fields(Hyper) if item.name in values})


def find_device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise SettingsError(f"device = {name}: not usable here: {str(error).splitlines()[0]}") from None
    return device
