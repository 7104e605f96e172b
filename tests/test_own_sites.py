"""A client's data is its own: on a real node nothing is divided, and such a federation equals the simulator."""

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedaccord import Examples, Task, federate
from fedaccord.cli import main
from fedaccord.core.errors import SettingsError
from fedaccord.runtime.build import from_task
from fedaccord.runtime.drive import drive
from fedaccord.runtime.folder import read_rounds
from fedaccord.runtime.identity import experiment_of, params_sha256
from fedaccord.runtime.parts import client_parts, parts_of, server_parts
from fedaccord.tasks import find_task

FEDACCORD = [sys.executable, "-m", "fedaccord.cli"]
SIZES = (90, 61, 40)

SITES = """
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fedaccord import Examples, Task

HERE = Path(__file__).parent


def read(name):
    table = np.load(HERE / name)
    return Examples(torch.tensor(table["x"]), torch.tensor(table["y"]))


task = Task(
    "hospitals",
    model=lambda: nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 3)),
    load_my_data=lambda client: read(f"site{client}.npz"),
    load_server_data=lambda: (read("server.npz"), read("test.npz")),
    settings={"clients": 3, "rounds": 4, "batch_size": 16, "method": "FA+RM+AH",
              "grid": "lr = 0.1, 0.2; steps = 4, 8"},
)
"""

ONE_FILE = """
from fedaccord.data.sets import DataSet
from hospitals import HERE, Task, nn, read


def data():
    return DataSet(read("site0.npz"), read("test.npz"), ("a", "b", "c"))


task = Task("one-file", data, lambda: nn.Linear(5, 3), settings={"clients": 3})
"""


ANYTHING = """
import torch
from torch import nn
from torch.utils.data import Dataset

from fedaccord import Task
from hospitals import read


class Net(nn.Module):
    # a frozen layer, two inputs, normalisation that stays at home
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(3, 8).requires_grad_(False)
        self.norm, self.out = nn.BatchNorm1d(10), nn.Linear(10, 3)

    def forward(self, lab, age):
        return self.out(torch.relu(self.norm(torch.cat([self.base(lab), age], 1))))


class Patients(Dataset):
    def __init__(self, client):
        self.data = read(f"site{client}.npz")

    def __len__(self):
        return len(self.data)

    def __getitem__(self, number):
        x = self.data.inputs[number]
        return {"lab": x[:3], "age": x[3:]}, int(self.data.targets[number])


task = Task(
    "anything",
    model=Net,
    load_my_data=Patients,
    collate=lambda items: torch.utils.data.default_collate(items),
    optimizer=torch.optim.Adam,
    travels=lambda name, tensor: name.startswith("out."),
    settings={"clients": 3, "rounds": 3, "batch_size": 16, "method": "FA+RM", "evaluate": "clients", "steps": 3,
              "optimizer_state": "kept", "test_every": 1, "metrics": "accuracy, f1"},
)
"""


@pytest.fixture
def hospitals(tmp_path):
    """Three sites of 90, 61 and 40 patients with different mixtures of three illnesses; the file of their task."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(3, 5)) * 2
    for name, size in [*((f"site{n}", size) for n, size in enumerate(SIZES)), ("server", 30), ("test", 60)]:
        mixture = rng.dirichlet((0.5,) * 3) if name.startswith("site") else (1 / 3,) * 3
        labels = rng.choice(3, size, p=mixture)
        x = (centres[labels] + rng.normal(size=(size, 5))).astype(np.float32)
        np.savez(tmp_path / f"{name}.npz", x=x, y=labels)
    (tmp_path / "hospitals.py").write_text(SITES)
    (tmp_path / "one_file.py").write_text(ONE_FILE)
    (tmp_path / "anything.py").write_text(ANYTHING)
    return tmp_path / "hospitals.py"


def newest_theta(folder):
    """client -> the name of its newest file, which carries round and checksum."""
    return {file.parent.name: file.name for file in sorted(folder.rglob("private/**/*.safetensors"))} or {
        file.parent.name: file.name for file in sorted(folder.rglob("*.safetensors"))
    }


def federation_of_three(task, folder):
    """What a real federation of this task says at its end."""
    up = ["federation", "up", "--task", task, "--nodes", "3", "--folder", str(folder), "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*FEDACCORD, *up], capture_output=True, text=True, timeout=1200, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.anywhere
def test_three_nodes_train_on_their_own_files_with_the_bits_of_the_simulator(hospitals, tmp_path, capsys):
    pytest.importorskip("flwr")
    task = f"{hospitals}:task"
    real = federation_of_three(task, tmp_path / "f")
    for line in read_rounds(tmp_path / "f" / "run"):
        assert {client: entry["examples"] for client, entry in line["clients"].items()} == {
            str(client): size for client, size in enumerate(SIZES)
        }
    for client, size in enumerate(SIZES):
        said = (tmp_path / "f" / f"node{client}.log").read_text()
        assert f"client {client} trains on {size} examples: its own data, all of it" in said

    assert main(["run", task, "--runs", str(tmp_path), "--name", "s", "--engine", "serial", "--json"]) == 0
    straight = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert real["params_sha256"] == straight["params_sha256"]
    assert real["log_sha256"] == straight["log_sha256"]
    theirs = {}
    for client in range(3):
        theirs |= newest_theta(tmp_path / "f" / f"node{client}")
    assert theirs == newest_theta(tmp_path / "s")
    assert set(theirs) == {"0", "1", "2"}


@pytest.mark.slow
@pytest.mark.anywhere
def test_a_federation_has_the_bits_of_the_simulator_whatever_the_task(hospitals, tmp_path, capsys):
    """Two inputs read lazily, Adam with its state kept, a frozen layer sent once, normalisation at home, metrics of the
    clients: on serial, pool, Ray and Flower."""
    pytest.importorskip("flwr")
    task = f"{hospitals.with_name('anything.py')}:task"
    found = {"flower": federation_of_three(task, tmp_path / "f")}
    for engine in ("serial", "pool", "ray"):
        words = ["run", task, "--runs", str(tmp_path), "--name", engine, "--engine", engine, "--workers", "2", "--json"]
        assert main(words) == 0
        found[engine] = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert len({each["params_sha256"] for each in found.values()}) == 1
    assert len({each["log_sha256"] for each in found.values()}) == 1
    last = list(read_rounds(tmp_path / "f" / "run"))[-1]
    assert all(set(entry["metrics"]) == {"accuracy", "f1"} for entry in last["clients"].values())
    assert last["bytes"] == 3 * 2 * 4 * (3 * 10 + 3)  # three clients, down and up, floats of the last layer


def test_the_command_line_and_federate_agree_on_the_same_sites(hospitals):
    task = find_task(f"{hospitals}:task")
    parts = parts_of(task, task.resolved())
    by_task = from_task(task, task.resolved(engine="serial"))
    assert by_task.entropy.startswith("on: where clients bring their own data")
    own = dict(task.settings)
    method, rounds = own.pop("method"), own.pop("rounds")
    own.pop("clients")
    own["entropy_weight"] = 1.0  # whoever has all clients at hand, as here, can look first; that task's server cannot
    by_hand = federate(parts.model, parts.clients, parts.validation, parts.test, method, rounds, engine="serial", **own)
    assert params_sha256(drive(by_task, None, None).state.params) == params_sha256(by_hand.state.params)


def test_nothing_is_divided_on_a_node(hospitals):
    """Neither with load_my_data nor with a task that only knows `data`, whatever split the settings name."""
    own = find_task(f"{hospitals}:task")
    for client, size in enumerate(SIZES):
        parts = client_parts(own, own.resolved(split="dirichlet"), client)
        assert [len(data) for data in parts.clients] == [size]
        assert (parts.validation, parts.test) == (None, None)
    plain = find_task(f"{hospitals.with_name('one_file.py')}:task")
    parts = client_parts(plain, plain.resolved(split="dirichlet", seed=3), 1)
    assert [len(data) for data in parts.clients] == [SIZES[0]]
    assert torch.equal(parts.clients[0].targets, plain.data().train.targets)


def test_both_ends_name_the_same_experiment(hospitals):
    task = find_task(f"{hospitals}:task")
    names = {experiment_of(client_parts(task, task.resolved(), client).settings) for client in range(3)}
    assert names == {experiment_of(server_parts(task, task.resolved()).settings)}


def test_a_server_without_a_validation_set_is_told_what_to_do(hospitals):
    task = replace(find_task(f"{hospitals}:task"), load_server_data=None)
    with pytest.raises(SettingsError, match="set evaluate = clients"):
        server_parts(task, task.resolved())
    parts = server_parts(task, task.resolved(evaluate="clients"))
    assert (parts.validation, parts.test, parts.clients) == (None, None, [])


def test_a_named_set_is_nobodys_own(tmp_path, capsys):
    pytest.importorskip("flwr")
    words = ["federation", "node", "--task", "digits", "--superlink", "127.0.0.1:1", "--insecure", "--client", "0"]
    assert main([*words, "--private", str(tmp_path)]) == 2
    assert "--simulate divides it" in capsys.readouterr().err


def test_a_task_without_data_is_told(hospitals, capsys):
    with pytest.raises(SettingsError, match="load_my_data"):
        Task("nothing")
    assert main(["data", "split", f"{hospitals}:task"]) == 2
    assert "every client brings its own data" in capsys.readouterr().err
    assert main(["run", f"{hospitals}:task", "--clients", "4"]) == 2  # there is no site3.npz
    assert "site3.npz" in capsys.readouterr().err


def test_pairs_of_tensors_will_do(hospitals):
    task = find_task(f"{hospitals}:task")
    pair = replace(
        task, load_my_data=lambda client: (lambda data: (data.inputs, data.targets))(task.load_my_data(client))
    )
    mine = client_parts(pair, pair.resolved(), 2).clients[0]
    assert isinstance(mine, Examples)
    assert len(mine) == SIZES[2]


@pytest.mark.slow
def test_the_task_and_the_settings_of_the_page_work_as_they_stand(tmp_path, monkeypatch, capsys):
    """docs/deploy.md, with its /data in a folder of the test's, in the simulator."""
    page = (Path(__file__).parents[1] / "docs" / "deploy.md").read_text()
    (task,), (settings,) = (re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL) for kind in ("python", "toml"))
    rng = np.random.default_rng(0)

    def patients(size):
        return rng.normal(size=(size, 30)).astype(np.float32), rng.integers(0, 2, size)

    np.savez(tmp_path / "patients.npz", **dict(zip("xy", patients(900), strict=True)))
    named = zip(("x_val", "y_val", "x_test", "y_test"), (*patients(40), *patients(60)), strict=True)
    np.savez(tmp_path / "server.npz", **dict(named))
    (tmp_path / "hospitals.py").write_text(task.replace("/data/", f"{tmp_path}/"))
    (tmp_path / "settings.toml").write_text(settings)
    monkeypatch.chdir(tmp_path)
    words = ["run", "hospitals.py:task", "--config", "settings.toml", "--rounds", "2", "--name", "run", "--json"]
    assert main(words) == 0
    (first, _) = read_rounds(tmp_path / "runs" / "run")
    assert [entry["examples"] for entry in first["clients"].values()] == [900, 900, 900]
