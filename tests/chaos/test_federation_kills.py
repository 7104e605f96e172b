"""The harness of the kills in a federation; kills themselves are in tests/flower/test_federation.py."""

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))


def test_standard_output_is_silent_inside_and_as_before_afterwards(capfd):
    pytest.importorskip("flwr")
    from benchmarks.chaos.federation import silence

    with silence():
        os.write(1, b"inside")
    os.write(1, b"after")
    assert capfd.readouterr().out == "after"
