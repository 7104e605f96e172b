"""The command line as a person uses it: real processes, real signals."""

import argparse
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fedaccord import config
from fedaccord.cli import main
from fedaccord.cli.options import from_anywhere, in_file
from fedaccord.methods.registry import find
from fedaccord.runtime.folder import read_settings

FEDACCORD = [sys.executable, "-m", "fedaccord.cli"]


def run_json(capsys, *arguments):
    code = main([*map(str, arguments), "--json"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return code, lines[:-1], lines[-1]


@pytest.mark.slow
def test_run_writes_a_folder_and_json_lines(tmp_path, capsys):
    code, rounds, summary = run_json(capsys, "run", "digits", "--rounds", 3, "--runs", tmp_path, "--name", "a")
    assert code == 0
    assert [line["round"] for line in rounds] == [1, 2, 3]
    assert summary["run"] == str(tmp_path / "a")
    assert (tmp_path / "a" / "rounds.jsonl").read_text().count("\n") == 3
    again = run_json(capsys, "resume", tmp_path / "a")[2]
    assert again["params_sha256"] == summary["params_sha256"]


def test_a_run_to_replay_is_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.toml").write_text('replay = "runs/b"\n')
    assert in_file(argparse.Namespace(config=Path("c.toml")))["replay"] == str(tmp_path / "runs" / "b")
    assert from_anywhere({"replay": "runs/a", "method": "FA"}) == {
        "replay": str(tmp_path / "runs" / "a"),
        "method": "FA",
    }
    assert from_anywhere({"replay": ""}) == {"replay": ""}


def test_values_are_looked_for_in_set_and_options_then_config_then_task(tmp_path, capsys):
    config = tmp_path / "c.toml"
    config.write_text('rounds = 2\nlr = 0.03\nsteps = 3\nsplit = "iid"\nengine = "serial"\n')
    arguments = [
        "run",
        "digits",
        "--method",
        "FA",
        "--runs",
        tmp_path,
        "--config",
        config,
        "--lr",
        "0.02",
        "--set",
        "steps=4",
    ]
    _, rounds, summary = run_json(capsys, *arguments)
    assert rounds[0]["hyper"] == {"lr": 0.02, "steps": 4}
    assert len(rounds) == 2
    assert rounds[1]["hyper"]["lr"] == pytest.approx(0.02 * 0.99)  # lr_decay: the task's own for iid
    assert "iid" in summary["run"]


BAD = [
    (["run", "digits", "--lr", "fast"], "lr = 'fast': expected a number"),
    (["run", "digits", "--set", "rats=1"], "unknown setting 'rats'"),
    (["run", "digits", "--set", "lr"], "expected key=value"),
    (["run", "nothing-like-it"], "unknown task 'nothing-like-it'"),
    (["run", "digits", "--config", "absent.toml"], "there is no such file"),
    (["run", "digits", "--clients", "5"], "needs a client for each of the 10 classes"),
    (["run", "digits", "--validation-per-class", "500"], "lower validation_per_class"),
    (["run", "digits", "--device", "cuda:7"], "device = cuda:7: not usable here"),
    (["run", "digits", "--width", "3"], "has no width to set"),
    (["run", "digits", "--split", "natural"], "does not say whom each example came from"),
    (["run", "absent.py:task"], "no such Python file"),
    (["resume", "absent"], "not a run folder"),
    (["data", "verify", "nothing"], "unknown data set 'nothing'"),
    (["data", "split", "digits", "--split", "classes", "--classes-per-client", "11"], "expected 1 to 10"),
]


@pytest.mark.parametrize(("arguments", "text"), BAD)
def test_a_users_mistake_is_one_line_and_exit_2(arguments, text, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = [line for line in capsys.readouterr().err.splitlines() if "loading the data" not in line]
    assert len(error) == 1
    assert error[0].startswith("fedaccord: ")
    assert text in error[0]
    assert list(tmp_path.iterdir()) == []  # nothing half-made stays behind


def start(path, rounds):
    command = [
        *FEDACCORD,
        "run",
        "digits",
        "--runs",
        str(path.parent),
        "--name",
        path.name,
        "--rounds",
        str(rounds),
        "--engine",
        "pool",
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


@pytest.mark.slow
@pytest.mark.anywhere
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_stops_after_the_round_and_says_how_to_resume(tmp_path, number):
    path = tmp_path / "run"
    process = start(path, rounds=20_000)  # far more than it can do until then
    while not (path / "rounds.jsonl").exists() or (path / "rounds.jsonl").read_text().count("\n") < 3:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(number)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 130
    assert f"fedaccord resume {path}" in output
    done = (path / "rounds.jsonl").read_text().count("\n")
    assert f"stopped after round {done}" in output
    assert (path / "checkpoints" / f"{done:06d}.json").exists()


def mortal(words, fatal, count):
    """In a process of its own: the command, killed just before it puts something on disk for the n-th time."""
    whole = os.fsync

    def fsync(descriptor):
        count.value += 1
        if count.value == fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        whole(descriptor)

    os.fsync = fsync
    sys.stdout = open(os.devnull, "w")
    os._exit(main(words))


@pytest.mark.slow
@pytest.mark.anywhere
def test_killed_whenever_it_writes_a_run_resumes_to_the_same_hash(tmp_path, capsys):
    """It kills itself, so every kill is a hit: at each write of a round in the middle, at the first and the last write.

    Kills from outside, at random instants, are in benchmarks/chaos/kills.py.
    """
    clean = multiprocessing.get_context("forkserver")  # this process may hold Ray's threads and locks
    clean.set_forkserver_preload(["fedaccord.runtime.build"])

    def run(name, fatal):
        words = ["run", "digits", "--runs", str(tmp_path), "--name", name, "--rounds", "4", "--json"]
        words += ["--engine", "pool"]  # its workers have to go too
        count = clean.Value("i", 0)
        process = clean.Process(target=mortal, args=(words, fatal, count))
        process.start()
        process.join()
        return process.exitcode, count.value

    def resumed(name):
        code, _, summary = run_json(capsys, "resume", tmp_path / name)
        assert code == 0
        return summary["params_sha256"], summary["log_sha256"]

    code, writes = run("whole", 0)
    assert code == 0
    assert writes > 4 * 5  # a round's log line, and file and folder of tensors and of manifest
    whole = resumed("whole")
    assert run("first", 1) == (-signal.SIGKILL, 1)
    assert not (tmp_path / "first").exists()  # a folder appears once it is complete
    for fatal in (*range(writes // 2, writes // 2 + 5), writes):
        assert run(f"killed-{fatal}", fatal) == (-signal.SIGKILL, fatal)
        assert resumed(f"killed-{fatal}") == whole


@pytest.mark.slow
@pytest.mark.anywhere
def test_processes_with_other_hash_seeds_give_the_same_hash(tmp_path):
    results = []
    for seed in ("0", "4242"):
        command = [*FEDACCORD, "run", "digits", "--rounds", "5", "--runs", str(tmp_path), "--name", seed, "--json"]
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        output = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
        last = json.loads(output.splitlines()[-1])
        results.append((last["params_sha256"], last["log_sha256"]))
    assert results[0] == results[1]


@pytest.mark.slow
def test_own_data_from_a_file_and_a_task_from_python(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(3), 60)
    centres = rng.normal(size=(3, 6)) * 4
    np.savez("mine.npz", x=(centres[labels] + rng.normal(size=(180, 6))).astype(np.float32), y=labels)
    arguments = ["run", "mine.npz", "--clients", 3, "--rounds", 20, "--runs", tmp_path / "runs"]
    code, _, summary = run_json(capsys, *arguments)
    assert code == 0
    assert summary["metrics"]["accuracy"] > 0.9  # blobs some 4 sqrt(2 * 6) = 14 deviations apart: it errs nowhere

    (tmp_path / "tasks.py").write_text(
        "from fedaccord import Task\nfrom fedaccord.data import digits\nfrom fedaccord.data.prepare import Pixels\n"
        "from torch import nn\n"
        "mine = Task('mine', digits.load, lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)),"
        " Pixels((0.3,), (0.4,)), {'validation_per_class': 10, 'rounds': 2})\n"
    )
    assert run_json(capsys, "run", "tasks.py:mine", "--runs", tmp_path / "runs")[0] == 0
    assert main(["run", "tasks.py:other"]) == 2


@pytest.mark.slow
def test_data_commands(tmp_path, capsys):
    assert main(["data", "list"]) == 0
    assert "digits" in capsys.readouterr().out
    assert main(["data", "fetch", "digits"]) == 0
    assert main(["data", "verify", "digits"]) == 0
    assert "1,437 + 360" in capsys.readouterr().out
    picture = tmp_path / "split.png"
    assert (
        main(
            ["data", "split", "digits", "--split", "dirichlet", "--alpha", "0.1", "--clients", "20", "-o", str(picture)]
        )
        == 0
    )
    assert "20 clients" in capsys.readouterr().out
    assert picture.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
@pytest.mark.anywhere
def test_paper_means_everything_as_printed_unless_said(tmp_path, capsys):
    words = ["run", "digits", "--method", "FA+RM+AH", "--paper", "--interval", "3", "--rounds", "1"]
    assert main([*words, "--runs", str(tmp_path), "--name", "printed", "--json"]) == 0
    found = read_settings(tmp_path / "printed")
    printed = {"cohorts": "random", "weighting": "population", "yardstick": "cross-entropy", "guards": False}
    printed |= {"average": False, "psi": "ascent", "hold": 1, "follow": False, "step_search": False}
    printed |= {"rm_step": 0.0, "init": "as-given", "grid": "lr = 0.05..0.5/9 log; steps = 5..45/9"}
    assert {name: found[name] for name in printed} == printed
    assert found["interval"] == 3
    assert config.printed(find("FA")).keys() & {"psi", "rm_step"} == set()


def test_methods_says_what_each_part_sends_and_keeps(capsys):
    """The digits' network has 2 (64 64 + 64) + 64 10 + 10 = 8,970 weights of four bytes."""
    assert main(["methods"]) == 0
    said = {words[0]: words for line in capsys.readouterr().out.splitlines() if (words := line.split())}
    assert said["FA"][-4:] == ["35,880", "35,880", "0", "1"]
    assert said["SCAFFOLD"][-4:] == ["71,768", "71,760", "35,880", "1.3"]  # c twice, and a double for its size
    assert main(["methods", "nothing"]) == 2


def test_settings_of_a_method_in_a_config_file_can_be_typed(tmp_path, monkeypatch, capsys):
    """Also with --set; and a config that comes through a pipe is read once."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "leash.py").write_text(
        "from fedaccord import Part, Setting\n\nclass Leash(Part):\n    name = 'Leash'\n"
        "    settings = (Setting('leash_hold', float, 1.0, 'How hard.'),)\n\nleash = Leash()\n"
    )
    (tmp_path / "c.toml").write_text('method = "leash.py:leash"\nrounds = 1\n')
    for name, words in (("a", ["--set", "leash_hold = 2"]), ("b", ["--leash-hold", "3"])):
        assert main(["run", "digits", "--config", "c.toml", *words, "--name", name]) == 0
        assert read_settings(Path("runs") / name)["leash_hold"] == {"a": 2.0, "b": 3.0}[name]
    reader, writer = os.pipe()
    os.write(writer, b'method = "FA"\nrounds = 1\n')
    os.close(writer)
    assert main(["run", "digits", "--config", f"/dev/fd/{reader}", "--name", "c"]) == 0
    os.close(reader)
    assert read_settings(Path("runs/c")).method == "FA"
