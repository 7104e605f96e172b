"""`federate`: train any PyTorch model on data that lies with several clients, from Python."""

import copy
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from fedaccord import config
from fedaccord.client.objective import load_params
from fedaccord.config import Settings
from fedaccord.core.errors import DataError, FedAccordWarning, RunError
from fedaccord.core.records import Prepare, RoundLog, ServerState
from fedaccord.data.prepare import as_stored
from fedaccord.data.sets import Data, as_examples
from fedaccord.runtime.build import simulation_of
from fedaccord.runtime.drive import drive
from fedaccord.runtime.folder import RunFolder
from fedaccord.runtime.live import choose


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
    if not isinstance(settings.get("rm_layers", ""), str):
        settings["rm_layers"] = ", ".join(settings["rm_layers"])
    resolved = config.make(
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
    for sentence in outcome.warnings:
        warnings.warn(sentence, FedAccordWarning, stacklevel=2)
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
