"""What a run spent and was worth: from logs written by hand, so that every figure can be added up."""

import math

import pytest
from folders import line, write_run

from fedaccord.core.errors import RunError
from fedaccord.report.spent import Measured, interval, read_at, read_tests, total_of

CLIENTS = {"0": {"examples": 100, "update_norm": 1.0}, "1": {"examples": 30, "update_norm": 1.0}}


def log(rounds, **changes):
    """Each round two seconds and 10 bytes, tested in every second one: 2 %, 4 %, ..."""
    return [
        line(t, clients=CLIENTS, bytes=10, metrics={"accuracy": t / 100} if t % 2 == 0 else {}, **changes)
        for t in range(1, rounds + 1)
    ]


def test_what_is_spent_is_added_up_until_each_test(tmp_path):
    tests = read_tests(write_run(tmp_path / "a", log(4, hyper={"lr": 0.1, "steps": 7})))
    assert [test.value for test in tests] == pytest.approx([2.0, 4.0])
    assert tests[0].spent == {"rounds": 2, "steps": 2 * 2 * 7, "bytes": 20, "seconds": 4.0}
    assert tests[1].spent == {"rounds": 4, "steps": 2 * 4 * 7, "bytes": 40, "seconds": 8.0}


def test_a_client_may_have_steps_of_its_own(tmp_path):
    """As a policy chose them for it; else those of the round, else of the settings."""
    clients = {"0": {"examples": 1, "hyper": {"steps": 3}}, "1": {"examples": 1}}
    run = write_run(tmp_path / "a", [line(1, clients=clients, hyper={"steps": 7}), line(2, clients=clients, hyper={})],
                    steps=11)  # fmt: skip
    assert [test.spent["steps"] for test in read_tests(run)] == [3 + 7, 3 + 7 + 3 + 11]


def test_a_run_that_was_never_tested_is_named(tmp_path):
    with pytest.raises(RunError, match="its accuracy was never measured"):
        read_tests(write_run(tmp_path / "a", log(1)))


def measured(values, steps_each=10):
    costs = [dict.fromkeys(("rounds", "steps", "bytes", "seconds"), steps_each * (n + 1)) for n in range(len(values))]
    return [Measured(spent, value) for spent, value in zip(costs, values, strict=True)]


def test_a_reading_is_the_last_test_within_the_budget():
    run = measured([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
    whole = read_at([run], "steps")
    assert (whole.value, whole.last, whole.spent["bytes"]) == (7.0, 5.0, 70)  # (3 + 4 + 5 + 6 + 7) / 5
    half = read_at([run], "steps", 45 / 70)
    assert (half.value, half.last, half.spent["bytes"]) == (4.0, 2.5, 40)
    assert read_at([run], "steps", 9 / 70) is None
    assert read_at([run], "steps", 1.0) == whole  # to the last, whatever rounding does to the share


def test_clients_that_are_alone_are_cut_at_the_same_part():
    small, large = measured([1.0, 3.0]), measured([5.0, 9.0], steps_each=100)
    both = read_at([small, large], "steps", 0.5)
    assert both.values == (1.0, 5.0)
    assert (both.value, both.spent["steps"], both.spent["rounds"]) == (3.0, 110, 100)
    assert total_of([small, large], "seconds") == 220


def test_the_interval_is_students():
    """1, 2, 3: mean 2, deviation 1, and Student's t has 95 % within 4.3027 for two degrees of freedom."""
    low, high = interval([1.0, 2.0, 3.0])
    assert (low, high) == pytest.approx((2 - 4.30265 / math.sqrt(3), 2 + 4.30265 / math.sqrt(3)), abs=1e-4)
    assert interval([1.0]) is None
