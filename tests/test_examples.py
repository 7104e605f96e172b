"""Every example of a task, with every method; each is short enough to be read at once."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedaccord import metrics

FOLDER = Path(__file__).parents[1] / "examples" / "tasks"
EXAMPLES = sorted(file.stem for file in FOLDER.glob("*.py"))
ROUNDS = 6
BETTER = {each.name: each.higher for each in metrics.METRICS.values()}

pytestmark = pytest.mark.slow


def example(name):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_is_one_for_each_kind_of_task():
    assert EXAMPLES == [
        "adam", "adapters", "fedbn", "fedper", "lazy_dataset", "multi_label", "next_character", "regression",
        "two_inputs",
    ]  # fmt: skip
    for name in EXAMPLES:
        assert len((FOLDER / f"{name}.py").read_text().splitlines()) < 60


@pytest.mark.parametrize("method", ["FA", "FA+RM", "FA+RM+AH"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_it_learns_with_every_method(name, method):
    """The loss of the last round is below that of the first; and the metric that it is judged by was measured."""
    history = example(name).train(method, ROUNDS)
    losses = [log.loss for log in history.rounds]
    assert len(losses) == ROUNDS
    assert losses[-1] < losses[0]
    measured = history.rounds[-1].metrics
    assert measured
    assert set(measured) <= set(BETTER)


def test_the_file_to_copy_runs_as_it_stands():
    done = subprocess.run([sys.executable, FOLDER.parent / "own_model.py"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert re.search(r"test accuracy 9\d\.\d%", done.stdout)


def test_two_hundred_thousand_examples_take_less_than_a_gibibyte():
    """The whole process, torch and all, as the system counts it, and the largest worker.

    Its own count is read from /proc: getrusage also has what the process was before it became this program, and that is
    the one that runs the tests.
    """
    script = (
        "import sys, resource; sys.path.insert(0, sys.argv[1]); import lazy_dataset\n"
        "lazy_dataset.train('FA', 3, engine=sys.argv[2], readers=int(sys.argv[3]))\n"
        "own = next(int(line.split()[1]) for line in open('/proc/self/status') if line.startswith('VmHWM'))\n"
        "print('kibibytes', max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))"
    )
    for engine, readers in (("serial", "0"), ("pool", "1")):
        words = [sys.executable, "-W", "error", "-c", script, str(FOLDER), engine, readers]
        done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr
        assert int(re.search(r"kibibytes (\d+)", done.stdout)[1]) < 2**20
