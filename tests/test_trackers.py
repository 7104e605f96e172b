"""What a run leaves besides its log; also after a stop between log line and checkpoint."""

import csv
import json

import pytest

from fedaccord import config
from fedaccord.core.errors import SettingsError, in_short
from fedaccord.core.records import RoundLog
from fedaccord.runtime.build import from_task
from fedaccord.runtime.drive import drive
from fedaccord.runtime.folder import RunFolder
from fedaccord.runtime.live import View
from fedaccord.runtime.trackers import CsvTracker, Fallible, figures
from fedaccord.tasks import find_task


def run_to(path, rounds, **settings):
    """Start, or go on, to so many rounds of digits with a tuner."""
    task = find_task("digits")
    own = {"task": "digits", "method": "FA+AH", "rounds": rounds, "test_every": 2, "engine": "serial", **settings}
    simulation = from_task(task, config.make(task.defaults("non-iid"), own, {"steps": 2}))
    with RunFolder(path) if path.exists() else RunFolder.create(path, simulation.settings) as folder:
        return drive(simulation, folder, None).rounds


@pytest.fixture
def stopped(tmp_path):
    """A run of six rounds whose last checkpoint is of round 3, as after a kill in round 6."""

    def make(**settings):
        path = tmp_path / "run"
        run_to(path, 3, checkpoint_every=10, **settings)
        kept = {file.name: file.read_bytes() for file in (path / "checkpoints").iterdir()}
        logs = run_to(path, 5, checkpoint_every=10, **settings)
        for file in (path / "checkpoints").iterdir():
            file.unlink()
        for name, data in kept.items():
            (path / "checkpoints" / name).write_bytes(data)
        assert len(logs) == 5
        return path, run_to(path, 6, checkpoint_every=10, **settings)

    return make


@pytest.mark.slow
def test_the_csv_has_a_line_a_round_also_after_a_kill(stopped):
    path, logs = stopped()
    with open(path / "rounds.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [int(line["round"]) for line in lines] == [1, 2, 3, 4, 5, 6]
    for line, log in zip(lines, logs, strict=True):
        assert float(line["loss"]) == log.loss
        assert line["accuracy"] == (str(log.metrics["accuracy"]) if log.metrics else "")
        assert float(line["hyper/lr"]) == log.hyper["lr"]
        assert float(line["tuner_mean/lr"]) == log.policy["mean"]["lr"]


def test_the_csv_gets_a_column_for_a_figure_that_comes_later(tmp_path):
    """Nobody counted in round 1, so it has no step; the metric is measured in round 2 for the first time."""
    with RunFolder.create(tmp_path / "run", config.make({})) as folder:
        tracker = CsvTracker(folder, ["accuracy"])
        tracker.begin([RoundLog(1, {"lr": 0.5}, [0], [], 1.0, {}, None, {}, "skipped", {})])
        tracker.show(RoundLog(2, {"lr": 0.5}, [0], [], 0.5, {"accuracy": 0.75}, 0.5, {}, None, {}, step_norm=2.0))
        tracker.end()
    with open(tmp_path / "run" / "rounds.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [(line["round"], line["loss"], line["accuracy"], line["step_norm"]) for line in lines] == [
        ("1", "1.0", "", ""),
        ("2", "0.5", "0.75", "2.0"),
    ]


@pytest.mark.parametrize(("mean", "shown"), [({"lr": 0.1, "note": "x"}, {"tuner_mean/lr": 0.1}), (0.5, {})])
def test_a_policy_of_ones_own_may_report_anything_as_its_mean(mean, shown):
    log = RoundLog(1, {}, [0], [], 1.0, {}, 0.1, {"mean": mean}, None, {})
    assert {name: value for name, value in figures(log).items() if "mean" in name} == shown


class Broken(View):
    """A tracker whose server is not there, from the step of this name on."""

    def __init__(self, step):
        self.step = step

    def begin(self, done):
        if self.step == "begin":
            raise ValueError("no such address")

    def show(self, log):
        if log.round == 2:
            raise ConnectionError("it went away")


def test_a_tracker_that_fails_at_first_is_an_error_and_later_on_is_left_out(capsys):
    with pytest.raises(SettingsError, match="mlflow: ValueError: no such address"):
        Fallible("mlflow", lambda: Broken("begin")).begin([])
    tracker = Fallible("mlflow", lambda: Broken("show"))
    for log in (RoundLog(t, {}, [0], [], 1.0, {}, 0.1, {}, None, {}) for t in (1, 2, 3)):
        tracker.show(log)
    tracker.end()
    said = "mlflow is left out from here on: ConnectionError: it went away"
    assert capsys.readouterr().err == f"fedaccord: warning: {said}\n"


def test_a_long_error_keeps_its_beginning_and_its_end():
    error = ValueError("no run\n" + "of this name " * 100 + "\nask for another")
    assert in_short(error).startswith("ValueError: no run of this name")
    assert in_short(error).endswith("ask for another")
    assert len(in_short(error)) == len("ValueError: ") + 400 + len(" ... ")
    assert in_short(ValueError()) == "ValueError"


@pytest.mark.slow
def test_tensorboard_has_every_round_once(stopped):
    pytest.importorskip("tensorboardX")
    path, logs = stopped(tensorboard=True)
    # read by the format's own rules, as TensorBoard does: a start with a step hides what came at or after it before
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    found: dict[int, float] = {}
    for file in sorted((path / "tensorboard").iterdir()):
        for record in records(file.read_bytes()):
            event = Event.FromString(record)
            if event.session_log.status == SessionLog.START:
                found = {step: loss for step, loss in found.items() if step < event.step}
            for value in event.summary.value:
                if value.tag == "loss":
                    assert event.step not in found
                    found[event.step] = value.simple_value
    assert found == pytest.approx({log.round: log.loss for log in logs})


def records(data):
    """The TFRecord frames: length (8 bytes), its checksum (4), the record, its checksum (4)."""
    while data:
        size = int.from_bytes(data[:8], "little")
        yield data[12 : 12 + size]
        data = data[16 + size :]


@pytest.mark.slow
@pytest.mark.anywhere
@pytest.mark.filterwarnings("ignore")  # of the library's own making
def test_mlflow_has_every_round_once(stopped, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    path, logs = stopped(mlflow=True)
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{path / 'mlflow.db'}")
    (run,) = client.search_runs([client.get_experiment_by_name("fedaccord").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["method"] == "FA+AH"
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [(metric.step, metric.value) for metric in sorted(history, key=lambda m: m.step)] == [
        (log.round, log.loss) for log in logs
    ]


@pytest.mark.slow
@pytest.mark.anywhere
@pytest.mark.filterwarnings("ignore")  # of the library's own making
def test_wandb_offline_has_every_round_once(stopped, monkeypatch):
    """Read back from the file that `wandb sync` would send: of the three processes only the last one's is there."""
    wandb = pytest.importorskip("wandb")
    for name in ("WANDB_MODE", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    path, logs = stopped(wandb=True)
    wandb.teardown()  # as at a process's end: until then its writer may still hold the last lines
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    (file,) = (path / "wandb").glob("offline-run-*/*.wandb")
    store = DataStore()
    store.open_for_scan(str(file))
    written = [Record.FromString(data) for data in iter(store.scan_data, None)]
    (run,) = [record.run for record in written if record.WhichOneof("record_type") == "run"]
    assert run.project == "fedaccord"
    assert run.host == ""  # neither the machine's name nor its hardware
    assert {item.key: json.loads(item.value_json) for item in run.config.update}["method"] == "FA+AH"
    rows = [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in written
        if record.WhichOneof("record_type") == "history"
    ]
    assert [(row["_step"], row["loss"]) for row in rows] == [(log.round, log.loss) for log in logs]
    assert [row["hyper/lr"] for row in rows] == [log.hyper["lr"] for log in logs]
