"""Every example of docs/extend.md, run as it stands there."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from fedaccord import federate
from fedaccord.cli import main
from fedaccord.core.modules import load_variable
from fedaccord.runtime.identity import params_sha256

PAGE = (Path(__file__).parents[1] / "docs" / "extend.md").read_text()
FILES = dict(re.findall(r"```python\n# file: (\S+)\n(.*?)```", PAGE, re.DOTALL))


@pytest.fixture
def written(tmp_path):
    """The page's files in a folder of their own."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def last(capsys):
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_the_page_has_an_example_for_every_seam():
    assert set(FILES) == {
        "drift.py", "distill.py", "sluggish.py", "agreement.py", "diabetes.py", "backwards.py",
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["drift.py:drift", "distill.py:distill", "sluggish.py:sluggish", "agreement.py:agreement"]
)
def test_a_method_from_a_file_runs_resumes_and_gives_the_same_bits_in_processes(method, written, capsys):
    def run(name, *more):
        words = ["run", "digits", "--method", str(written / method), "--runs", str(written), "--name", name, "--json"]
        assert main([*words, "--rounds", "6", "--fraction", "0.5", *more]) == 0
        return last(capsys)

    whole = run("whole", "--engine", "serial")
    assert run("pool", "--engine", "pool", "--workers", "2")["params_sha256"] == whole["params_sha256"]
    run("cut", "--engine", "serial", "--set", "checkpoint_every=2")
    # as if it had been killed in its last round: its newest checkpoint and its log are cut off
    folder = written / "cut"
    for file in (folder / "checkpoints").glob("000006.*"):
        file.unlink()
    lines = (folder / "rounds.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "rounds.jsonl").write_bytes(b"".join(lines[:5]))
    assert main(["resume", str(folder), "--json"]) == 0
    assert last(capsys)["params_sha256"] == whole["params_sha256"]


@pytest.mark.slow
def test_an_outside_method_has_its_column_its_scalar_and_its_line_on_the_page(written, capsys):
    from fedaccord.report.condense import page_data

    methods = f"FA,{written / 'drift.py'}:drift"
    results = written / "results"
    words = ["compare", "--task", "digits", "--methods", methods, "--results", str(results), "--set", "rounds=3"]
    assert main([*words, "--set", "drift_share=0.3"]) == 0
    table = (results / "table.md").read_text()
    assert "| FA | Drift |" in table
    run = results / "non-iid-Drift-C1.0-s0"
    assert "drift_share = 0.3" in (run / "settings.toml").read_text()
    (shown,) = page_data([run])["runs"]
    assert any("the drift that was taken out had norm" in sentence for sentence in shown["sentences"])


@pytest.mark.slow
def test_a_hyper_parameter_of_an_outside_method_can_be_tuned(written):
    drift = load_variable(written / "drift.py", "drift", object, "")
    from fedaccord import Method
    from fedaccord.methods.registry import PARTS

    tuned = Method("Drift+AH", (drift, PARTS["AH"]))
    draw = torch.Generator().manual_seed(0)
    clients = [(torch.randn(12, 4, generator=draw), torch.arange(12) % 3) for _ in range(3)]
    grid = "drift_share = 0, 0.1, 0.3; lr = 0.05, 0.1"
    history = federate(nn.Linear(4, 3), clients, clients[0], method=tuned, rounds=4, grid=grid)
    assert all(set(log.hyper) == {"drift_share", "lr"} for log in history.rounds)


@pytest.mark.slow
def test_a_method_from_a_file_brings_its_options_and_can_be_joined(written, capsys):
    words = ["run", "digits", "--method", f"{written / 'drift.py'}:drift+WD", "--drift-share", "0.3", "--rounds", "1"]
    assert main([*words, "--runs", str(written), "--name", "joined", "--json"]) == 0
    assert "drift_share = 0.3" in (written / "joined" / "settings.toml").read_text()
    with pytest.raises(SystemExit):
        main([*words, "--help-all"])
    assert "--drift-share FLOAT" in capsys.readouterr().out


def test_a_setting_that_every_run_has_already_is_refused(written, capsys):
    taken = (written / "drift.py").read_text().replace('Setting("drift_share"', 'Setting("alpha"')
    (written / "taken.py").write_text(taken)
    assert main(["run", "digits", "--method", f"{written / 'taken.py'}:drift", "--runs", str(written)]) == 2
    assert "'alpha', but every run has one of that name" in capsys.readouterr().err


@pytest.mark.slow
def test_a_setting_that_is_no_hyper_parameter_is_named(written, capsys):
    (written / "plain.py").write_text((written / "drift.py").read_text().replace(", hyper=True", ""))
    assert main(["run", "digits", "--method", f"{written / 'plain.py'}:drift", "--runs", str(written)]) == 2
    assert "'drift_share' is no hyper-parameter" in capsys.readouterr().err


@pytest.mark.slow
def test_a_term_with_a_module_that_is_not_listed_is_not_stacked(written, capsys):
    """The traced graph would keep the first round's teacher for ever."""
    hidden = (written / "distill.py").read_text().replace("self.shared = (teacher,)", "pass")
    (written / "hidden.py").write_text(hidden)

    def run(file, engine):
        words = ["run", "digits", "--method", f"{written / file}:distill", "--engine", engine, "--rounds", "2"]
        return main([*words, "--runs", str(written), "--json"])

    assert run("distill.py", "stacked") == 0
    assert run("hidden.py", "stacked") == 2
    assert "reads tensors of no module" in capsys.readouterr().err
    assert run("hidden.py", "auto") == 0


@pytest.mark.slow
def test_the_regression_learns(written, capsys):
    assert main(["run", f"{written / 'diabetes.py'}:task", "--runs", str(written), "--name", "d", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    errors = [line["metrics"]["error"] for line in lines[:-1] if line["metrics"]]
    # predicting the mean (0, the targets are scaled) has a mean error of about 0.87 deviations
    assert errors[-1] < 0.75
    assert main(["run", f"{written / 'diabetes.py'}:task", "--runs", str(written), "--name", "rm", "--method",
                 "FA+RM+AH", "--rounds", "5", "--json"]) == 0  # fmt: skip


@pytest.mark.slow
def test_the_engine_of_the_page_gives_the_same_bits(written, monkeypatch):
    from fedaccord.engines import choose

    monkeypatch.setattr(choose, "ENGINES", dict(choose.ENGINES))
    monkeypatch.delitem(sys.modules, "backwards", raising=False)
    load_variable(written / "backwards.py", "backwards", object, "")
    draw = torch.Generator().manual_seed(0)
    clients = [(torch.randn(12, 4, generator=draw), torch.arange(12) % 3) for _ in range(4)]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    ends = [
        params_sha256(federate(model, clients, clients[0], method="FA+RM", rounds=4, engine=engine).state.params)
        for engine in ("serial", "backwards")
    ]
    assert ends[0] == ends[1]


def test_a_users_file_is_run_once_and_again_when_it_has_changed(tmp_path, capsys):
    """It may print, and what it puts on the search path stays there."""
    file = tmp_path / "told_once.py"
    lines = ["import sys", "sys.path.insert(0, '/its/own')", "print('run')", "number = 3"]
    file.write_text("\n".join(lines))
    path = list(sys.path)
    try:
        assert [load_variable(file, "number", int, "a number") for _ in range(3)] == [3, 3, 3]
        assert sys.path == ["/its/own", *path]
    finally:
        sys.path[:] = path
    assert capsys.readouterr().out == "run\n"
    file.write_text("number = 4")
    os.utime(file, (1, 1))
    assert load_variable(file, "number", int, "a number") == 4
