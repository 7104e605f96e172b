"""Where a run's figures go besides its log: a CSV file always; TensorBoard, MLflow, Weights & Biases if asked for.

All of them are views, which are told of every round, and after a resume of all rounds before. The log alone counts;
these are made from it.
"""

import contextlib
import csv
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TextIO

from fedaccord.config import Settings
from fedaccord.core.errors import FedAccordError, SettingsError, in_short
from fedaccord.core.files import cannot_be_written
from fedaccord.core.records import RoundLog
from fedaccord.runtime.folder import CSV, RunFolder
from fedaccord.runtime.live import View

MISSING = "needs the trackers extra: pip install 'fedaccord[trackers]'"


def figures(log: RoundLog) -> dict[str, float]:
    """Return the plain numbers of a round: its results, its hyper-parameters, the tuner's means, and its seconds."""
    named: dict[str, Any] = {
        "loss": log.loss,
        **log.metrics,
        "reward": log.reward,
        "clients": len(log.clients),
        "refused": len(log.refused),
        "guard": int(log.guard is not None),
        "step_norm": log.step_norm,
        **{f"hyper/{name}": value for name, value in log.hyper.items()},
        **{f"method/{name}": value for name, value in log.method.items()},
        **{f"tuner_mean/{name}": value for name, value in tuner_means(log).items()},
        **{f"seconds/{name}": value for name, value in log.seconds.items()},
    }
    return {name: value for name, value in named.items() if value is not None}


def tuner_means(log: RoundLog) -> dict[str, float]:
    """Return the numbers that a policy reports as its means; a policy of one's own may report anything by that name."""
    means = log.policy.get("mean")
    if not isinstance(means, dict):
        return {}
    return {name: value for name, value in means.items() if isinstance(value, int | float)}


class CsvTracker(View):
    """The file rounds.csv, with one line for each round, written anew from the log at every start."""

    def __init__(self, folder: RunFolder, metrics: Sequence[str]):
        self.path = folder.path / CSV
        self.file: TextIO | None = None
        self.columns = ["loss", *metrics, "reward"]

    def begin(self, done: Sequence[RoundLog]) -> None:
        try:
            self.file = open(self.path, "w", newline="", encoding="utf-8")
        except OSError as error:
            raise cannot_be_written(self.path, error) from None
        for log in done:
            self.show(log)

    def show(self, log: RoundLog) -> None:
        assert self.file is not None
        found = figures(log)
        try:
            if not found.keys() <= set(self.columns):
                self.widen(self.file, found)
            csv.writer(self.file).writerow([log.round, *(found.get(name, "") for name in self.columns)])
            self.file.flush()
        except OSError as error:
            raise cannot_be_written(self.path, error) from error

    def widen(self, file: TextIO, names: Iterable[str]) -> None:
        """Write the file anew with a column for each of these figures, which are empty in the rows of before."""
        rows: list[dict[str, str]] = []
        if file.tell():
            with open(self.path, newline="", encoding="utf-8") as before:
                rows = list(csv.DictReader(before))
            file.seek(0)
            file.truncate()
        self.columns = list(dict.fromkeys([*self.columns, *names]))
        writer = csv.DictWriter(file, ["round", *self.columns], restval="")
        writer.writeheader()
        writer.writerows(rows)

    def end(self) -> None:
        if self.file is not None:
            with contextlib.suppress(OSError):  # of a line that could not be written, which was reported
                self.file.close()


class TensorBoardTracker(View):
    """TensorBoard's event files, in the run folder's tensorboard/."""

    def __init__(self, folder: RunFolder):
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise SettingsError(f"tensorboard {MISSING}") from None
        self.make, self.path = SummaryWriter, folder.path / "tensorboard"
        self.writer: Any = None

    def begin(self, done: Sequence[RoundLog]) -> None:
        # what an earlier process wrote is hidden and written again: a killed one may not have written all of it
        self.writer = self.make(str(self.path), purge_step=1 if self.path.is_dir() else None)
        for log in done:
            self.show(log)

    def show(self, log: RoundLog) -> None:
        for name, value in figures(log).items():
            self.writer.add_scalar(name, value, log.round)

    def end(self) -> None:
        if self.writer is not None:
            self.writer.close()


class MlflowTracker(View):
    """An MLflow run, in the store that MLFLOW_TRACKING_URI names, or else in a database in the run folder."""

    def __init__(self, folder: RunFolder, settings: Mapping[str, Any]):
        try:
            from mlflow.entities import Metric
            from mlflow.tracking import MlflowClient
        except ImportError:
            raise SettingsError(f"mlflow {MISSING}") from None
        self.metric, self.settings, self.name = Metric, settings, folder.path.name
        here = f"sqlite:///{(folder.path / 'mlflow.db').resolve()}"
        self.client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or here)
        self.note = folder.path / "mlflow_run"
        self.run = ""

    def begin(self, done: Sequence[RoundLog]) -> None:
        if self.note.exists():
            self.run = self.note.read_text().strip()
        else:
            known = self.client.get_experiment_by_name("fedaccord")
            experiment = known.experiment_id if known else self.client.create_experiment("fedaccord")
            self.run = self.client.create_run(experiment, run_name=self.name).info.run_id
            self.note.write_text(self.run)
            for name, value in self.settings.items():
                self.client.log_param(self.run, name, value)
        history = self.client.get_metric_history(self.run, "clients")
        self.last = max((metric.step for metric in history), default=0)
        for log in done:
            self.show(log)

    def show(self, log: RoundLog) -> None:
        if log.round <= self.last:  # logged before a kill; a round that is run again gives the same figures
            return
        now = int(1000 * time.time())
        metrics = [self.metric(name, float(value), now, log.round) for name, value in figures(log).items()]
        self.client.log_batch(self.run, metrics)

    def end(self) -> None:
        if self.run:
            self.client.set_terminated(self.run)


class WandbTracker(View):
    """Files for `wandb sync`, in the run folder's wandb/; WANDB_MODE=online sends the figures while the run goes on."""

    def __init__(self, folder: RunFolder, settings: Mapping[str, Any]):
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # read at import: nothing unasked for is sent
        try:
            import wandb
        except ImportError:
            raise SettingsError(f"wandb {MISSING}") from None
        self.wandb, self.settings, self.folder = wandb, settings, folder.path.resolve()
        self.mode = os.environ.get("WANDB_MODE") or "offline"
        self.note = folder.path / "wandb_run"
        self.run: Any = None

    def begin(self, done: Sequence[RoundLog]) -> None:
        if not self.note.exists():
            self.note.write_text(secrets.token_hex(4))
        name = self.note.read_text().strip()
        # an offline run cannot be resumed: what an earlier process wrote is deleted, and written again as a whole
        for earlier in (self.folder / "wandb").glob(f"offline-run-*-{name}"):
            shutil.rmtree(earlier)
        off = ("disable_git", "disable_code", "x_disable_meta", "x_disable_stats", "x_disable_machine_info")
        figures_only = {"console": "off", "host": "", "x_save_requirements": False, **dict.fromkeys(off, True)}
        self.run = self.wandb.init(
            project=os.environ.get("WANDB_PROJECT") or "fedaccord",
            id=name,
            name=self.folder.name,
            dir=self.folder,
            config=dict(self.settings),
            resume="allow" if self.mode == "online" else None,
            settings={"mode": self.mode, "silent": True, **figures_only},
        )
        for log in done:
            self.show(log)

    def show(self, log: RoundLog) -> None:
        if log.round >= self.run.step:  # else it was sent before a kill, and the same figures are there already
            self.run.log(figures(log), step=log.round)

    def end(self) -> None:
        if self.run is not None:
            self.run.finish()


class Fallible(View):
    """Another program's tracker, which may fail: at first that is an error, later on the run goes on without it.

    The log has all that it misses.
    """

    def __init__(self, name: str, make: Callable[[], View]):
        self.name, self.lost = name, False
        with self.wrongly_set():
            self.tracker = make()

    def begin(self, done: Sequence[RoundLog]) -> None:
        with self.wrongly_set():
            self.tracker.begin(done)

    def show(self, log: RoundLog) -> None:
        if not self.lost:
            self.tried(lambda: self.tracker.show(log))

    def end(self) -> None:
        if not self.lost:
            self.tried(self.tracker.end)

    @contextmanager
    def wrongly_set(self) -> Iterator[None]:
        try:
            yield
        except FedAccordError:
            raise
        except Exception as error:
            raise SettingsError(f"{self.name}: {in_short(error)}") from error

    def tried(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self.lost = True
            print(f"fedaccord: warning: {self.name} is left out from here on: {in_short(error)}", file=sys.stderr)


class Together(View):
    """Several views as one."""

    def __init__(self, views: Sequence[View]):
        self.views = views

    def begin(self, done: Sequence[RoundLog]) -> None:
        for view in self.views:
            view.begin(done)

    def show(self, log: RoundLog) -> None:
        for view in self.views:
            view.show(log)

    def end(self) -> None:
        with ExitStack() as stack:  # end each of them, even if another fails
            for view in self.views:
                stack.callback(view.end)


def trackers(folder: RunFolder, settings: Settings, metrics: Sequence[str]) -> list[View]:
    """Return the trackers that the settings ask for; `metrics`: the names of those that will be measured."""
    found: list[View] = [CsvTracker(folder, metrics)]
    if settings.tensorboard:
        found.append(Fallible("tensorboard", lambda: TensorBoardTracker(folder)))
    if settings.mlflow:
        found.append(Fallible("mlflow", lambda: MlflowTracker(folder, settings.values())))
    if settings.wandb:
        found.append(Fallible("wandb", lambda: WandbTracker(folder, settings.values())))
    return found
