"""Studies as a person runs them: real processes, cut off and taken up again."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import wait_for, write_cell

from fedaccord import config
from fedaccord.cli import main
from fedaccord.core.errors import SettingsError
from fedaccord.experiments import runner as compare
from fedaccord.experiments.study import Cell, Row, Study, cells, done, table_of, telling
from fedaccord.report.tables import Row as TableRow
from fedaccord.report.tables import Table, last_value, latex
from fedaccord.runtime.folder import read_rounds, read_settings

SHORT = {"rounds": 3, "steps": 2, "grid": "lr = 0.1, 0.2; steps = 1, 2", "engine": "serial"}
STUDY = Study("digits", (Row("non-iid", 1.0, ("FA", "FA+AH"), 2, SHORT),))


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    assert compare.run_missing(list(cells(STUDY)), folder) == []
    return folder


@pytest.mark.anywhere
def test_all_runs_are_there_and_only_what_tables_need_is_kept(study):
    names = [cell.name for cell in cells(STUDY)]
    assert names == [f"non-iid-{method}-C1.0-s{seed}" for method in ("FA", "FA+AH") for seed in (0, 1)]
    for name in names:
        kept = sorted(file.name for file in (study / name).iterdir())
        assert kept == ["classes.json", "code.json", "metrics.json", "rounds.csv", "rounds.jsonl.gz", "settings.toml"]


def test_a_run_of_a_study_is_the_run_that_run_makes(study, tmp_path, capsys):
    options = [f"--{name}={value}" for name, value in SHORT.items()]
    words = ["run", "digits", "--method", "FA", "--runs", str(tmp_path), "--name", "a", "--seed", "1"]
    assert main([*words, *options, "--json"]) == 0
    for mine, theirs in zip(read_rounds(tmp_path / "a"), read_rounds(study / "non-iid-FA-C1.0-s1"), strict=True):
        assert {**mine, "seconds": 0} == {**theirs, "seconds": 0}


@pytest.mark.anywhere
def test_what_is_finished_is_not_run_again(study, monkeypatch):
    monkeypatch.setattr(compare, "open_child", lambda *_: pytest.fail("a finished run was started"))
    assert compare.run_missing(list(cells(STUDY)), study) == []


@pytest.mark.anywhere
def test_the_table_is_the_mean_of_the_runs(study):
    (row,) = table_of(STUDY, study).rows
    for method in ("FA", "FA+AH"):
        runs = [study / f"non-iid-{method}-C1.0-s{seed}" for seed in (0, 1)]
        assert row.found[method] == tuple(last_value(run) for run in runs)


@pytest.mark.anywhere
def test_another_experiment_in_the_same_folder_is_refused(study):
    other = Study("digits", (Row("non-iid", 1.0, ("FA",), 1, {**SHORT, "steps": 3}),))
    with pytest.raises(SettingsError, match="was run with steps = 2, not 3"):
        compare.run_missing(list(cells(other)), study)


@pytest.mark.anywhere
def test_settings_that_a_method_does_not_use_do_not_matter(study):
    """The grid is not FA's business, the fixed rate is not FA+AH's."""
    other = Study(
        "digits",
        (Row("non-iid", 1.0, ("FA",), 2, {**SHORT, "grid": "lr = 0.5, 0.6; steps = 1, 2"}),
         Row("non-iid", 1.0, ("FA+AH",), 2, {**SHORT, "lr": 0.7})),
    )  # fmt: skip
    assert {done(cell, study) for cell in cells(other)} == {3}


@pytest.mark.slow
@pytest.mark.anywhere
def test_a_run_that_fails_is_named_and_the_others_go_on(tmp_path):
    bad = Row("classes", 1.0, ("FA",), 1, {**SHORT, "classes_per_client": 11})
    study = Study("digits", (bad, Row("non-iid", 1.0, ("FA",), 1, SHORT)))
    (failure,) = compare.run_missing(list(cells(study)), tmp_path)
    assert "classes-FA-C1.0-s0: " in failure
    assert "expected 1 to 10" in failure
    assert sum(done(cell, tmp_path) for cell in cells(study)) == 3


@pytest.mark.slow
@pytest.mark.anywhere
def test_a_failure_is_told_once_and_counted_at_the_end(tmp_path, capfd):
    words = ["--task", "digits", "--methods", "FA", "--splits", "classes", "--set", "classes_per_client=11"]
    assert main(["compare", *words, "--results", str(tmp_path)]) == 1
    said = capfd.readouterr()
    assert said.out.replace("\n", " ").count("expected 1 to 10") == 1
    assert said.err == "fedaccord: a run failed, see above; the same command tries again\n"


def test_a_method_may_be_tuned_by_itself():
    row = Row("non-iid", 1.0, ("FA", "FA+RM"), 1, {**SHORT, "lr": 0.3}, {"FA": {"lr": 0.1}})
    assert [cell.settings.lr for cell in cells(Study("digits", (row,)))] == [0.1, 0.3]


@pytest.mark.anywhere
def test_the_heading_counts_the_runs_that_are_there(study, tmp_path):
    assert "2 seeds" in table_of(STUDY, study).heading
    assert "no run yet" in table_of(STUDY, tmp_path).heading
    for name in ("non-iid-FA-C1.0-s0", "non-iid-FA-C1.0-s1", "non-iid-FA+AH-C1.0-s0"):
        (tmp_path / name).symlink_to(study / name)
    assert "1 to 2 seeds" in table_of(STUDY, tmp_path).heading


@pytest.mark.slow
@pytest.mark.anywhere
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_study_that_was_cut_off_goes_on_where_it_was(tmp_path, how):
    """After Ctrl-C, and after kill -9 of the whole study: its runs end by themselves.

    It is told to do far more rounds than it can before the signal, and then to be content with ten more.
    """
    words = ["compare", "--task", "digits", "--methods", "FA,FA+WD", "--results", str(tmp_path), "--lanes", "2"]
    words += ["--set", "rounds=20000", "--set", "checkpoint_every=5", "--set", "engine=serial"]
    command = [sys.executable, "-m", "fedaccord.cli", *words]
    study = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    run = tmp_path / "non-iid-FA-C1.0-s0"
    wait_for(lambda: (run / "rounds.jsonl").exists() and len(list(read_rounds(run))) > 7)
    assert study.poll() is None
    study.send_signal(how)
    _, said = study.communicate(timeout=300)
    assert study.returncode == (130 if how == signal.SIGINT else -signal.SIGKILL)
    stopping = "fedaccord: stopping after this round; Ctrl-C once more stops at once\n"
    stopped = "fedaccord: stopped; the same command goes on from here\n"
    assert said == (stopping + stopped if how == signal.SIGINT else "")
    wait_for(lambda: not holders(tmp_path))
    whole = len(list(read_rounds(run))) + 10
    settings = (run / "settings.toml").read_text()
    assert "rounds = 20000\n" in settings
    (run / "settings.toml").write_text(settings.replace("rounds = 20000\n", f"rounds = {whole}\n"))
    (cell, _) = cells(
        Study("digits", (Row("non-iid", 1.0, ("FA", "FA+WD"), 1, {"rounds": whole, "engine": "serial"}),))
    )
    assert compare.run_missing([cell], tmp_path) == []
    losses = [line["loss"] for line in read_rounds(run)]
    assert len(losses) == whole
    straight = ["run", "digits", "--method", "FA", "--runs", str(tmp_path), "--name", "straight"]
    assert main([*straight, "--engine", "serial", "--json", "--rounds", str(whole)]) == 0
    assert losses == [line["loss"] for line in read_rounds(tmp_path / "straight")]


def holders(folder: Path) -> list[str]:
    """Processes that were told to write below the folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = process.read_bytes().split(b"\0")
        except OSError:
            continue
        if os.fsencode(folder) in words and int(process.parent.name) != os.getpid():
            found.append(process.parent.name)
    return found


@pytest.mark.anywhere
def test_the_command_prints_the_table_and_leaves_files(study, capsys):
    words = ["compare", "--task", "digits", "--methods", "FA,FA+AH", "--seeds", "2", "--results", str(study)]
    for name, value in SHORT.items():
        words += ["--set", f"{name}={value}"]
    assert main([*words, "--no-run"]) == 0
    said = capsys.readouterr().out
    assert "| non-iid, C=1 |" in said
    assert (study / "table.md").read_text() in said
    for name in ("table.csv", "table.tex", "report.html"):
        assert (study / name).stat().st_size > 100


@pytest.mark.slow
@pytest.mark.parametrize("method", ["FA", "FA+AH"])
def test_every_setting_reaches_the_runs(method, tmp_path):
    """Also what a tuner chooses, which a person may not give beside it: a study has it for its other methods."""
    given = {"task": "digits", "method": method, "lr": 0.125, "steps_decay": 0.5, "augment": False, "rounds": 1}
    settings = config.make(given)
    cell = Cell("one", Row("non-iid", 1.0, (method,)), method, 0, settings, 1.0)
    assert compare.run_missing([cell], tmp_path, 1) == []
    settled = {name: value for name, value in settings.values().items() if value is not None and name != "engine"}
    assert settled.items() <= {**read_settings(tmp_path / "one").values(), "workers": None}.items()


BAD = [
    (["--methods", "FA,FA+XX"], "method = 'FA+XX': there is no 'XX'"),
    (["--fractions", "1.5"], "fraction = 1.5"),
    (["--fractions", "half"], "expected a number"),
    (["--seeds", "0"], "--seeds 0: expected 1 or more"),
    (["--set", "seed=3"], "seed has an option of its own"),
    (["--task", "nothing"], "unknown task 'nothing'"),
]


@pytest.mark.parametrize(("words", "complaint"), BAD)
def test_bad_input_is_explained(words, complaint, tmp_path, capsys):
    assert main(["compare", "--results", str(tmp_path / "r"), *words]) == 2
    assert complaint in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("words", [["compare", "--task", "digits"], ["reproduce", "mnist"]])
def test_results_must_be_a_folder(words, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main([*words, "--results", str(tmp_path / "file")]) == 2
    assert "not a folder" in capsys.readouterr().err
    assert main([*words, "--no-run", "--results", str(tmp_path / "none")]) == 2
    assert "no such folder" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(("method", "tells"), [("FATHOM", True), ("FA+AH", False), ("FedEx", False)])
def test_where_a_tuner_begins_tells_two_runs_apart(method, tells):
    assert ({"lr", "steps"} <= telling(config.make({"method": method}))) == tells
    assert "lr_decay" not in telling(config.make({"method": method}))


@pytest.mark.slow
@pytest.mark.anywhere
def test_what_was_left_open_is_not_any_value(tmp_path):
    """A run with five clients is not the one with the default ten."""
    five = Study("digits", (Row("iid", 1.0, ("FA",), 1, {**SHORT, "clients": 5, "entropy_min": 0.5}),))
    assert compare.run_missing(list(cells(five)), tmp_path) == []
    for left, name in (({"entropy_min": 0.5}, "clients"), ({"clients": 5}, "entropy_min")):
        (cell,) = cells(Study("digits", (Row("iid", 1.0, ("FA",), 1, {**SHORT, **left}),)))
        with pytest.raises(SettingsError, match=f"was run with {name}"):
            done(cell, tmp_path)


@pytest.mark.slow
@pytest.mark.anywhere
def test_an_own_task_that_prints_does_not_disturb(tmp_path):
    own = Path(__file__).parents[1] / "examples" / "own_model.py"
    task = tmp_path / "loud.py"
    task.write_text(own.read_text() + "\nprint('loading my data')\nprint(7)\n")
    assert main(["compare", "--task", f"{task}:task", "--methods", "FA,FA", "--results", str(tmp_path / "r"),
                 "--set", "rounds=2"]) == 0  # fmt: skip
    assert len(list(read_rounds(tmp_path / "r" / "non-iid-FA-C1.0-s0"))) == 2


@pytest.mark.anywhere
def test_a_packed_run_is_not_resumed(study, capsys):
    run = study / "non-iid-FA-C1.0-s0"
    assert main(["resume", str(run)]) == 2
    assert "its weights were let go" in capsys.readouterr().err
    assert sorted(file.name for file in run.iterdir()) == [
        "classes.json",
        "code.json",
        "metrics.json",
        "rounds.csv",
        "rounds.jsonl.gz",
        "settings.toml",
    ]


def test_two_methods_of_one_name_are_told(tmp_path, capsys):
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text(
            "from fedaccord import Part\n\n\nclass Mine(Part):\n    name = 'Mine'\n\n\nmine = Mine()\n"
        )
    methods = ",".join(f"{tmp_path / name}.py:mine" for name in ("one", "two"))
    assert main(["compare", "--task", "digits", "--methods", methods, "--results", str(tmp_path / "r")]) == 2
    assert "two of the methods are called Mine; give one of them another name" in capsys.readouterr().err


@pytest.mark.slow
def test_weights_that_are_kept_stay_kept_and_a_round_that_was_not_saved_is_done_again(tmp_path):
    (cell,) = cells(Study("digits", (Row("iid", 1.0, ("FA",), 1, SHORT),)))
    run = tmp_path / cell.name
    assert compare.run_missing([cell], tmp_path, keep=True) == []
    whole = {file.name: file.read_bytes() for file in (run / "checkpoints").iterdir()}
    assert compare.run_missing([cell], tmp_path) == []  # to print the table once more, without --keep
    assert {file.name: file.read_bytes() for file in (run / "checkpoints").iterdir()} == whole
    max((run / "checkpoints").glob("*3.json")).unlink()  # killed after the last line, before its checkpoint
    assert done(cell, tmp_path) == 2
    assert compare.run_missing([cell], tmp_path, keep=True) == []
    assert done(cell, tmp_path) == 3
    assert {file.name for file in (run / "checkpoints").iterdir()} == whole.keys()


def test_a_run_of_another_experiment_is_not_touched_where_it_diverged(tmp_path, monkeypatch):
    (cell,) = cells(Study("digits", (Row("iid", 1.0, ("FA",), 1, SHORT),)))
    (other,) = cells(Study("digits", (Row("iid", 1.0, ("FA",), 1, {**SHORT, "lr": 0.5}),)))
    write_cell(other, tmp_path, 0.1, rounds=3, lost=3)
    monkeypatch.setattr(compare, "pack", lambda *_: pytest.fail("it was packed"))
    with pytest.raises(SettingsError, match=r"was run with lr = 0\.5, not"):
        compare.run_rest([cell], tmp_path, None)


def test_a_name_of_ones_own_is_sound_latex():
    table = Table("x", ("my_method",), [TableRow("50 %", {"my_method": (0.5,)})])
    assert r"my\_method" in latex(table)
    assert r"50 \%" in latex(table)
