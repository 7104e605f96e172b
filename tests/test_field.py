"""All methods side by side: which runs there are, and what the tables make of them."""

from dataclasses import replace
from pathlib import Path

import pytest
from helpers import write_cell

from fedaccord.cli import main
from fedaccord.experiments import field, lab, runner
from fedaccord.experiments.field import Field, sensible
from fedaccord.report.field import Entry, cell, gains, markdown, means_of, regrets_of, table

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
        (["--methods="], "want at least one each"),
        (["--problems="], "want at least one each"),
        (["--no-run"], "r: "),
    ],
)
def test_mistakes_are_one_line(tmp_path, capsys, words, says):
    assert main(["bench", "field", "--results", str(tmp_path / "r"), *words]) == 2
    told = capsys.readouterr().err
    assert says in told
    assert told.count("\n") == 1


DIGITS = lab.PROBLEMS["digits-one"]


def cells_of(folder, *methods, problem=DIGITS, seeds=(0,)):
    return {
        (name + variant, one.seed): one for _, name, variant, one in Field(folder, [problem], methods, seeds).cells()
    }


@pytest.mark.parametrize("length", [7, None])
def test_a_run_that_diverged_counts_as_chance_and_is_not_tried_again(tmp_path, monkeypatch, length):
    """FA ended in round 7, or its last, after three in which nobody counted; FedDyn was only cut off there."""
    cells = cells_of(tmp_path, "FA", "FedDyn")
    write_cell(cells["FA", 0], tmp_path, 0.5, rounds=length, lost=3)
    write_cell(cells["FA+RM", 0], tmp_path, 0.8)
    write_cell(cells["FedDyn", 0], tmp_path, 0.5, rounds=7, lost=2)
    work = Field(tmp_path, [DIGITS], ["FA", "FedDyn"], [0])
    found = {each.name: each for each in work.entries()}
    assert found.keys() == {"FA", "FA+RM"}
    assert (found["FA"].accuracy, found["FA"].diverged) == (10.0, True)
    assert regrets_of(means_of(list(found.values())))["FA"] == {"digits-one": pytest.approx(70.0)}
    text = markdown(list(found.values()), ["digits-one"], [0])
    assert "| FA | 70.0 | 70.0 (digits-one) | 10.0† |" in text
    assert "†: a run that diverged" in text
    started = []
    monkeypatch.setattr(runner, "run_missing", lambda todo, *_, more: started.extend(cell.name for cell in todo) or [])
    assert work.run(1, print) == []
    assert cells["FA", 0].name not in started
    assert cells["FedDyn", 0].name in started


def test_a_run_that_diverges_just_now_is_no_failure(tmp_path, monkeypatch):
    cells = list(cells_of(tmp_path, "FA").values())[:2]

    def both_fail(todo, folder, lanes, more):
        write_cell(todo[0], folder, 0.5, rounds=7, lost=3)
        return [f"{cell.name}: no client's update could be used: no" for cell in todo]

    monkeypatch.setattr(runner, "run_missing", both_fail)
    (told,) = runner.run_rest(cells, tmp_path, 1)
    assert told.startswith(cells[1].name)
    assert {path.name for path in (tmp_path / cells[0].name).iterdir()} == {"settings.toml", "rounds.jsonl.gz"}


def test_one_that_diverged_has_a_mark_of_its_own():
    low, lost = entries(FA=(12,))[0], replace(entries(FA=(10,))[0], diverged=True)
    assert [cell(runs, 1) for runs in ([low], [lost], [low, lost], [])] == ["12.0*", "10.0†", "11.0*†", "–"]


def test_the_tables_have_all_runs_of_the_folder_whatever_was_named(tmp_path, capsys):
    for (name, _), one in cells_of(tmp_path, "FedNova", "FA", seeds=(0, 2)).items():
        if name in ("FA", "FedNova"):
            write_cell(one, tmp_path, 0.9)
    iid = lab.PROBLEMS["digits-iid"]
    write_cell(cells_of(tmp_path, "MOON", problem=iid)["MOON", 0], tmp_path, 0.7)
    words = ["bench", "field", "--results", str(tmp_path), "--no-run", "--problems", "digits-one", "--methods", "FA"]
    assert main(words) == 0
    text = (tmp_path / "field.md").read_text()
    assert text in capsys.readouterr().out
    assert "seeds 0, 2," in text
    assert "FedNova is FA here" in text
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if "(digits" in line]
    assert sorted([row[0], *row[3:]] for row in rows) == [
        ["FA", "–", "90.0"],
        ["FedNova", "–", "90.0"],
        ["MOON", "70.0 (1 of 2)", "–"],
    ]
    assert len((tmp_path / "runs.csv").read_text().splitlines()) == 1 + 5


def test_a_method_from_a_file_goes_by_its_own_name(tmp_path, monkeypatch, capsys):
    """Its runs are resumed from anywhere, and stay in the table when it is not named."""
    (tmp_path / "own.py").write_text(
        "from fedaccord import Part\nclass Leash(Part):\n    name = 'Leash'\nleash = Leash()\n"
    )
    monkeypatch.chdir(tmp_path)
    results = tmp_path / "r"
    started = []

    def run_missing(todo, folder, lanes, more):
        started.extend(todo)
        for one in todo:
            write_cell(one, folder, 0.9)
        return []

    monkeypatch.setattr(runner, "run_missing", run_missing)
    words = ["bench", "field", "--problems", "digits-one", "--results", str(results)]
    assert main([*words, "--methods", "own.py:leash"]) == 0
    assert [one.name for one in started] == [f"digits-one/Leash{variant}-run-s0" for variant in field.VARIANTS]
    assert started[1].settings.method == f"{tmp_path / 'own.py'}:leash+RM"
    assert "| Leash+RM+AH | 0.0 |" in capsys.readouterr().out
    assert main([*words, "--methods", "FA", "--no-run"]) == 0
    assert "| Leash+RM+AH | 0.0 |" in capsys.readouterr().out


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
