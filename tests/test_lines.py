"""The lines of a run's log: counted, read, or refused with their place."""

import dataclasses
import gzip
import io
import json
from pathlib import Path

import pytest

from fedaccord import config
from fedaccord.core.errors import RunError
from fedaccord.core.records import RoundLog
from fedaccord.runtime.folder import RunFolder, read_end, read_rounds
from fedaccord.runtime.lines import LINE, end_of, round_of, rounds_in

FILE = Path("rounds.jsonl")


def entry(round, **more):
    """A round as the log has it."""
    log = RoundLog(round, {"lr": 0.1}, [0], [], 1 / round, {}, None, {}, None, {"0": {"examples": 3}})
    return {**dataclasses.asdict(log), **more}


def written(*entries, cut=b""):
    return b"".join(json.dumps(entry).encode() + b"\n" for entry in entries) + cut


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("cut", [b"", b'{"round": 9', b'{"round": 9}'])
def test_the_end_is_that_of_reading_all_of_it(tmp_path, count, cut):
    """A line that was cut off, be it whole but for its end, is not there yet."""
    data = written(*(entry(n) for n in range(1, count + 1)), cut=cut)
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / FILE).write_bytes(data)
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "rounds.jsonl.gz").write_bytes(gzip.compress(data))
    for name in ("plain", "packed"):
        lines = list(read_rounds(tmp_path / name))
        assert len(lines) == count
        assert read_end(tmp_path / name) == (count, lines[-1] if lines else None)


@pytest.mark.parametrize("value", [2**63, -(2**63), [{"deep": 10**40}]])
def test_a_whole_number_that_no_array_holds_is_refused_with_its_line(value):
    """2^63 has 19 digits: what has fewer is not looked at a second time."""
    with pytest.raises(RunError, match=r"rounds\.jsonl: line 2 is not a round's: a number has more than 64 bits"):
        list(rounds_in(io.BytesIO(written(entry(1), entry(2, policy={"odd": value}))), FILE))
    fine = entry(1, policy={"odd": 2**63 - 1}, loss=0.1234567890123456789, guard="9" * 30)
    assert list(rounds_in(io.BytesIO(written(fine)), FILE)) == [fine]


def test_what_is_damaged_before_the_end_is_only_counted():
    """Whoever wants the figures reads all of it, and is told."""
    stream = io.BytesIO(b"nonsense\n" + written(entry(2)))
    assert end_of(stream, FILE) == (2, entry(2))
    with pytest.raises(RunError, match="line 1"):
        list(rounds_in(io.BytesIO(b"nonsense\n"), FILE))
    with pytest.raises(RunError, match="line 2"):
        end_of(io.BytesIO(written(entry(1)) + b"[]\n"), FILE)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"round": True}, "it has no round"),
        ({"loss": "low"}, "loss is of the wrong type"),
        ({"clients": {"1": 3}}, "client 1 is of the wrong type"),
        ({"clients": {"1": {"examples": 0.5}}}, "examples is of the wrong type"),
        ({"refused": ["late"]}, "refused is of the wrong type"),
    ],
)
def test_what_is_of_the_wrong_type_is_refused_with_its_line(change, says):
    with pytest.raises(RunError, match=f"line 1 is not a round's: {says}"):
        list(rounds_in(io.BytesIO(written({**entry(1), **change})), FILE))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"lors": 1.0}, "it has 'lors'"),
        ({"hyper": None}, "it has no hyper"),
        ({"cohort": ["a"]}, "a client of the cohort has no number"),
        ({"refused": [{"client": 1}]}, "a refusal has no client or no reason"),
        ({"clients": {"one": {}}}, "a client has no number"),
        ({"clients": {"1": None}}, "a client has no number"),
    ],
)
def test_a_run_goes_on_only_from_whole_rounds(change, says):
    """A page can be made of less."""
    damaged = {**entry(1), **change}
    assert list(rounds_in(io.BytesIO(written(damaged)), FILE)) == [damaged]
    with pytest.raises(RunError, match=f"the line of round 1 is damaged: {says}"):
        round_of(damaged, FILE)


@pytest.mark.parametrize("name", ["hyper", "loss", "policy", "guard"])
def test_a_field_that_is_missing_is_named(name):
    assert round_of(entry(1), FILE) == RoundLog(**entry(1))
    less = {key: value for key, value in entry(1).items() if key != name}
    with pytest.raises(RunError, match=f"it has no {name}"):
        round_of(less, FILE)


def test_a_line_that_nobody_could_read_again_is_not_written(tmp_path):
    log = RoundLog(**entry(1, policy={"long": "x" * LINE}))
    with RunFolder.create(tmp_path / "run", config.make({})) as folder:
        with pytest.raises(RunError, match="1 clients are too many"):
            folder.append(log)
        assert folder.rounds() == []
