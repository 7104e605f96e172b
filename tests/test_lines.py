"""The lines of a run's log: counted, read, or refused with their place."""

import gzip
import io
import json
from pathlib import Path

import pytest

from fedaccord.core.errors import RunError
from fedaccord.runtime.folder import read_end, read_rounds
from fedaccord.runtime.lines import end_of, rounds_in

FILE = Path("rounds.jsonl")


def written(*entries, cut=b""):
    return b"".join(json.dumps(entry).encode() + b"\n" for entry in entries) + cut


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("cut", [b"", b'{"round": 9', b'{"round": 9}'])
def test_the_end_is_that_of_reading_all_of_it(tmp_path, count, cut):
    """A line that was cut off, be it whole but for its end, is not there yet."""
    data = written(*({"round": n, "loss": 1 / (n + 1)} for n in range(count)), cut=cut)
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
        list(rounds_in(io.BytesIO(written({"round": 1}, {"round": 2, "odd": value})), FILE))
    fine = {"round": 1, "odd": 2**63 - 1, "loss": 0.1234567890123456789, "guard": "9" * 30}
    assert list(rounds_in(io.BytesIO(written(fine)), FILE)) == [fine]


def test_what_is_damaged_before_the_end_is_only_counted():
    """Whoever wants the figures reads all of it, and is told."""
    stream = io.BytesIO(b"nonsense\n" + written({"round": 2}))
    assert end_of(stream, FILE) == (2, {"round": 2})
    with pytest.raises(RunError, match="line 1"):
        list(rounds_in(io.BytesIO(b"nonsense\n"), FILE))
    with pytest.raises(RunError, match="line 2"):
        end_of(io.BytesIO(written({"round": 1}) + b"[]\n"), FILE)
