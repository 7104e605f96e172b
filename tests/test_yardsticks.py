"""The yardsticks of a comparison, and what is held equal: small real runs, read again by hand."""

import statistics
from pathlib import Path

import pytest
import torch

from fedaccord import config
from fedaccord.cli import compare as command
from fedaccord.cli import main
from fedaccord.core.errors import SettingsError
from fedaccord.core.records import Examples
from fedaccord.experiments import comparison, runner
from fedaccord.experiments.study import Row, Study, cells, done
from fedaccord.experiments.yardsticks import YARDSTICKS, runs_of
from fedaccord.report.grid import as_csv, latex
from fedaccord.report.spent import COSTS
from fedaccord.report.tables import last_value
from fedaccord.runtime.alone import pooled
from fedaccord.runtime.federation import federation_settings
from fedaccord.runtime.folder import read_rounds
from fedaccord.runtime.parts import parts_of
from fedaccord.tasks import Task, find_task

SHORT = {"rounds": 4, "steps": 2, "clients": 3, "engine": "serial", "client_test": 0.2}
METHODS = ("central", "local", "FA", "SCAFFOLD")
STUDY = Study("digits", (Row("iid", 1.0, METHODS, 2, SHORT),))


def settings_for(**changes):
    return config.make({"task": "digits", "method": "FA", **changes})


# --- who trains on what ---


@pytest.mark.slow
@pytest.mark.anywhere
def test_one_client_holds_everything_or_what_it_would_hold():
    task = find_task("digits")
    everybody, central, second = (
        parts_of(task, task.resolved(method="FA", split="dirichlet", clients=4, seed=3, alone=alone))
        for alone in ("", "all", "1")
    )
    assert [len(parts.clients) for parts in (everybody, central, second)] == [4, 1, 1]
    assert len(central.clients[0]) == sum(map(len, everybody.clients))
    assert torch.equal(second.clients[0].inputs, everybody.clients[1].inputs)
    held = torch.cat([client.inputs for client in everybody.clients])
    assert torch.equal(held.sort(0).values, central.clients[0].inputs.sort(0).values)
    for parts in (central, second):
        assert torch.equal(parts.validation.inputs, everybody.validation.inputs)
        for one, other in zip(parts.model.parameters(), everybody.model.parameters(), strict=True):
            assert torch.equal(one, other)
    assert central.counts.tolist() == [everybody.counts.sum(0).tolist()]
    assert second.counts.tolist() == [everybody.counts[1].tolist()]


def own_data(client):
    return torch.full((client + 1, 2), float(client)), torch.arange(client + 1) % 2


def test_what_clients_bring_is_pooled():
    task = Task("own", model=lambda: torch.nn.Linear(2, 2), load_my_data=own_data)
    parts = parts_of(task, task.resolved(method="FA", clients=3, evaluate="clients", alone="all"))
    assert parts.clients[0].inputs[:, 0].tolist() == [0, 1, 1, 2, 2, 2]
    with pytest.raises(SettingsError, match="is for a simulation"):
        federation_settings(task.resolved(method="FA", clients=3, evaluate="clients", alone="all"))


def test_data_that_is_read_lazily_is_not_pooled():
    with pytest.raises(SettingsError, match="cannot be pooled"):
        pooled([Examples(torch.zeros(1), torch.zeros(1)), range(3)])


@pytest.mark.parametrize(("alone", "complaint"), [("10", "there are 10 clients, numbered from 0"), ("-1", "a client")])
def test_a_client_that_is_not_there_is_refused(alone, complaint):
    task = find_task("digits")
    with pytest.raises(SettingsError, match=complaint):
        parts_of(task, task.resolved(method="FA", alone=alone))


# --- which steps are held equal ---


@pytest.mark.parametrize("fraction", [1.0, 0.5, 0.2])
def test_all_make_as_many_client_steps_in_all(fraction):
    """The federation makes 20 rounds of 10 C clients with 3 steps each."""
    settings = settings_for(rounds=20, steps=3, clients=10, fraction=fraction)
    ((_, central, _),) = runs_of("central", settings)
    alone = [each for _, each, _ in runs_of("local", settings)]
    whole = 20 * 10 * fraction * 3
    assert central.rounds * central.steps == whole
    assert sum(each.rounds * each.steps for each in alone) == whole
    assert [each.alone for each in alone] == [str(client) for client in range(10)]


@pytest.mark.parametrize(("column", "more"), [("local", {}), ("central", {"epochs": 1.0}), ("local", {"epochs": 1.0})])
def test_fewer_rounds_end_at_the_federations_rate(column, more):
    """Half of the clients a round: a round of one client stands for two of the federation's."""
    settings = settings_for(rounds=20, steps=3, clients=10, fraction=0.5, lr_decay=0.9, steps_decay=0.95, **more)
    for _, each, _ in runs_of(column, settings):
        assert each.rounds == 10
        assert each.lr_decay**each.rounds == pytest.approx(0.9**20)
        assert each.steps_decay**each.rounds == pytest.approx(0.95**20)


@pytest.mark.parametrize("column", ["FA", "central", "local"])
@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_the_time_left_takes_equal_work_for_equal(column, fraction):
    row = Row("iid", fraction, (column,), 1, {"rounds": 20, "steps": 3, "clients": 10})
    prices = [runner.price(cell, cell.settings.rounds) for cell in cells(Study("digits", (row,)))]
    assert sum(prices) == pytest.approx(20 * 3 * fraction)


@pytest.mark.parametrize("column", YARDSTICKS)
@pytest.mark.parametrize("epochs", [0.0, 1.0])
def test_what_a_server_does_about_other_parties_is_not_theirs(column, epochs):
    """With five replies wanted of one client, no round would ever count."""
    plain = settings_for(rounds=20, clients=3, epochs=epochs)
    guarded = {"min_replies": 5, "clip_norm": 0.5, "dp_noise": 1.0, "robust": "median", "server_lr": 0.3}
    federated = settings_for(rounds=20, clients=3, epochs=epochs, **guarded)
    assert list(runs_of(column, federated)) == list(runs_of(column, plain))
    assert list(runs_of("FA", federated)) == [("", federated, 1.0)]


def test_how_many_clients_there_are_must_be_said_where_the_data_decides():
    study = Study("kws", (Row("natural", 1.0, ("FA", "local")),))
    with pytest.raises(SettingsError, match="local: say how many clients there are"):
        list(cells(study))


# --- a comparison ---


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("yardsticks")
    assert runner.run_missing(list(cells(STUDY)), folder) == []
    return folder


def values(run: Path) -> list[float]:
    return [100 * line["metrics"]["accuracy"] for line in read_rounds(run)]


def words(folder: Path, *more: str) -> list[str]:
    fixed = [word for name, value in SHORT.items() for word in ("--set", f"{name}={value}")]
    methods = ["--methods", ",".join(METHODS), "--splits", "iid", "--seeds", "2"]
    return ["compare", "--task", "digits", *methods, *fixed, "--results", str(folder), *more]


@pytest.mark.anywhere
def test_yardsticks_are_runs_of_the_study_and_are_resumed_like_others(study, monkeypatch):
    names = [cell.name for cell in cells(STUDY)]
    assert names[:2] == ["iid-central-C1.0-s0", "iid-central-C1.0-s1"]
    assert names[2:8] == [f"iid-local-C1.0-s{seed}-client{client}" for seed in (0, 1) for client in (0, 1, 2)]
    assert {done(cell, study) for cell in cells(STUDY)} == {4}
    monkeypatch.setattr(runner, "open_child", lambda *_: pytest.fail("a finished run was started"))
    assert runner.run_missing(list(cells(STUDY)), study) == []


@pytest.mark.anywhere
def test_a_yardstick_of_another_study_is_refused(study):
    fewer = Study("digits", (Row("iid", 1.0, ("central",), 1, {**SHORT, "steps": 1}),))
    with pytest.raises(SettingsError, match="was run with steps = 6, not 3"):
        runner.run_missing(list(cells(fewer)), study)


@pytest.mark.anywhere
def test_local_is_the_mean_over_the_clients_and_says_their_spread(study):
    table, grid = comparison.compare(STUDY, study)
    alone = [[last_value(study / f"iid-local-C1.0-s{seed}-client{n}") for n in range(3)] for seed in (0, 1)]
    assert table.rows[0].found["local"] == pytest.approx([statistics.fmean(each) for each in alone])
    spread = statistics.fmean(map(statistics.stdev, alone))
    mean = statistics.fmean(map(statistics.fmean, alone))
    assert f"local: {mean:.1f} ± {spread:.2f} over 3 clients on the test set" in grid.notes[0]
    assert "over 3 clients on test data of their own" in grid.notes[1]
    assert grid.head[-1] == "own test data"


@pytest.mark.anywhere
def test_the_second_table_shows_what_each_spent(study):
    _, grid = comparison.compare(STUDY, study)
    shown = {line[1]: dict(zip(grid.head, line, strict=True)) for line in grid.lines}
    assert {name: line["steps"] for name, line in shown.items()} == dict.fromkeys(METHODS, "24")  # 4 x 3 x 2
    assert shown["central"]["bytes"] == shown["local"]["bytes"] == "–"
    ratio = int(shown["SCAFFOLD"]["bytes"].replace(",", "")) / int(shown["FA"]["bytes"].replace(",", ""))
    assert 1.99 < ratio < 2.01  # a control variate with every model
    assert shown["FA"]["to FA (95 %)"] == "–"
    apart = [values(study / f"iid-SCAFFOLD-C1.0-s{s}")[-1] - values(study / f"iid-FA-C1.0-s{s}")[-1] for s in (0, 1)]
    assert shown["SCAFFOLD"]["to FA (95 %)"].startswith(f"{statistics.fmean(apart):+.1f} (")
    fives = [statistics.fmean(values(study / f"iid-FA-C1.0-s{seed}")[-5:]) for seed in (0, 1)]
    assert shown["FA"]["last five"].startswith(f"{statistics.fmean(fives):.1f} ±")


@pytest.mark.anywhere
def test_one_seed_has_a_difference_without_an_interval(study):
    one = Study("digits", (Row("iid", 1.0, METHODS, 1, SHORT),))
    _, grid = comparison.compare(one, study)
    assert all(line[4].endswith(" (–)") for line in grid.lines if line[1] != "FA")


@pytest.mark.anywhere
def test_at_equal_bytes_the_dearer_method_is_read_earlier(study):
    """SCAFFOLD sends twice as much and a scalar: within FA's four rounds it makes one test of its four, not two."""
    table, grid = comparison.compare(STUDY, study, "bytes")
    found = table.rows[0].found
    for method, tests in (("SCAFFOLD", 1), ("FA", 4), ("central", 4)):  # a yardstick sends nothing
        assert found[method] == tuple(values(study / f"iid-{method}-C1.0-s{seed}")[tests - 1] for seed in (0, 1))
    assert "what FA spent, the least with that seed" in grid.notes[0]
    assert "held equal: bytes sent down and up" in grid.heading
    assert table.heading.endswith("read at equal bytes")
    assert "equal" not in comparison.compare(STUDY, study)[0].heading


@pytest.mark.anywhere
def test_a_budget_may_be_named(study):
    table, grid = comparison.compare(STUDY, study, "steps", 12.0)
    for method in ("FA", "SCAFFOLD", "central"):
        assert table.rows[0].found[method] == tuple(values(study / f"iid-{method}-C1.0-s{s}")[1] for s in (0, 1))
    assert "within 12.0 steps, as named" in grid.notes[0]
    rounds, _ = comparison.compare(STUDY, study, "rounds", 2.0)
    assert rounds.rows == table.rows
    nothing, empty = comparison.compare(STUDY, study, "steps", 1.0)
    assert not any(nothing.rows[0].found.values())
    assert empty.lines == []


@pytest.mark.anywhere
def test_the_command_prints_and_writes_both_tables(study, capsys):
    assert main(words(study, "--no-run", "--equal", "steps")) == 0
    said = capsys.readouterr().out
    for name in ("table.md", "spent.md"):
        assert (study / name).read_text() in said
    assert "held equal: client steps" in said
    _, grid = comparison.compare(STUDY, study, "steps")
    assert (study / "spent.csv").read_text() == as_csv(grid)
    assert (study / "spent.tex").read_text() == latex(grid)
    assert latex(grid).count(r"\\") == len(grid.lines) + 1


def test_the_command_knows_the_same_words():
    assert command.YARDSTICKS == YARDSTICKS
    assert tuple(COSTS) == command.EQUAL


def test_a_budget_of_nothing_is_refused(tmp_path, capsys):
    assert main(words(tmp_path / "r", "--budget", "0")) == 2
    assert "--budget 0: expected more than 0" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


@pytest.mark.slow
@pytest.mark.anywhere
@pytest.mark.parametrize("alone", ["all", "1"])
def test_a_run_of_one_client_goes_on_where_it_was(tmp_path, alone, capsys):
    fixed = ["--split", "iid", "--method", "FA", "--engine", "serial", "--steps", "2", "--alone", alone, "--json"]
    assert main(["run", "digits", "--runs", str(tmp_path), "--name", "a", "--rounds", "2", *fixed]) == 0
    assert main(["resume", str(tmp_path / "a"), "--rounds", "4", "--json"]) == 0
    assert main(["run", "digits", "--runs", str(tmp_path), "--name", "b", "--rounds", "4", *fixed]) == 0
    one, other = ([line["loss"] for line in read_rounds(tmp_path / name)] for name in "ab")
    assert one == other
    assert len(one) == 4
