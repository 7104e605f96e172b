"""All methods side by side: which runs there are, and what the tables make of them."""

from dataclasses import replace
from pathlib import Path

import pytest

from fedaccord.cli import main
from fedaccord.experiments import field, lab
from fedaccord.experiments.field import Field, sensible
from fedaccord.report.field import Entry, gains, markdown, means_of, regrets_of, table

NOWHERE = Path("/nonexistent")


def test_every_method_has_the_variants_that_make_sense():
    """Whoever chooses hyper-parameters itself has no tuner beside it; everything that is listed can be built."""
    assert sensible("FedEx") == sensible("FATHOM") == ("", "+RM")
    assert all(sensible(method) == field.VARIANTS for method in field.METHODS if method not in ("FedEx", "FATHOM"))
    assert {"FA", "FA+WD", "SCAFFOLD", "FixedHead"} <= set(field.METHODS)
    problems = [lab.PROBLEMS[name] for name in field.PROBLEMS]
    cells = [cell for *_, cell in Field(NOWHERE, problems, field.METHODS, [0, 1]).cells()]
    assert len(problems) == 6
    assert len({cell.name for cell in cells}) == len(cells) == 2 * 6 * (4 * (len(field.METHODS) - 2) + 2 * 2)


def test_variants_share_everything_but_what_was_joined():
    (problem,) = [lab.PROBLEMS["mnist-one-C0.5"]]
    found = {v: cell.settings.values() for _, _, v, cell in Field(NOWHERE, [problem], ["SCAFFOLD"], [3]).cells()}
    plain, tuned = found[""], found["+AH"]
    assert plain["rounds"] == problem.settings["rounds"]
    assert {name for name in plain if plain[name] != tuned[name]} == {"method"}
    assert {name for name in plain if plain[name] != found["+RM"][name]} == {"method"}


def entries(**accuracies):
    """method_variant -> accuracies on the problems a and b; chance is 10 %."""
    return [
        Entry(problem, name.partition("_")[0], "".join(f"+{v}" for v in name.split("_")[1:]), 0, value, 100, 10.0)
        for name, values in accuracies.items()
        for problem, value in zip("ab", values, strict=False)
    ]


RUNS = entries(FA=(50, 80), FA_AH=(60, 70), FA_RM=(56, 81), FA_RM_AH=(64, 70), MOON=(12, 90), MOON_RM=(14,))


def test_what_is_missed_is_by_problem_and_of_the_best_of_all():
    """On a the best is 64, on b 90."""
    assert regrets_of(means_of(RUNS)) == {
        "FA": {"a": 14, "b": 10},
        "FA+AH": {"a": 4, "b": 20},
        "FA+RM": {"a": 8, "b": 9},
        "FA+RM+AH": {"a": 0, "b": 20},
        "MOON": {"a": 52, "b": 0},
        "MOON+RM": {"a": 50},
    }


def test_the_smallest_average_comes_first_and_what_lacks_a_problem_last():
    """Averages: FA+RM 8.5, FA+RM+AH 10, FA 12, FA+AH 12, MOON 26; 12 and 14 % are at chance, below 15."""
    rows = [line.strip("| ").split(" | ") for line in table(RUNS, ["a", "b"], 1).splitlines()[2:]]
    assert [row[0] for row in rows] == ["FA+RM", "FA+RM+AH", "FA", "FA+AH", "MOON", "MOON+RM"]
    assert rows[0] == ["FA+RM", "8.5", "9.0 (b)", "56.0", "81.0"]
    assert rows[4] == ["MOON", "26.0", "52.0 (a)", "12.0*", "90.0"]
    assert rows[5] == ["MOON+RM", "50.0", "50.0 (a)", "14.0*", "–"]


def test_seeds_are_averaged_and_missing_ones_counted():
    runs = [*entries(FA=(50, 80)), *(replace(each, seed=1, accuracy=54) for each in entries(FA=(0,)))]
    assert "| FA | 0.0 | 0.0 (a) | 52.0 | 80.0 (1 of 2) |" in table(runs, ["a", "b"], 2)


def test_gains_are_those_of_the_problems_that_both_have():
    """FA: matching 6 and 1, the tuner 10 and -10, matching beside it 4 and 0. MOON: matching 2 on the one there is."""
    rows = gains(means_of(RUNS)).splitlines()[2:]
    assert rows[0] == "| FA | +3.5 (+1.0 to +6.0) | +0.0 (-10.0 to +10.0) | +2.0 (+0.0 to +4.0) |"
    assert rows[1] == "| MOON | +2.0 (+2.0 to +2.0) | – | – |"
    assert len(rows) == 2


def test_nothing_finished_is_no_table():
    assert markdown([], ["a"], [0]) == "No run is finished yet\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--problems", "mars"], "unknown problem 'mars'"),
        (["--methods", "FA+AH"], "leave out AH"),
        (["--methods", "nobody"], "nobody"),
        (["--first-seed", "-1"], "expected 0 or more"),
        (["--no-run"], "r: "),
    ],
)
def test_mistakes_are_one_line(tmp_path, capsys, words, says):
    assert main(["bench", "field", "--results", str(tmp_path / "r"), *words]) == 2
    told = capsys.readouterr().err
    assert says in told
    assert told.count("\n") == 1


@pytest.mark.slow
@pytest.mark.anywhere
def test_the_command_runs_what_is_missing_and_leaves_tables(tmp_path, monkeypatch, capsys):
    short = replace(lab.PROBLEMS["digits-one"], settings={"rounds": 2, "test_every": 1, "split": "non-iid"})
    monkeypatch.setitem(lab.PROBLEMS, "digits-one", short)
    words = ["bench", "field", "--problems", "digits-one", "--methods", "FATHOM", "--results", str(tmp_path / "r")]
    assert main(words) == 0
    text = (tmp_path / "r" / "field.md").read_text()
    assert text in capsys.readouterr().out
    assert {"| FATHOM ", "| FATHOM+RM "} <= {line[: line.index("|", 1)] for line in text.splitlines() if "FAT" in line}
    assert len((tmp_path / "r" / "runs.csv").read_text().splitlines()) == 1 + 2
    assert main([*words, "--no-run"]) == 0
    assert (tmp_path / "r" / "field.md").read_text() == text
