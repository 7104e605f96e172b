"""`federate`: train any PyTorch model on data that several clients hold, from Python."""

import copy
import warnings
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from fedaccord import config
from fedaccord.client.optimizers import MakeOptimizer
from fedaccord.config import RECOMMENDED, Settings
from fedaccord.core.algorithm import handed_out, measuring
from fedaccord.core.errors import DataError, FedAccordWarning, SettingsError
from fedaccord.core.modules import described
from fedaccord.core.params import load_params, read_params
from fedaccord.core.protocols import Method, Part
from fedaccord.core.records import ClientData, LossFunction, Metric, Params, Prepare, RoundLog, ServerState
from fedaccord.core.travel import Travels
from fedaccord.data.lazy import Collate, LazyExamples
from fedaccord.data.prepare import as_stored
from fedaccord.data.sets import Data, as_examples, check_columns, columns_of
from fedaccord.methods.registry import as_method
from fedaccord.metrics import Metrics, metrics_of
from fedaccord.runtime.build import simulation_of
from fedaccord.runtime.chart import curves
from fedaccord.runtime.classes import ByClass, write_classes
from fedaccord.runtime.drive import drive
from fedaccord.runtime.folder import SETTINGS, RunFolder, read_raw
from fedaccord.runtime.live import choose
from fedaccord.runtime.parts import Parts
from fedaccord.runtime.trackers import figures
from fedaccord.server.steps import with_server_steps

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


@dataclass(frozen=True, repr=False)
class History:
    """The result of a run: the trained model and a record of every round, with methods to save and to show them."""

    model: nn.Module
    rounds: list[RoundLog]
    settings: Settings
    state: ServerState
    about: str  # the run's fingerprint, by which a run folder recognises it
    metrics: tuple[Metric, ...] = ()  # those that were measured, the one to judge by first
    fixed: Params = field(default_factory=dict)  # the part of the model that does not travel and never changes
    classes: ByClass | None = None  # labels and test results by class
    code: dict[str, str] = field(default_factory=dict)  # the package's version, and hashes of the user's own code
    stopped: bool = False  # whether Ctrl-C or SIGTERM ended the run before its last round

    def __repr__(self) -> str:
        """Summarise the run in one line; its whole log would fill the screen."""
        last = self.rounds[-1] if self.rounds else None
        measured = next((log.metrics for log in reversed(self.rounds) if log.metrics), {})
        loss = {} if last is None or last.loss is None else {"loss": last.loss}
        figures = "".join(f", {name} {value:.4g}" for name, value in {**measured, **loss}.items())
        return (
            f"<History of {self.settings.method}: {len(self.rounds)} rounds, {self.settings.clients} clients{figures}>"
        )

    def save(self, path: str | Path) -> Path:
        """Write a run folder (settings, rounds, final checkpoint).

        It lacks what the clients kept to themselves, which only a run with `folder=` saves.
        """
        with RunFolder.create(Path(path), self.settings) as folder:
            folder.describe(self.metrics)
            folder.keep(self.fixed)
            folder.note_code(self.code)
            write_classes(folder.path, self.classes)
            for log in self.rounds:
                folder.append(log)
            folder.save(self.state, about=self.about)
        return folder.path

    def plot(self) -> "Figure":
        """Draw loss and test metrics by round; a notebook shows the figure, and `.savefig(path)` writes it."""
        return curves(self.rounds, self.metrics)

    def to_pandas(self) -> "DataFrame":
        """Return a DataFrame with one row for each round and the figures of rounds.csv as columns."""
        try:
            import pandas
        except ImportError:
            raise SettingsError("to_pandas needs the notebook extra: pip install 'fedaccord[notebook]'") from None
        rounds = pandas.Index([log.round for log in self.rounds], name="round")
        return pandas.DataFrame([figures(log) for log in self.rounds], index=rounds)


def own_function(name: str, given: Any, expected: str) -> Any:
    """Return a user's function, or None if a text was given; raise SettingsError if it is neither."""
    if isinstance(given, str):
        return None
    if not callable(given):
        raise SettingsError(f"{name}: expected {expected}, not {type(given).__name__}")
    return given


def each_client(clients: Any) -> list[Any]:
    """Return the clients' data, one entry each; raise DataError for a single data set or a pair of tensors."""
    single = isinstance(clients, Dataset | DataLoader | Tensor | str) or not isinstance(clients, Iterable)
    pair = isinstance(clients, tuple | list) and any(isinstance(each, Tensor | np.ndarray) for each in clients)
    pair = pair or (isinstance(clients, tuple) and len(clients) == 2 and any(map(columns_of, clients)))
    if single or pair or isinstance(clients, dict) or columns_of(clients):
        raise DataError(
            f"clients: got {described(clients)}, expected a list with one entry for each client: [(inputs, targets), "
            "(inputs, targets), ...], or of Datasets"
        )
    if not (found := list(clients)):
        raise DataError("federate needs at least one client")
    return found


def federate(
    model: nn.Module,
    clients: Sequence[Data],
    validation: Data | None = None,
    test: Data | None = None,
    method: str | Method | Part = RECOMMENDED,
    rounds: int = 100,
    fraction: float = 1.0,
    seed: int = 0,
    *,
    loss: LossFunction | None = None,
    metrics: Metrics | None = None,
    better: str | None = None,
    prepare: Prepare = as_stored,
    collate: Collate | None = None,
    optimizer: str | MakeOptimizer = "sgd",
    travels: Travels = "all",
    folder: str | Path | None = None,
    anyway: bool = False,
    show: bool = False,
    **settings: Any,
) -> History:
    """Train `model` on the clients' data; every default works without tuning.

    model       any torch.nn.Module; it is copied, yours stays as it is
    clients     for each client its (inputs, targets), or a map-style Dataset of such pairs, read as it is needed;
                inputs: a tensor, array or table, or several as a tuple (model(*inputs)) or dict (model(**inputs))
    validation  the server's small set, on which it measures the loss; None: the clients report theirs
    test        if given, the metrics on it are recorded as training goes on
    method      what clients and server do: a name such as FA+RM+AH, or a Method or Part of your own
    loss        loss(output, targets), the mean over a batch; None: classification (Eq. 8 where clients differ)
    metrics     what is measured on the test set: names (accuracy, f1, auc, perplexity, bits, mae, mse, r2), or name ->
                function(outputs, targets) or Metric; None: accuracy, or the loss that is given
    better      the metric to judge by, where it is not the first
    collate     a list of a Dataset's items -> (inputs, targets) of a batch; None: they are stacked
    optimizer   of the clients: sgd, one of torch.optim by name, or a function (weights, lr=rate) -> torch optimizer
    travels     what is sent and averaged: all, trainable, no-norm, names with wildcards, or (name, tensor) -> bool; the
                rest is frozen if it is not trained, and otherwise each client's own
    prepare     stored inputs -> what the model sees; gets a generator in training, None otherwise
    folder      a run folder, kept up to date every round; if it holds this run already, training goes on from there,
                with more `rounds` if you say so
    anyway      go on in that folder even if the code of the model or the loss has changed since the run began
    show        show progress: a live chart in a notebook, a picture in a terminal, plain lines elsewhere
    settings    any other setting by its name: lr, steps, batch_size, device ...
    """
    plain = loss is None
    readers = settings.get("readers", 0)

    def given(data: Data, label: str) -> ClientData:
        return as_examples(data, label, plain, collate, readers)

    if not isinstance(model, nn.Module):
        raise SettingsError(f"model: expected a torch.nn.Module, not {described(model)}")
    sets = {f"client {number}": client for number, client in enumerate(each_client(clients))}
    others = {name: held for name, held in (("validation", validation), ("test", test)) if held is not None}
    check_columns({**sets, **others})
    data = [given(client, label) for label, client in sets.items()]
    held, tested = (given(others[name], name) if name in others else None for name in ("validation", "test"))
    if collate is not None and not any(isinstance(each, LazyExamples) for each in (*data, held, tested)):
        raise SettingsError("collate: it puts a Dataset's items together, and no Dataset is given; leave it out")
    chosen = as_method(method)
    make = own_function("optimizer", optimizer, "a name or a function (weights, lr=rate) -> Optimizer")
    predicate = own_function("travels", travels, "patterns in one text, or a function (name, tensor) -> bool")
    fixed = {
        "task": "python",
        "method": chosen.name,
        "optimizer": config.OWN if make else optimizer,
        "travels": config.OWN if predicate else travels,
        "split": "natural",
        "clients": len(data),
        "rounds": rounds,
        "fraction": fraction,
        "seed": seed,
        "augment": False,
        "evaluate": "clients" if held is None else "server",
    }
    resolved = resolve(chosen, settings, fixed, folder)
    model = copy.deepcopy(model)
    judged = metrics_of(metrics, loss, better)
    whole = with_server_steps(chosen, resolved.values())
    setup = simulation_of(Parts(resolved, whole, model, prepare, data, held, tested, loss, judged, make, predicate))
    with nullcontext() if folder is None else open_folder(Path(folder), setup.settings) as place:
        outcome = drive(setup, place, choose(setup, as_json=False) if show else None, anyway=anyway)
    stopped = f"stopped after round {outcome.state.round} of {rounds}; history.stopped is True"
    for sentence in [*([stopped] if outcome.stopped else []), *outcome.warnings]:
        warnings.warn(sentence, FedAccordWarning, stacklevel=2)
    state, experiment = outcome.state, setup.experiment
    handed = handed_out(experiment, state.round, state.model, measuring(experiment), state.kept)[1]
    load_params(model, handed)
    return History(
        model.eval(), outcome.rounds, setup.settings, state, outcome.about, setup.metrics,
        read_params(model, setup.travel.fixed), outcome.classes, setup.code, outcome.stopped,
    )  # fmt: skip


OF_TASKS = (
    "alone", "alpha", "classes_per_client", "image_size", "min_examples", "shards_per_client", "validation_per_class",
    "width",
)  # fmt: skip
"""Settings that say how a task divides its data and builds its model."""
INSTEAD = "its clients, model and sets are what it is given (validation=None: the clients report their losses)"


def resolve(method: Method, asked: dict[str, Any], fixed: dict[str, Any], folder: str | Path | None) -> Settings:
    """Return a run's settings: those `asked` for by name, with lists for texts, and those that are `fixed`.

    In a run folder the entropy weight that was settled when the run began stays.
    """
    asked = {name: as_text(name, value) if isinstance(value, list | tuple) else value for name, value in asked.items()}
    before = {} if folder is None or not (Path(folder) / SETTINGS).is_file() else read_raw(Path(folder))
    settled = {name: value for name, value in before.items() if name == "entropy_weight"}
    if others := sorted({*fixed, *OF_TASKS} & asked.keys()):
        raise SettingsError(f"{others[0]}: a setting of tasks, which federate() does without: {INSTEAD}")
    # a rate that is asked for is meant for the optimizer that is asked for
    resolved = config.make(settled, {**asked, "optimizer": fixed["optimizer"]}, fixed, method=method)
    config.refuse_tuned(asked, resolved, method)
    return resolved


def as_text(name: str, values: Sequence[Any]) -> str:
    """Return the one text that a list of texts stands for: the axes of a grid, or words with commas."""
    if not all(isinstance(each, str) for each in values):
        raise SettingsError(f"{name}: expected a text or a list of texts, not {described(values)}")
    return ("; " if name == "grid" else ", ").join(values)


def open_folder(path: Path, settings: Settings) -> RunFolder:
    return RunFolder(path) if path.is_dir() and any(path.iterdir()) else RunFolder.create(path, settings)
