"""A real federation: processes, TLS, node keys. What is slow and random is in benchmarks/kill_federation.py."""

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from flower_helpers import FEDACCORD, RMAH, private_files, settings_for
from helpers import wait_for

from fedaccord.cli import main
from fedaccord.data import mnist
from fedaccord.runtime.build import from_task
from fedaccord.runtime.drive import drive
from fedaccord.runtime.folder import read_rounds
from fedaccord.tasks import find_task

pytestmark = pytest.mark.filterwarnings("ignore")  # flwr's own


PICTURES_TASK = """
import torch
from fedaccord import Examples, Task
from fedaccord.data.sets import DataSet
from fedaccord.models import mnist_mlp


def data():
    '''MNIST in small: made-up pictures, a bright row for each digit.'''
    draw = torch.Generator().manual_seed(0)
    digits = torch.arange(900) % 10
    inputs = torch.rand(900, 1, 28, 28, generator=draw)
    inputs[torch.arange(900), 0, 2 * digits] += 1
    cut = 700
    names = tuple("0123456789")
    return DataSet(Examples(inputs[:cut], digits[:cut]), Examples(inputs[cut:], digits[cut:]), names)


task = Task("pictures", data, mnist_mlp)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "own"),
    [
        pytest.param("digits", {}, id="digits"),
        pytest.param(
            "digits", {"method": "SCAFFOLD", "rounds": 3, "fraction": 0.67}, id="SCAFFOLD", marks=pytest.mark.anywhere
        ),
        pytest.param(
            "pictures",
            {"evaluate": "clients", "paired": True, "rounds": 3, "fraction": 0.67},
            id="MNIST in small, the clients report",
            marks=pytest.mark.anywhere,
        ),
        pytest.param("mnist", {"validation_per_class": 20, "test_every": 5}, id="mnist", marks=pytest.mark.anywhere),
    ],
)
def test_a_federation_over_tls_has_the_bits_of_the_serial_engine(task, own, tmp_path, real_set, capsys):
    if task == "mnist":
        real_set(mnist.SOURCE)
    if task == "pictures":
        (tmp_path / "pictures.py").write_text(PICTURES_TASK)
        task = f"{tmp_path / 'pictures.py'}:task"
    wanted = {**RMAH, **own}
    words = [word for name, value in wanted.items() for word in ("--set", f"{name}={value}")]
    up = ["federation", "up", "--task", task, "--nodes", "3", "--folder", str(tmp_path / "f"), "--json", *words]
    done = subprocess.run([*FEDACCORD, *up], capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    real = json.loads(done.stdout.splitlines()[-1])
    serial = ["run", task, "--runs", str(tmp_path), "--name", "s", "--engine", "serial", "--clients", "3", "--json"]
    assert main([*serial, *words]) == 0
    straight = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert real["params_sha256"] == straight["params_sha256"]
    assert real["log_sha256"] == straight["log_sha256"]  # psi, rewards, every client's figures
    newest = {client: names[-1] for client, names in private_files(tmp_path / "s" / "private").items()}
    theirs = {}
    for node in range(3):
        theirs |= private_files(tmp_path / "f" / f"node{node}")
    assert {client: names[-1] for client, names in theirs.items()} == newest
    # of before the older of the server's two checkpoints, and the two rounds after it
    assert all(len(names) <= 3 for names in theirs.values())
    for secret in (tmp_path / "f" / "keys").iterdir():
        if secret.suffix not in (".pub", ".pem", ".node"):
            assert secret.stat().st_mode & 0o777 == 0o600


@pytest.mark.slow
@pytest.mark.anywhere
def test_killed_parts_come_back_and_the_bits_stay(federation):
    """A node, the server and the SuperLink, one after the other, in one run."""
    settings = settings_for(rounds=9, test_every=9)
    local = federation(settings, json=True)
    log = local.folder / "run" / "rounds.jsonl"

    def kill() -> None:
        for part, after in ((local.members[1], 2), (local.server, 4), (local.link, 6)):
            while not log.exists() or log.read_bytes().count(b"\n") < after:
                time.sleep(0.02)
            os.kill(part.process.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    assert local.run() == 0
    killer.join(1)
    assert [part.deaths > 0 for part in (local.members[1], local.server, local.link)] == [True] * 3
    outcome = drive(from_task(find_task("digits"), replace(settings, engine="serial")), None, None)
    found = [{**line, "seconds": 0} for line in read_rounds(local.folder / "run")]
    assert found == [{**vars(line), "seconds": 0} for line in outcome.rounds]


@pytest.mark.slow
@pytest.mark.anywhere
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_nothing_outlives_the_federation(tmp_path, how):
    words = ["federation", "up", "--task", "digits", "--folder", str(tmp_path), "--json", "--set", "rounds=500"]
    up = subprocess.Popen([*FEDACCORD, *words], stdout=subprocess.DEVNULL, start_new_session=True)
    log = tmp_path / "run" / "rounds.jsonl"
    wait_for(lambda: log.exists() and log.stat().st_size)
    assert len(running(tmp_path)) >= 5
    os.killpg(up.pid, how) if how == signal.SIGINT else up.kill()  # as a terminal does; and the parent alone
    assert up.wait(300) == (130 if how == signal.SIGINT else -how)
    wait_for(lambda: not running(tmp_path))


def running(folder: Path) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if os.fsencode(folder) in process.read_bytes() and int(process.parent.name) != os.getpid():
                found.append(process.parent.name)
    return found
