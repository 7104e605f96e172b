"""Fixtures of the real federation. Without Flower there is nothing to test here."""

import warnings

import pytest

from fedaccord import config

try:
    with warnings.catch_warnings(action="ignore"):  # those of its own imports
        import flwr  # noqa: F401
except ImportError:
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture
def federation(tmp_path, monkeypatch):
    """Call it: a local federation that was not started yet; ended in the end."""
    from fedaccord.flower.local import LocalFederation

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    made = []

    def make(settings, nodes=3, **more):
        folder = tmp_path / "federation"
        folder.mkdir()
        (folder / "settings.toml").write_text(config.to_toml(settings))
        made.append(LocalFederation(folder, nodes, **more))
        return made[-1]

    yield make
    for local in made:
        local.end()


class Clock:
    """Stands in for the module `time`: only sleeping moves it, so a wait is exact and takes no time."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    from fedaccord.flower import server

    monkeypatch.setattr(server, "time", made := Clock())
    return made


@pytest.fixture
def own_run():
    """flwr wants to know whose messages these are."""
    from fedaccord.flower.adapter import identify

    identify(1, 1, 1)
