"""The usual commands in real processes, with the network taken away and every attempt to use it written down."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedaccord.cli import main

FEDACCORD = [sys.executable, "-m", "fedaccord.cli"]
ROOT = Path(__file__).parent.parent
WATCH = """
import json, os, sys

EVENTS = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "urllib.Request")

def watch(event, given):
    if event in EVENTS:
        said = [str(each) for each in given if not hasattr(each, "fileno")]
        with open(os.environ["WATCHED"], "a") as file:
            file.write(json.dumps([event, *said]) + "\\n")

sys.addaudithook(watch)
"""
"""Python starts with it, also in processes that a command starts: what a library swallows is seen, too."""


def without_network() -> list[str]:
    """What runs a command in a network of its own, in which there is nobody; nothing where that is not permitted."""
    alone = ["unshare", "--map-root-user", "--net"]
    found = shutil.which("unshare") and subprocess.run([*alone, "true"], capture_output=True).returncode == 0
    return alone if found else []


def elsewhere(line: str) -> bool:
    """Whether an attempt went beyond this machine: not to loopback, and not to a socket in the file system."""
    _, *said = json.loads(line)
    return not " ".join(said).startswith(HERE)


HERE = ("('127.", "127.", "('::1'", "localhost", "('localhost'", "/", "b'/", "http://127.0.0.1", "http://localhost")


@pytest.fixture
def watched(tmp_path, monkeypatch):
    """Run a command; what it tried with the network."""
    place = tmp_path / "site"
    place.mkdir()
    (place / "sitecustomize.py").write_text(WATCH)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(place), str(ROOT))))
    monkeypatch.setenv("WATCHED", str(tmp_path / "watched"))
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)  # a proxy on loopback would hide where it wants to go

    def run(*words: str, code: int = 0) -> list[str]:
        command = [*without_network(), *FEDACCORD, *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
        assert done.returncode == code, done.stderr[-2000:]
        file = tmp_path / "watched"
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return lines

    return run


@pytest.mark.slow
@pytest.mark.anywhere
@pytest.mark.filterwarnings("ignore")
def test_the_usual_commands_use_no_network(watched, tmp_path):
    """Two workers, so processes that are started are watched as well."""
    run = ["run", "digits", "--rounds", "2", "--runs", "runs", "--json", "--engine", "pool", "--workers", "2"]
    study = ["compare", "--task", "digits", "--methods", "FA,FA+AH", "--set", "rounds=1", "--results", "study"]
    commands = [
        [*run, "--name", "a"],
        ["resume", "runs/a", "--rounds", "3", "--json"],
        study,
        ["report", "runs/a", "-o", "report.html"],
        ["export", "runs/a", "-o", "model.safetensors"],
        ["export", "runs/a", "-o", "model.pt2"],
        ["data", "list"],
        ["methods"],
    ]
    for words in commands:
        assert [line for line in watched(*words) if elsewhere(line)] == [], words
    assert (tmp_path / "report.html").exists()
    assert (tmp_path / "model.safetensors").exists()


@pytest.mark.slow
@pytest.mark.anywhere
def test_a_run_of_a_set_that_is_not_here_does_not_fetch_it(watched):
    assert watched("run", "mnist", "--rounds", "1", "--runs", "runs", code=2) == []


@pytest.mark.slow
@pytest.mark.anywhere
def test_fetch_is_seen_to_try(watched):
    """So the watch can see one."""
    assert any("ossci-datasets" in line for line in filter(elsewhere, watched("data", "fetch", "mnist", code=2)))


def test_a_word_with_a_stranger_is_told_from_one_with_oneself():
    assert elsewhere('["socket.connect", "(\'10.0.0.1\', 80)"]')
    assert elsewhere('["socket.getaddrinfo", "example.org", "443"]')
    assert not elsewhere('["socket.connect", "(\'127.0.0.1\', 80)"]')
    assert not elsewhere('["socket.connect", "/tmp/socket"]')


QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
"""Flower reports to its makers and asks them for a newer version unless it finds these as it is imported."""


@pytest.mark.filterwarnings("ignore")
def test_flower_is_told_to_keep_to_itself_by_a_command(tmp_path, monkeypatch):
    pytest.importorskip("flwr")
    monkeypatch.setattr(os, "environ", {name: value for name, value in os.environ.items() if name not in QUIET})
    assert main(["federation", "key", str(tmp_path / "key")]) == 0
    assert os.environ.items() >= QUIET.items()


@pytest.mark.slow
def test_flower_is_not_imported_before_it_is_told():
    looks = "import sys, fedaccord.cli.federation, fedaccord.runtime.federation; sys.exit('flwr' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", looks], cwd=ROOT).returncode == 0


@pytest.mark.filterwarnings("ignore")
def test_the_processes_of_a_local_federation_keep_to_themselves(tmp_path, monkeypatch):
    pytest.importorskip("flwr")
    from fedaccord.flower import local

    monkeypatch.setattr(os, "environ", {**os.environ, **dict.fromkeys(QUIET, "other")})
    given = []
    made = local.LocalFederation(tmp_path / "federation", 1, insecure=True)
    with monkeypatch.context() as patch:
        patch.setattr(local.subprocess, "Popen", lambda words, env, **more: given.append(env))
        for part in made.parts():
            made.spawn(part)
    made.end()
    assert len(given) == 3
    assert all(env.items() >= QUIET.items() for env in given)
