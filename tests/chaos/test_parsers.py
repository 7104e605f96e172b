"""A few hundred spoiled inputs for every parser; `python -m benchmarks.chaos` gives each a million."""

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.chaos import fuzz, parsers
from fedaccord.core.errors import FedAccordError

ROOT = Path(__file__).parents[2]
NEEDS = {"wav": "soundfile", "wire": "flwr", "keys": "flwr"}
FOUND = sorted((Path(__file__).parent / "found").glob("*.bin"))
"""Inputs that once were answered by an untyped error, too much memory or a long wait."""


def needed(name: str) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])


@pytest.mark.slow  # a fifth of a second each, and what they load
@pytest.mark.anywhere
@pytest.mark.filterwarnings("ignore")  # of what the libraries find odd
@pytest.mark.parametrize("name", fuzz.MODULES)
def test_every_input_is_a_value_or_a_typed_error(name, tmp_path, monkeypatch):
    """In this process, so memory is not looked at, and without the inputs that were built to take long."""
    needed(name)
    monkeypatch.chdir(tmp_path)
    aim = fuzz.target(name)
    monkeypatch.setattr(fuzz, "target", lambda name: fuzz.Target(aim.what, aim.make, aim.read))
    monkeypatch.setattr(fuzz, "MEMORY", float("inf"))
    told = fuzz.attack(name, 0, 200, tmp_path)
    assert told["lost"] == {}
    assert 0 < told["accepted"] < 200  # the inputs are neither all sound nor all hopeless


@pytest.mark.slow
@pytest.mark.anywhere
@pytest.mark.parametrize("name", fuzz.MODULES)
def test_what_was_built_to_take_memory_or_time_does_not(name, tmp_path, monkeypatch):
    needed(name)
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(parsers, "FOUND", tmp_path / "found")
    outcome = parsers.attempt(name, 0, tmp_path, 100)
    assert (outcome.tried, outcome.lost) == (100, 0), outcome.told
    assert 0 < outcome.figures["peak MiB"] <= fuzz.MEMORY


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("file", FOUND, ids=lambda file: file.stem)
def test_what_was_once_found_stays_mended(file, tmp_path, monkeypatch):
    name = file.stem.partition("-")[0]
    needed(name)
    monkeypatch.chdir(tmp_path)
    with contextlib.suppress(FedAccordError):
        fuzz.target(name).read(file.read_bytes(), tmp_path)


PARSER = """
import sys, time
from benchmarks.chaos import fuzz
from benchmarks.chaos.target import Target

def read(data, folder):
    if data == b"7":
        {fault}
    return True

numbers = iter(range(100))
aim = Target("it", lambda rng: b"%d" % next(numbers), read)
fuzz.target = lambda name: aim
sys.exit(fuzz.main())
"""


@pytest.mark.slow
@pytest.mark.anywhere
@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("raise KeyError(3)", "KeyError: 3"),
        ("held = bytes([1]) * (600 << 20)", "took the process to"),
        ("assert False", "AssertionError"),
    ],
)
def test_a_fault_is_counted_and_its_input_kept(fault, told, tmp_path):
    """The harness must be able to see one."""
    command = [sys.executable, "-c", PARSER.format(fault=fault), "idx", "0", "20", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    ((file, why),) = json.loads(done.stdout)["lost"].items()
    assert told in why
    assert (tmp_path / "lost" / file).read_bytes() == b"7"


@pytest.mark.slow
@pytest.mark.anywhere
def test_a_process_that_dies_or_hangs_is_counted_with_the_input_at_hand(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(parsers, "FOUND", tmp_path / "found")
    monkeypatch.setattr(parsers, "PATIENCE", 2.0)
    run = subprocess.Popen
    for fault in ("import os; os.kill(os.getpid(), 11)", "time.sleep(1000)"):
        scratch = tmp_path / fault[:6]
        scratch.mkdir()

        def other(command, *rest, fault=fault, **more):
            return run([command[0], "-c", PARSER.format(fault=fault), *command[3:]], *rest, **more)

        monkeypatch.setattr(parsers.subprocess, "Popen", other)
        outcome = parsers.attempt("idx", 0, scratch, 20)
        assert (outcome.tried, outcome.lost) == (8, 1), outcome
        (kept,) = (scratch / "lost").iterdir()
        assert kept.read_bytes() == (tmp_path / "found" / kept.name).read_bytes() == b"7"
