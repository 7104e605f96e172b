"""The best model and early stopping: on the server's set, resumable to the bit; and runs that are made longer."""

import dataclasses

import pytest
import torch
from torch import nn

from fedaccord import config, federate, load
from fedaccord.cli import main
from fedaccord.core.errors import SettingsError
from fedaccord.experiments.study import Cell, Row, done
from fedaccord.runtime.build import from_task
from fedaccord.runtime.drive import drive
from fedaccord.runtime.folder import RunFolder, read_rounds, read_settings
from fedaccord.runtime.identity import params_sha256
from fedaccord.tasks import find_task

BUMPY = {"method": "FA", "engine": "serial", "lr": 1.0, "average": False, "steps": 3, "test_every": 4}
"""Local steps that are too long: the loss on the server's set goes up and down."""
ROUNDS = 18


def finish(path, rounds=ROUNDS, **changes):
    task = find_task("digits")
    setup = from_task(task, config.make(task.defaults("non-iid"), {**BUMPY, "rounds": rounds, **changes}))
    with RunFolder(path) if path.exists() else RunFolder.create(path, setup.settings) as folder:
        return drive(setup, folder, None)


def lines(outcome, but=()):
    return [{**dataclasses.asdict(log), "seconds": 0, **dict.fromkeys(but)} for log in outcome.rounds]


@pytest.mark.slow
@pytest.mark.parametrize(("keep", "best"), [("best", min), ("accuracy", max)])
def test_the_best_round_is_found_kept_and_handed_out(tmp_path, keep, best):
    """Found again from the log: the first round with the best score. Its model is what a run that ends there has."""
    outcome = finish(tmp_path / "run", keep=keep)
    scores = [log.score for log in outcome.rounds]
    where = scores.index(best(scores)) + 1
    assert outcome.state.kept.round == outcome.rounds[-1].best == where < ROUNDS
    assert (outcome.rounds[-1].handed, outcome.waited) == ("best", 0)
    ended = finish(tmp_path / "ended", rounds=where)
    assert params_sha256(outcome.state.kept.params) == params_sha256(ended.state.params)
    assert outcome.rounds[-1].metrics == ended.rounds[-1].metrics  # on the test set, which chose nothing
    path = tmp_path / "run"
    assert params_sha256(load(path).state_dict()) == params_sha256(ended.state.params)
    assert params_sha256(load(path, which="last").state_dict()) == params_sha256(outcome.state.params)
    assert [log.score for log in ended.rounds] == [None] * where  # nobody asked


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """The run that had all its rounds from the start."""
    return finish(tmp_path_factory.mktemp("straight") / "run", keep="best", patience=12)


@pytest.mark.slow
@pytest.mark.parametrize("at", [2, 14])
def test_best_and_patience_resume_to_the_bit_also_if_the_run_is_made_longer(tmp_path, straight, at):
    """Round `at` was tested because it was the last, where a straight run tests every fourth; all else is the same."""
    finish(tmp_path / "cut", at, keep="best", patience=12)
    longer = finish(tmp_path / "cut", keep="best", patience=12)
    assert straight.waited == 12
    assert longer.state.round == straight.state.round < ROUNDS
    tested = ("metrics", "handed")
    assert lines(longer, tested) == lines(straight, tested)
    assert [log.metrics for log in longer.rounds if log.round != at] == [
        log.metrics for log in straight.rounds if log.round != at
    ]
    for one, other in ((longer.state, straight.state), (longer.state.kept, straight.state.kept)):
        assert params_sha256(one.params) == params_sha256(other.params)
    assert read_settings(tmp_path / "cut").rounds == ROUNDS


def test_patience_ends_a_run_after_so_many_rounds_without_a_better_one(tmp_path):
    outcome = finish(tmp_path / "run", patience=2)
    best = outcome.state.kept.round
    assert outcome.state.round == best + 2 < ROUNDS
    assert not outcome.stopped
    assert outcome.rounds[-1].metrics  # it was the last, so it was tested
    assert outcome.state.kept.params == {}  # only waited for
    settings = read_settings(tmp_path / "run")
    cell = Cell("run", Row("non-iid", 1.0, ("FA",)), "FA", 0, settings)
    assert done(cell, tmp_path) == ROUNDS  # a comparison takes it for finished


def test_without_a_set_of_the_servers_nobody_can_tell_the_best():
    data = (torch.randn(20, 4), torch.arange(20) % 2)
    for asked in ({"keep": "best"}, {"patience": 3}):
        with pytest.raises(SettingsError, match=f"{next(iter(asked))} = .*: goes by the server's set"):
            federate(nn.Linear(4, 2), [data, data], rounds=1, engine="serial", **asked)
    with pytest.raises(SettingsError, match="keep = acuracy: expected last, best or a metric"):
        federate(nn.Linear(4, 2), [data, data], validation=data, rounds=1, engine="serial", keep="acuracy")


@pytest.mark.slow
def test_resume_makes_a_finished_run_longer_and_notices_another_task_file(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text("from fedaccord.tasks import find_task\ntask = find_task('digits')\n")
    words = ["--runs", str(tmp_path), "--json", "--engine", "serial", "--set", "test_every=1"]
    assert main(["run", f"{file}:task", "--rounds", "3", "--name", "a", *words]) == 0
    assert main(["run", f"{file}:task", "--rounds", "5", "--name", "b", *words]) == 0
    assert main(["resume", str(tmp_path / "a"), "--rounds", "5", "--json"]) == 0
    a, b = ([{**line, "seconds": 0} for line in read_rounds(tmp_path / name)] for name in "ab")
    assert a == b
    assert len(a) == 5
    file.write_text(file.read_text() + "# another\n")
    capsys.readouterr()
    assert main(["resume", str(tmp_path / "a"), "--rounds", "6", "--json"]) == 2
    assert "not as when the run began: the task file mine.py; resume --anyway" in capsys.readouterr().err
    assert main(["resume", str(tmp_path / "a"), "--rounds", "6", "--json", "--anyway"]) == 0
    assert main(["resume", str(tmp_path / "a"), "--rounds", "4"]) == 2
    assert "rounds = 4, but 6 are done" in capsys.readouterr().err
