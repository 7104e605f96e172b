"""The parts of a task on this machine: model, method, the server's data and that of the clients that are here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from fedaccord.client.optimizers import MakeOptimizer
from fedaccord.config import ALL_DATA, OWN, Settings
from fedaccord.core.batches import Batch
from fedaccord.core.errors import DataError, FedAccordError, SettingsError, first_line
from fedaccord.core.modules import described
from fedaccord.core.protocols import Method
from fedaccord.core.records import ClientData, Examples, LossFunction, Metric, Prepare
from fedaccord.core.seeds import global_seed, numpy_generator
from fedaccord.core.travel import ALL, TRAINABLE, Travels, travel_of
from fedaccord.data import partition
from fedaccord.data.prepare import Pixels, as_stored
from fedaccord.data.sets import Data, DataSet, as_examples
from fedaccord.methods.registry import find
from fedaccord.metrics import metrics_of
from fedaccord.runtime.alone import those_who_train
from fedaccord.runtime.checks import check_model
from fedaccord.server.steps import with_server_steps
from fedaccord.tasks import Task

T = TypeVar("T")

READY_BYTES = 2**30
"""Inputs that are the same in every step are held as the floats that the model sees if those take no more than this."""


@dataclass(frozen=True)
class Parts:
    """All that an experiment is built from: what the server has, and what each client of this machine has."""

    settings: Settings  # nothing left open
    method: Method  # with the server's steps
    model: nn.Module  # holds w_1
    prepare: Prepare
    clients: list[ClientData]
    validation: ClientData | None
    test: ClientData | None
    loss: LossFunction | None = None  # None: classification
    metrics: tuple[Metric, ...] = ()
    optimizer: MakeOptimizer | None = None  # None: what the settings name
    travels: Travels | None = None  # None: what the settings say
    counts: np.ndarray | None = None  # examples by client and class, where one data set was divided
    classes: tuple[str, ...] = ()
    apart: bool = False  # every client brings its own data, which nobody could compare in a real federation


OWN_TEST = 0.2
"""The share of its examples that a client sets apart for the metrics, where a part of the model is its own."""


def by_clients(settings: Settings) -> Settings:
    """Return the settings with all measuring left to the clients, as a model with parts of their own requires."""
    return replace(settings, evaluate="clients", client_test=settings.client_test or OWN_TEST)


def own_travels(predicate: Travels | None, settings: Settings) -> Travels:
    """Return the task's own predicate for what travels, unless the settings name something else."""
    return predicate if settings.travels == OWN and predicate is not None else settings.travels


def with_home_settled(task: Task, settings: Settings) -> Settings:
    """Return the settings, with all measuring left to the clients if a part of the task's model is each client's own.

    The server is then given no examples, since it could not use them.
    """
    travels = own_travels(task.travels, settings)
    if travels in (ALL, TRAINABLE):
        return settings
    model = build(task, settings)
    find(settings.method).prepare(model, settings.values())  # what a method freezes is nobody's own
    return by_clients(settings) if travel_of(model, travels).home else settings


def parts_of(task: Task, settings: Settings) -> Parts:
    """Build the parts of a simulation: the server and all clients in one place."""
    settings = with_home_settled(task, settings)
    if task.data is None:
        settings = undivided(settings)
        parts = ready(task, settings, list(range(clients_of(settings))), server_data(task, settings))
        return replace(parts, clients=those_who_train(settings, parts.clients))
    data = whole_set(task, settings)
    settings = resolve(task, settings, data)
    held, rest, owner = divide(settings, data)
    counts = None
    if data.classes:
        labels = labels_of(replace(data, train=rest))
        counts = partition.counts(owner, labels, clients_of(settings), len(data.classes))
    prepare, (train, validation, test) = prepared(task, settings, [rest, held, data.test])
    assert train is not None
    clients = those_who_train(settings, by_owner(train, owner, clients_of(settings)), train)
    parts = assembled(task, settings, prepare, clients, validation, test)
    if settings.alone and counts is not None:
        counts = counts.sum(0, keepdims=True) if settings.alone == ALL_DATA else counts[[int(settings.alone)]]
    return replace(parts, counts=counts, classes=data.classes)


def server_parts(task: Task, settings: Settings) -> Parts:
    """Build the parts of a real federation's server, which sees no client's data."""
    settings = with_home_settled(task, undivided(settings))
    return ready(task, settings, [], server_data(task, settings))


def client_parts(task: Task, settings: Settings, client: int) -> Parts:
    """Build the parts of one client of a real federation: what its machine holds is its own, and nothing is divided."""
    settings = with_home_settled(task, undivided(settings))
    return ready(task, settings, [client], (None, None))


def ready(
    task: Task, settings: Settings, clients: Sequence[int], server: tuple[ClientData | None, ClientData | None]
) -> Parts:
    """Build parts from these clients' own data and the server's sets."""
    prepare, sets = prepared(task, settings, [*server, *(my_data(task, settings, client) for client in clients)])
    validation, test, *own = sets
    parts = assembled(task, settings, prepare, [each for each in own if each is not None], validation, test)
    return replace(parts, apart=True)


def assembled(
    task: Task,
    settings: Settings,
    prepare: Prepare,
    clients: list[ClientData],
    validation: ClientData | None,
    test: ClientData | None,
) -> Parts:
    """Join a task's model, method, loss and metrics with this data."""
    method = with_server_steps(find(settings.method), settings.values())
    metrics = metrics_of(task.metrics, task.loss, task.better)
    if settings.metrics:
        metrics = metrics_of(settings.metrics, task.loss, known=metrics)
    return Parts(
        settings,
        method,
        build(task, settings),
        prepare,
        clients,
        validation,
        test,
        task.loss,
        metrics,
        None if isinstance(task.optimizer, str) else task.optimizer,
        task.travels,
    )


def undivided(settings: Settings) -> Settings:
    """Return the settings for clients that bring their own data, so that there is nothing to split."""
    return replace(settings, clients=clients_of(settings), split="natural", augment=bool(settings.augment))


def clients_of(settings: Settings) -> int:
    if settings.clients is None:
        raise SettingsError("clients: say how many clients bring their own data, such as clients = 3")
    return settings.clients


def my_data(task: Task, settings: Settings, client: int) -> ClientData:
    """Load what this client holds; for a task that has only `data`, the training part of whatever that loads here."""
    given: Data
    if task.load_my_data is not None:
        given = loaded(f"load_my_data({client})", task.load_my_data, client)
    else:
        given = data_set(task).train
    return as_given(task, settings, given, f"the data of client {client}")


def as_given(task: Task, settings: Settings, data: Data, label: str) -> ClientData:
    """Check what a function of the task returned, and bring it into one form."""
    return as_examples(data, label, task.loss is None, task.collate, settings.readers)


def whole_set(task: Task, settings: Settings) -> DataSet:
    """Load the data set that is to be divided, and check it."""
    data = data_set(task)
    train = as_given(task, settings, data.train, f"{task.name}, training data")
    test = as_given(task, settings, data.test, f"{task.name}, test data")
    found = replace(data, train=train, test=test, classes=names_of(data.classes))
    if found.classes:
        for each, label in ((train, "training data"), (test, "test data")):
            if isinstance(each, Examples):
                check_labels(each.targets, len(found.classes), f"{task.name}, {label}")
    if data.owner is not None:
        owner = np.asarray(data.owner)
        if owner.shape != (len(train),):
            raise DataError(
                f"{task.name}: DataSet.owner must say of each of the {len(train):,} training examples whom it came "
                f"from; it is of shape {owner.shape}"
            )
        found = replace(found, owner=owner)
    return found


def names_of(classes: Any) -> tuple[str, ...]:
    """Return the names of a DataSet's classes; raise DataError unless they are a tuple or list of names, or ()."""
    if not isinstance(classes, tuple | list):
        raise DataError(f"DataSet.classes: expected the names of the classes, or () for none, not {described(classes)}")
    return tuple(map(str, classes))


def check_labels(targets: Batch, classes: int, label: str) -> None:
    """Raise DataError unless targets are one class number each, from 0 to below the number of classes."""
    hint = "give classes=() if these are no class numbers"
    if not isinstance(targets, Tensor) or targets.dim() != 1 or targets.is_floating_point():
        has = f"shape {tuple(targets.shape)}" if isinstance(targets, Tensor) else described(targets)
        raise DataError(f"{label}: with {classes} classes, targets must be one class number each, not {has}; {hint}")
    if len(targets) and not 0 <= int(targets.min()) <= int(targets.max()) < classes:
        raise DataError(
            f"{label}: targets go from {int(targets.min())} to {int(targets.max())}, but the {classes} classes are "
            f"numbered from 0 to {classes - 1}; {hint}"
        )


def data_set(task: Task) -> DataSet:
    """Return what the task's `data` gives; raise DataError unless it is a DataSet."""
    data = loaded("data()", task.data_set)
    if not isinstance(data, DataSet):
        raise DataError(
            f"the task's data() gives {described(data)}, expected fedaccord.DataSet(train, test, classes), with train "
            "and test each a pair (inputs, targets) or a Dataset"
        )
    return data


def example_of(task: Task, settings: Settings) -> Examples:
    """Return two of the task's examples; if clients bring their own data, two of the first client's."""
    held = my_data(task, settings, 0) if task.data is None else whole_set(task, settings).train
    two: Examples = held[:2]
    return two


def server_data(task: Task, settings: Settings) -> tuple[ClientData | None, ClientData | None]:
    """Load the server's validation and test set; without load_server_data, from what `data` loads on its machine."""
    validation: Data | None
    test: Data | None
    if task.load_server_data is not None:
        given = loaded("load_server_data()", task.load_server_data)
        if not (isinstance(given, tuple | list) and len(given) == 2):
            raise DataError(
                f"the task's load_server_data() gives {described(given)}, expected (validation, test), either of which "
                "may be None"
            )
        validation, test = given
    elif task.data is not None:
        data = whole_set(task, settings)
        held = hold_out(settings, labels_of(data)) if settings.evaluate == "server" else None
        return (None if held is None else data.train.part(held)), data.test
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
        None if validation is None else as_given(task, settings, validation, "the server's validation set"),
        None if test is None else as_given(task, settings, test, "the server's test set"),
    )


def loaded(name: str, load: Callable[..., T], *arguments: Any) -> T:
    """Call a task's own function and return its result; if it fails, raise DataError with one line on which and why."""
    try:
        return load(*arguments)
    except FedAccordError:
        raise
    except Exception as error:  # whatever a user's code raises
        raise DataError(f"the task's {name} failed: {type(error).__name__}: {first_line(error)}") from error


def build(task: Task, settings: Settings) -> nn.Module:
    """Build the task's model, with the same first parameters wherever it is built."""
    with global_seed(settings.seed, "init"):
        model = loaded("model()", task.build_model, settings.width)
    if not isinstance(model, nn.Module):
        raise DataError(f"the task's model() gives {described(model)}, expected a torch.nn.Module")
    return model


def fitting_model(task: Task, settings: Settings) -> tuple[nn.Module, Batch]:
    """Build the task's model, and two inputs as it sees them; raise an error of one line if they do not fit."""
    data, model = example_of(task, settings), build(task, settings)
    check_model(model, [data], [], task.prepare, task.loss, torch.device("cpu"), settings.seed)
    return model, task.prepare(data.inputs, None)


def prepared(
    task: Task, settings: Settings, sets: Sequence[ClientData | None]
) -> tuple[Prepare, list[ClientData | None]]:
    """Prepare inputs that are the same floats in every step once, if they fit in memory.

    Return what is left to prepare, and the sets.
    """
    prepare, there = task.prepare, [each for each in sets if each is not None]
    if settings.augment:
        if not isinstance(prepare, Pixels) or any(each[:1].inputs.dim() != 4 for each in there):
            raise SettingsError(f"augment = true: the inputs of task {task.name} are not pictures")
        return replace(prepare, augment=True), list(sets)
    held = [each for each in there if isinstance(each, Examples)]
    if not isinstance(prepare, Pixels) or len(held) < len(there):
        return prepare, list(sets)
    if sum(4 * each.inputs.numel() for each in held) > READY_BYTES:
        return prepare, list(sets)
    made = [Examples(prepare(each.inputs, None), each.targets) if isinstance(each, Examples) else None for each in sets]
    return as_stored, list(made)


def resolve(task: Task, settings: Settings, data: DataSet) -> Settings:
    """Fill in the settings that were left open and follow from the data."""
    clients = settings.clients
    if settings.split == "natural" and data.owner is not None:
        natural = len(np.unique(data.owner))
        clients = natural if clients is None else clients
        if clients > natural:
            raise SettingsError(
                f"clients = {clients}: the data of {task.name} came from {natural} owners; give at most that many"
            )
    return replace(settings, clients=10 if clients is None else clients, augment=bool(settings.augment))


def divide(settings: Settings, data: DataSet) -> tuple[ClientData | None, ClientData, np.ndarray]:
    """Return the server's set, which is taken out first, the clients' examples, and the owner of each of these."""
    if not data.classes and settings.split not in ("iid", "quantity", "natural", "sorted"):
        raise SettingsError(
            f"split = {settings.split}: goes by class, and this data has none; iid, quantity, sorted or natural"
        )
    labels, natural = labels_of(data), data.owner
    train, validation = data.train, None
    if settings.evaluate == "server":
        held = hold_out(settings, labels)
        if settings.split == "natural" and natural is not None:
            held = without_anybodys_last(held, natural)
        rest = np.setdiff1d(np.arange(len(labels)), held)
        train, validation, labels = data.train.part(rest), data.train.part(held), labels[rest]
        natural = None if natural is None else natural[rest]
    assert settings.clients is not None  # resolved
    if settings.split == "sorted":
        labels = numbers_of(train)
    split = partition.Split(
        settings.split,
        settings.clients,
        settings.classes_per_client,
        settings.alpha,
        settings.shards_per_client,
        settings.allow_empty,
        settings.min_examples,
    )
    return validation, train, partition.partition(split, labels, numpy_generator(settings.seed, "split"), natural)


def numbers_of(train: ClientData) -> np.ndarray:
    """Return the targets to sort by; raise SettingsError unless they are one number each, in memory."""
    targets = train.targets if isinstance(train, Examples) else None
    if not isinstance(targets, Tensor) or targets[:1].numel() != 1:
        raise SettingsError("split = sorted: wants targets of one number each, in memory")
    numbers: np.ndarray = targets.reshape(-1).numpy()
    return numbers


def labels_of(data: DataSet) -> np.ndarray:
    """Return the class of each training example; in data without classes, all are of the same one."""
    if not data.classes:
        return np.zeros(len(data.train), np.int64)
    if not isinstance(data.train, Examples):
        raise DataError("a data set with classes must fit in memory; with classes=() it is divided without them")
    labels: np.ndarray = data.train.targets.numpy()
    return labels


def hold_out(settings: Settings, labels: np.ndarray) -> np.ndarray:
    """Choose the examples that the server keeps to measure L_t on; return their numbers."""
    if settings.validation_per_class == 0:
        raise SettingsError(
            "validation_per_class = 0: the server has nothing to measure L_t on: set it above 0, or evaluate = clients"
        )
    return partition.hold_out(labels, settings.validation_per_class, numpy_generator(settings.seed, "validation"))


def without_anybodys_last(held: np.ndarray, owner: np.ndarray) -> np.ndarray:
    """Give one example back to every owner from whom the server would take all."""
    all_of, taken = np.unique(owner, return_counts=True), np.unique(owner[held], return_counts=True)
    had = dict(zip(*all_of, strict=True))
    emptied = [each for each, count in zip(*taken, strict=True) if had[each] == count]
    back = [held[owner[held] == each][0] for each in emptied]
    return np.setdiff1d(held, back)


def by_owner(train: ClientData, owner: np.ndarray, clients: int) -> list[ClientData]:
    """Sort the examples by client once, and return each client's as a slice of the sorted tensors, not a copy."""
    ordered = train.part(np.argsort(owner, kind="stable"))
    ends = np.cumsum(np.bincount(owner, minlength=clients)).tolist()
    return [ordered.part(slice(first, last)) for first, last in zip([0, *ends[:-1]], ends, strict=True)]
