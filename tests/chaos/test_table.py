"""The table of docs/reliability.md is what the recorded outcomes come to."""

import sys
from importlib import import_module
from pathlib import Path

import pytest

pytest.importorskip("flwr")
pytestmark = pytest.mark.filterwarnings("ignore")  # flwr's own

ROOT = Path(__file__).parents[2]


@pytest.fixture
def chaos():
    return import_module("benchmarks.chaos.__main__")


def test_the_published_table_is_that_of_the_recorded_outcomes(chaos, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["chaos", "--no-run", "--results", str(ROOT / "results" / "chaos")])
    assert chaos.main() == 0  # nothing was lost
    assert f"<!-- chaos -->\n{capsys.readouterr().out}<!-- end -->" in (ROOT / "docs" / "reliability.md").read_text()


def test_what_was_recorded_is_not_made_again(chaos, tmp_path):
    """And a line that was cut off is."""
    made = []

    def attempt(number, scratch):
        made.append(number)
        return chaos.Outcome(2, 0, figures={"n": number})

    part = chaos.Part("kills", "what", attempt, 1, 3)
    file = tmp_path / "kills.jsonl"
    chaos.go_on(part, 2, file)
    file.write_text(file.read_text()[:-3])
    outcomes = chaos.go_on(part, 3, file)
    assert made == [0, 1, 1, 2]
    assert chaos.table({"kills": outcomes}).splitlines()[2].endswith("| 6 | 0 | n 2 |")
