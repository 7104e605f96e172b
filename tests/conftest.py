"""Every test runs as on a fresh machine without a network; the real data sets are an explicit exception."""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import platformdirs
import pytest
import torch

from fedaccord.data import sources
from fedaccord.data.sources import Source

# no deadline: a timing is never asserted; derandomized: a test that passed passes again
hypothesis.settings.register_profile("fedaccord", deadline=None, derandomize=True)
hypothesis.settings.load_profile("fedaccord")

torch.set_num_threads(1)  # on a busy machine two threads are slower than one

# read before any test hides them
SHARED = Path(__file__).parents[2] / "shared" / "data"
REAL_PLACES = [
    *([Path(os.environ["FEDACCORD_DATA"])] if os.environ.get("FEDACCORD_DATA") else []),
    SHARED,
    Path(platformdirs.user_cache_dir("fedaccord")),
]
NOBODY = "http://127.0.0.1:9"  # the discard port: refused at once


@pytest.fixture(autouse=True)
def fresh_machine(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """An empty cache of its own, no FEDACCORD_DATA, and a dead proxy, which subprocesses inherit too.

    And the same random numbers each time, also where a test draws them without a generator of its own.
    """
    torch.manual_seed(0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.delenv("FEDACCORD_DATA", raising=False)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, NOBODY)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1,localhost,::1")
    monkeypatch.setenv("npm_config_offline", "true")
    monkeypatch.setenv("npm_config_cache", str(tmp_path_factory.mktemp("npm")))


@pytest.fixture
def real_set(monkeypatch: pytest.MonkeyPatch) -> Callable[[Source], Path]:
    """Call it with a set's source: it makes the set visible and returns its folder, or skips the test."""

    def use(source: Source) -> Path:
        for place in REAL_PLACES:
            for folder in (place / source.name, place):
                if all(sources.present(folder, name) for name in source.files):
                    monkeypatch.setenv("FEDACCORD_DATA", str(place))
                    return folder
        pytest.skip(f"the real {source.name} is not on this machine (`fedaccord data fetch {source.name}` gets it)")

    return use


TOGETHER = {
    "test_browser.py",
    "test_compare.py",
    "test_lab.py",
    "test_page.py",
    "test_ray.py",
    "test_reproduce.py",
    "test_speech_commands.py",
    "test_yardsticks.py",
}
"""Files whose tests share something that takes long to make or to load: they run in one process, so it is done once."""


@pytest.hookimpl(optionalhook=True)  # there is none without pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class ByFixture(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::")[0]
            return file if Path(file).name in TOGETHER else nodeid

    return ByFixture(config, log)


LONG = {"study", "remade", "measured", "cluster", "browser", "real"}
"""Fixtures that take long: whatever needs one is slow."""


@pytest.hookimpl(tryfirst=True)  # before -m looks at the markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if LONG.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """After `make quick`, name what took longest if it was too long. Nothing fails: the machine may have been busy."""
    if config.option.markexpr != "not slow":
        return
    took: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                took[report.nodeid] += report.duration
    for test, seconds in took.most_common(10):
        if seconds >= 1:
            terminalreporter.line(f"took {seconds:.1f} s; if the machine was not busy, mark it slow: {test}")
