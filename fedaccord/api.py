"""`federate`: train any PyTorch model on data that lies with several clients, from Python."""

import copy
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from fedaccord import config
from fedaccord.client.objective import load_params
from fedaccord.config import Settings
from fedaccord.data.prepare import as_stored
from fedaccord.errors import DataError, RunError
from fedaccord.live import choose
from fedaccord.records import ClientData, Examples, Prepare, RoundLog, ServerState
from fedaccord.runs import RunFolder
from fedaccord.session import drive
from fedaccord.simulation import default_entropy_min, simulation_of

Data = Examples | tuple[Tensor, Tensor] | Dataset[Any]


@dataclass(frozen=True)
class History:
    """What a run left: the trained model, a record of every round, and the means to keep both."""

    model: nn.Module
    rounds: list[RoundLog]
    settings: Settings
    state: ServerState
    about: str  # the run's fingerprint, by which a folder knows it again

    def save(self, path: str | Path) -> Path:
        """Write a run folder (settings, rounds, final checkpoint)."""
        with RunFolder.create(Path(path), self.settings) as folder:
            for log in self.rounds:
                folder.append(log)
            folder.save(self.state, about=self.about)
        return folder.path


def federate(
    model: nn.Module,
    clients: Sequence[Data],
    validation: Data | None = None,
    test: Data | None = None,
    method: str = "FA",
    rounds: int = 100,
    fraction: float = 1.0,
    seed: int = 0,
    *,
    prepare: Prepare = as_stored,
    folder: str | Path | None = None,
    show: bool = False,
    **settings: Any,
) -> History:
    """Train `model` on the clients' data; every default works without tuning.

    model       any torch.nn.Module that maps inputs to class scores; it is copied, yours stays as it is
    clients     one (inputs, targets) pair of tensors or torch Dataset per client
    validation  the server's small set, on which it measures the loss; None: the clients report theirs
    test        if given, its accuracy is recorded as training goes on
    method      the paper's name for what clients and server do
    prepare     stored inputs -> what the model sees; gets a generator in training, None otherwise
    folder      a run folder, kept up to date every round; if it holds this run already, training goes on from there
    show        print progress
    settings    any other field of `Settings`: lr, steps, batch_size, device ...
    """
    data = [as_examples(client, f"client {number}") for number, client in enumerate(clients)]
    if not data:
        raise DataError("federate needs at least one client")
    held = None if validation is None else as_examples(validation, "validation")
    tested = None if test is None else as_examples(test, "test")
    if not any(map(len, data)):
        raise DataError("no client has any data")
    outputs = 1 + max(int(part.targets.max()) for part in (*data, held, tested) if part is not None and len(part))
    if not isinstance(settings.get("rm_layers", ""), str):
        settings["rm_layers"] = ", ".join(settings["rm_layers"])
    resolved = config.make(
        {"entropy_min": default_entropy_min(outputs)},
        settings,
        {
            "task": "python",
            "method": method,
            "split": "natural",
            "clients": len(data),
            "rounds": rounds,
            "fraction": fraction,
            "seed": seed,
            "augment": False,
            "evaluate": "clients" if held is None else "server",
        },
    )
    model = copy.deepcopy(model)
    simulation = simulation_of(resolved, model, data, held, tested, prepare)
    with nullcontext() if folder is None else open_folder(Path(folder), simulation.settings) as place:
        outcome = drive(simulation, place, choose(simulation, as_json=False) if show else None)
    load_params(model, outcome.state.params)
    return History(model.eval(), outcome.rounds, simulation.settings, outcome.state, outcome.about)


def open_folder(path: Path, settings: Settings) -> RunFolder:
    if not path.exists():
        return RunFolder.create(path, settings)
    folder = RunFolder(path)
    if folder.settings() != settings:
        folder.close()
        raise RunError(f"{path}: holds a run with other settings; choose another folder")
    return folder


def as_examples(data: Data, label: str) -> ClientData:
    """Tensors as they are; a Dataset is read once, in order, and held as tensors."""
    if isinstance(data, Examples):
        pair = (data.inputs, data.targets)
    elif isinstance(data, tuple | list):
        if len(data) != 2:
            raise DataError(f"{label}: expected a pair (inputs, targets), got {len(data)} values")
        pair = (torch.as_tensor(data[0]), torch.as_tensor(data[1]))
    else:
        items = [data[i] for i in range(len(data))]  # type: ignore[arg-type]
        if not items:
            raise DataError(f"{label}: the data set is empty")
        pair = (
            torch.stack([torch.as_tensor(item[0]) for item in items]),
            torch.tensor([int(item[1]) for item in items]),
        )
    inputs, targets = pair
    if len(inputs) != len(targets):
        raise DataError(f"{label}: {len(inputs):,} inputs but {len(targets):,} targets")
    if targets.dim() != 1 or targets.is_floating_point():
        raise DataError(f"{label}: targets must be one class number each, got {targets.dtype} {tuple(targets.shape)}")
    if len(targets) and int(targets.min()) < 0:
        raise DataError(f"{label}: a target is negative")
    return ClientData(inputs, targets.long())
