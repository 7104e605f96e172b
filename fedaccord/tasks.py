"""Tasks, each with its data, split, model and baseline schedule: defined once, run on every engine; and the presets."""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from fedaccord import config
from fedaccord.client.optimizers import MakeOptimizer
from fedaccord.config import Settings
from fedaccord.core.errors import SettingsError
from fedaccord.core.modules import load_variable
from fedaccord.core.records import LossFunction, Prepare
from fedaccord.core.travel import Travels
from fedaccord.data import cifar10, digits, fashion_mnist, mnist, own, shakespeare, speech_commands, tabular
from fedaccord.data.lazy import Collate
from fedaccord.data.prepare import Pixels, as_stored
from fedaccord.data.sets import Data, DataSet
from fedaccord.metrics import Metrics
from fedaccord.models import CharacterGru, cifar_cnn, kws_cnn, lenet, mnist_mlp

ALIKE = ("iid", "quantity")
"""Splits that give all clients similar shares of classes: they use a task's iid schedule, others its non-iid one."""


def no_model() -> nn.Module:
    raise SettingsError("this task has no model: Task(..., model=YourModule)")


@dataclass(frozen=True)
class Task:
    """What is trained, and on which data: one data set to be divided, the clients' own data, or both.

    data              one data set, to be divided among the clients as the settings say: a simulation
    load_my_data      client number -> what that client holds; called on the client's own machine, nothing is divided
    load_server_data  the server's validation and test set, where there is no `data`; either may be None
    loss              loss(output, targets), the mean over a batch; None: classification (Eq. 8 where clients differ)
    metrics           what is measured on the test set: names, or name -> function(outputs, targets) or Metric; None:
                      accuracy, or the loss
    better            the metric to judge by, where it is not the first
    optimizer         (weights, lr=rate) -> a torch optimizer, such as torch.optim.AdamW; None: what the settings name
    travels           (name, tensor) -> whether it is sent and averaged; None: what the settings say (all)
    collate           a list of a Dataset's items -> (inputs, targets) of a batch; None: they are stacked

    `settings` are the task's defaults, `schedule` its tuned baseline for "iid" and "non-iid" clients.
    """

    name: str
    data: Callable[[], DataSet] | None = None
    model: Callable[..., nn.Module] = no_model
    prepare: Prepare = as_stored
    settings: Mapping[str, Any] = field(default_factory=dict)
    schedule: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    loss: LossFunction | None = None
    metrics: Metrics | None = None
    better: str | None = None
    load_my_data: Callable[[int], Data] | None = None
    load_server_data: Callable[[], tuple[Data | None, Data | None]] | None = None
    collate: Collate | None = None
    optimizer: str | MakeOptimizer | None = None
    travels: Travels | None = None

    def __post_init__(self) -> None:
        if self.data is None and self.load_my_data is None:
            raise SettingsError(f"task {self.name}: give it data (to be divided) or load_my_data (a client's own)")

    def defaults(self, split: str) -> dict[str, Any]:
        """Return the values that this task gives to settings for which the user gives none."""
        own = {"split": "natural"} if self.data is None else {}
        for name, value in (("optimizer", self.optimizer), ("travels", self.travels)):
            own |= {} if value is None else {name: value if isinstance(value, str) else config.OWN}
        return {**own, **self.settings, **self.schedule.get("iid" if split in ALIKE else "non-iid", {})}

    def resolved(self, **own: Any) -> Settings:
        """Return the task's settings, with these values in place of its defaults."""
        split = own.get("split", self.settings.get("split", "non-iid"))
        return config.make(self.defaults(split), {"task": self.name}, own)

    def data_set(self) -> DataSet:
        """Load the data set that is to be divided; raise SettingsError if the task has none."""
        if self.data is None:
            raise SettingsError(f"task {self.name}: every client brings its own data, there is no data set to divide")
        return self.data()

    def build_model(self, width: int) -> nn.Module:
        if width and "width" not in inspect.signature(self.model).parameters:
            raise SettingsError(f"width = {width}: the network of task {self.name} has no width to set")
        return self.model(width=width) if width else self.model()


def table_mlp(inputs: int, outputs: int, width: int = 32) -> nn.Module:
    """Build a network with one hidden layer, for a small table."""
    return nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, outputs))


def squared_error(output: Tensor, targets: Tensor) -> Tensor:
    """Return half the mean squared error, for outputs (examples, 1) and targets (examples,)."""
    return mse_loss(output.squeeze(1), targets) / 2


MNIST_SCHEDULE = {
    "iid": {"rounds": 200, "lr": 0.3, "lr_decay": 0.985, "steps": 50},
    "non-iid": {"rounds": 400, "lr": 0.2, "lr_decay": 0.995, "steps": 5},
}

NAMED = {"entropy_weight": 1.0}
"""Defaults that several presets share: the paper's tables show accuracy, so the entropy term is on for any split."""

PRESETS = {
    task.name: task
    for task in (
        Task(
            "digits",
            digits.load,
            lambda: mnist_mlp(inputs=64, hidden=64),
            Pixels((0.3053,), (0.3760,)),
            {**NAMED, "rounds": 150, "validation_per_class": 10, "batch_size": 32, "test_every": 1},
            {
                "iid": {"lr": 0.3, "lr_decay": 0.99, "steps": 10},
                "non-iid": {"lr": 0.2, "lr_decay": 0.99, "steps": 10},
            },
        ),
        Task("mnist", mnist.load, mnist_mlp, Pixels((0.1307,), (0.3081,)), NAMED, MNIST_SCHEDULE),
        Task("fashion_mnist", fashion_mnist.load, mnist_mlp, Pixels((0.2860,), (0.3530,)), NAMED, MNIST_SCHEDULE),
        Task(
            "cifar10",
            cifar10.load,
            cifar_cnn,
            Pixels((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
            {**NAMED, "rounds": 200, "augment": True, "init": "he"},
            {
                "iid": {"lr": 0.05, "lr_decay": 0.99, "steps": 30},
                "non-iid": {"lr": 0.05, "lr_decay": 0.99, "steps": 10},
            },
        ),
        Task(
            "cifar10_lenet",  # as in NIID-Bench: pixels from 0 to 1, torch's default initialisation, no entropy term
            cifar10.load,
            lenet,
            Pixels((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
            {
                "rounds": 50,
                "augment": True,
                "entropy_weight": 0.0,
                "lr": 0.01,
                "momentum": 0.9,
                "weight_decay": 1e-5,
                "steps": 100,
            },
        ),
        Task(
            "kws",
            speech_commands.load,
            kws_cnn,
            Pixels((0.5,), (0.25,)),
            {**NAMED, "rounds": 200, "init": "he"},
            {
                "iid": {"lr": 0.2, "lr_decay": 0.99, "steps": 20},
                "non-iid": {"lr": 0.05, "lr_decay": 0.99, "steps": 10},
            },
        ),
        Task(
            "shakespeare",
            shakespeare.load,
            partial(CharacterGru, shakespeare.TOKENS),
            settings={
                "split": "natural",
                "fraction": 10 / 715,  # as in Reddi et al. 2021
                "rounds": 1200,
                "batch_size": 16,
                "validation_per_class": 256,
                "test_every": 20,
                "lr": 1.0,
                "steps": 10,
                "entropy_weight": 0.0,  # each role has most of the characters
            },
            metrics="accuracy, bits",
        ),
        Task(
            "diabetes",
            tabular.diabetes,
            partial(table_mlp, 10, 1),
            settings={"split": "sorted", "rounds": 100, "batch_size": 32, "lr": 0.05, "steps": 5},
            loss=squared_error,
            metrics="r2, mae",
        ),
        Task(
            "breast_cancer",
            tabular.breast_cancer,
            partial(table_mlp, 30, 2),
            settings={
                "split": "sorted",
                "rounds": 100,
                "batch_size": 32,
                "validation_per_class": 20,
                "lr": 0.1,
                "steps": 5,
            },
            metrics="accuracy, auc",
        ),
    )
}


def find_task(name: str, image_size: int = 0) -> Task:
    """Return a preset by its name, or a task from a folder of pictures, an .npz file, or a Python file's variable."""
    name = "kws" if name == "speech_commands" else name
    if name in PRESETS:
        return PRESETS[name]
    file, colon, variable = name.rpartition(":")
    if colon and file.endswith(".py"):
        found: Task = load_variable(Path(file), variable, Task, "a fedaccord.Task")
        return found
    path = Path(name)
    if path.is_dir():
        return from_data(name, lambda: own.load_folder(path, image_size))
    if path.suffix == ".npz" and path.is_file():
        return from_data(name, lambda: own.load_npz(path))
    if path.suffix == ".npz" or path.is_absolute():
        raise SettingsError(f"{name}: there is no such file or folder (any more)")
    if path.suffix == ".py":
        raise SettingsError(f"{name}: say which variable of the file is the task, such as {name}:task")
    raise SettingsError(
        f"unknown task '{name}': expected {', '.join(PRESETS)}, a folder of pictures by class, an .npz file, "
        "or file.py:name"
    )


def from_data(name: str, load: Callable[[], DataSet]) -> Task:
    """Build a task from data alone, with a network that suits its shape; pixels are scaled by their own mean."""
    data = load()
    inputs = data.train.inputs
    prepare: Prepare = as_stored
    if inputs.dtype == torch.uint8 and inputs.dim() == 4:
        prepare = Pixels(*spread(inputs))
    classes = len(data.classes)

    def model() -> nn.Module:
        side = inputs.shape[-1]
        if inputs.dim() == 4 and inputs.shape[2] == side and side >= 16 and side % 4 == 0:
            return cifar_cnn(inputs.shape[1], side, classes)
        return mnist_mlp(inputs=inputs[0].numel(), classes=classes)

    if inputs.dtype == torch.uint8 and inputs.dim() != 4:
        raise SettingsError(f"{name}: uint8 inputs must be pictures (examples, channels, height, width); give floats")
    return Task(name, lambda: data, model, prepare, {"validation_per_class": 10})


def spread(pixels: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and deviation of uint8 pictures by channel, scaled to 1, without a copy of them in floats."""
    value = torch.arange(256, dtype=torch.float64) / 255
    found = []
    for number in range(pixels.shape[1]):
        counts = torch.zeros(256, dtype=torch.float64)
        for some in pixels[:, number].split(1000):
            counts += torch.bincount(some.flatten(), minlength=256)
        mean = float(counts @ value / counts.sum())
        square = float(counts @ (value - mean) ** 2 / max(1, float(counts.sum()) - 1))
        found.append((mean, math.sqrt(square) + 1e-6))
    means, deviations = zip(*found, strict=True)
    return means, deviations
