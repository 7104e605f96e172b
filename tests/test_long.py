"""The paper's tables at real length: whole, with the schedules of a search, and what is marked in them."""

import csv
import io
import json
from dataclasses import asdict
from pathlib import Path

import pytest

from fedaccord.core.errors import SettingsError
from fedaccord.experiments import comparison, long
from fedaccord.experiments import paper as reproduction
from fedaccord.experiments import study as studies
from fedaccord.experiments.lab import IID, Lab, problem
from fedaccord.experiments.long import LINES, Line, Wanted, choices_of, lab_in, study_of
from fedaccord.experiments.search import Schedule, Search, stretched
from fedaccord.report import paper, tables
from fedaccord.report.spent import Reading
from fedaccord.runtime.folder import read_rounds

FOUND = {
    "FA": Schedule(0.1, 0.98, 3),
    "FA+RM": Schedule(0.05, 0.99, 2, 0.995),
}


@pytest.fixture
def searched(tmp_path, monkeypatch) -> Lab:
    """A lab whose searches are over."""
    monkeypatch.setattr(
        Lab,
        "search",
        lambda self, line, part: (line.oracle or line, Search({FOUND[part]: (1.0, 1.0, 1.0)}, missing=())),
    )
    return lab_in(tmp_path)


@pytest.mark.parametrize("task", LINES)
def test_every_table_is_as_whole_as_the_papers(task, searched):
    study = study_of(task, searched)
    assert [(row.split, row.fraction) for row in study.rows] == list(paper.ACCURACY[task])
    assert {row.methods for row in study.rows} == {paper.METHODS}
    names = [cell.name for cell in studies.cells(study)]
    assert len(set(names)) == len(names) == 4 * 5 * 3


@pytest.mark.parametrize("task", LINES)
def test_fixed_schedules_are_those_of_the_search_stretched_to_the_length_of_the_row(task, searched):
    for line in LINES[task]:
        row = line.row(searched)
        length = (line.problem.oracle or line.problem).settings["rounds"]
        assert row.tuned.keys() == {"FA", "FA+WD", "FA+RM"}
        assert row.tuned["FA+WD"] == row.tuned["FA"]
        for part, found in FOUND.items():
            assert row.tuned[part]["steps"] == found.steps
            assert row.tuned[part]["lr"] == found.lr
            for decay in ("lr_decay", "steps_decay"):
                end = row.tuned[part][decay] ** row.settings["rounds"]
                assert end == pytest.approx(getattr(found, decay) ** length, rel=2e-3)


def test_nothing_that_is_constant_begins_to_fall():
    assert stretched(Schedule(0.1, 1.0, 3), 4) == Schedule(0.1, 1.0, 3)


def test_before_a_search_is_over_only_the_tuner_is_known(tmp_path):
    for row in study_of("cifar10", lab_in(tmp_path)).rows:
        assert row.methods == ("FA+RM+AH", "FA+AH")
        assert row.tuned == {}


def test_half_of_the_alike_clients_share_the_schedule_of_all(tmp_path):
    lab = lab_in(tmp_path)
    whole, half = (next(line for line in LINES["kws"] if line.name == name) for name in ("iid-C1", "iid-C0.5"))
    assert [cell.name for cell in lab.searching(half.problem, "FA")] == [
        cell.name for cell in lab.searching(whole.problem, "FA")
    ]
    assert half.rounds == 2 * whole.rounds


def test_what_is_wanted_is_run_seed_by_seed_in_the_order_of_the_methods(searched):
    study = study_of("mnist", searched)
    wanted = Wanted(["non-iid-C1"], ["FA+RM+AH", "FA"], 2)
    assert [cell.name for cell in wanted.of(study)] == [
        f"non-iid-{method}-C1.0-s{seed}" for seed in (0, 1) for method in ("FA+RM+AH", "FA")
    ]
    assert wanted.parts() == ["FA"]
    assert Wanted(methods=["FA+AH"]).parts() == []
    assert Wanted().parts(long.CHOICES["kws"].methods) == ["FA", "FA+RM"]
    assert Wanted().parts(long.CHOICES["mnist"].methods) == []
    assert len(Wanted().of(study)) == 60


@pytest.mark.parametrize(
    ("wanted", "complaint"),
    [
        (Wanted(["iid"]), "--rows iid: there are iid-C1"),
        (Wanted([], ["FedExP"]), "--methods FedExP: there are FA, "),
        (Wanted(seeds=4), "--seeds 4: these tables have 3"),
    ],
)
def test_a_row_or_method_that_the_paper_has_not_is_told(wanted, complaint):
    with pytest.raises(SettingsError, match=complaint):
        wanted.lines("mnist")


def reading(last: float) -> Reading:
    return Reading((last,), last, {}, ())


def test_only_what_is_better_than_fa_beyond_chance_is_marked():
    """Student's interval of the differences 1, 2, 3 is 2 -+ 2.48, of 1.9, 2, 2.1 it is 2 -+ 0.25 (t = 4.303)."""
    seeds = {
        "FA": [90.0, 91.0, 92.0],
        "FA+RM": [91.0, 93.0, 95.0],
        "FA+AH": [91.9, 93.0, 94.1],
        "FA+WD": [88.1, 89.0, 89.9],
    }
    readings = {name: dict(enumerate(map(reading, values))) for name, values in seeds.items()}
    line = comparison.Line(studies.Row("iid", 1.0, tuple(seeds), 3), readings)
    marked = comparison.better(line, tables.ACCURACY)
    assert marked == {"FA+AH"}
    row = tables.Row("iid", {name: tuple(values) for name, values in seeds.items()}, better=marked)
    text = tables.markdown(tables.Table("T", tuple(seeds), [row]))
    assert [cell.strip() for cell in text.splitlines()[-1].split("|")][2:6] == [
        "91.0 ± 1.00",
        "93.0 ± 2.00",
        "**93.0 ± 1.10**",
        "89.0 ± 0.90",
    ]


@pytest.mark.slow
@pytest.mark.anywhere
def test_a_long_table_is_run_and_published(tmp_path, monkeypatch, capsys):
    """The tuner's run of a table whose one row is the digits."""
    tiny = Line(problem("digits-tiny", "digits", 2, 0.1, 2, **IID), 1)
    monkeypatch.setattr(long, "LINES", {"digits": (tiny,)})
    monkeypatch.setattr(long, "HEADINGS", {"digits": "Digits"})
    monkeypatch.setitem(reproduction.TASKS, "digits", "digits")
    said: list[str] = []
    wanted = Wanted(methods=["FA+AH"], seeds=1)
    work = reproduction.Reproduction(tmp_path, "paper", True, 1, "cpu", said.append, wanted)
    work.long_table("digits")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "tables" / "paper-digits.csv").read_text())))
    assert [(row["column"], row["runs"]) for row in rows] == [("FA+RM+AH", "0"), ("FA+AH", "1")]
    tests = [100 * line["metrics"]["accuracy"] for line in read_rounds(tmp_path / "paper-digits" / NAME)]
    assert len(tests) == tiny.rounds == 8
    assert float(rows[1]["mean"]) == pytest.approx(sum(tests[-5:]) / 5, abs=1e-3)
    for equal in ("rounds", "steps"):
        assert (tmp_path / "tables" / f"paper-digits-{equal}.md").is_file()


NAME = "iid-FA+AH-C1.0-s0"


@pytest.mark.parametrize(("task", "rows"), [("mnist", 9), ("cifar10", 3), ("kws", 3)])
def test_choices_are_runs_of_their_own_beside_those_of_the_table(task, rows, searched):
    study, table = choices_of(task, searched), study_of(task, searched)
    assert len(study.rows) == rows
    table_names = {cell.name for cell in studies.cells(table)}
    names = [cell.name for cell in studies.cells(study)]
    assert len(set(names)) == len(names)
    default = [cell.name for cell in studies.cells(study) if cell.row is study.rows[0]]
    assert set(names) & table_names == set(default)
    assert len(default) == 3 * len(study.rows[0].methods)


def test_a_choice_is_worth_its_difference_to_the_default_with_the_same_seeds(searched, tmp_path, monkeypatch):
    """1, 2 and 3 points: 2 -+ 4.303 / sqrt(3)."""
    study = choices_of("kws", searched)
    there = {cell.name for cell in studies.cells(study) if cell.method == "FA+AH" and "adam" not in cell.name}
    monkeypatch.setattr(studies, "done", lambda cell, folder: cell.settings.rounds if cell.name in there else 0)
    monkeypatch.setattr(
        long, "mean_of_last", lambda run: 50.0 + (int(run.name[-1]) + 1 if "printed" in run.name else 0)
    )
    assert long.worth(study, tmp_path).lines == [
        ["non-iid, C=1", "FA+AH", "50.0 ± 0.00", "–"],
        ["non-iid, C=1, printed", "FA+AH", "52.0 ± 1.00", "+2.0 (-0.5 to +4.5)"],
    ]


def test_schedules_are_found_where_the_lab_keeps_its_own():
    """MNIST's rows are four times the lab's problems of the same name, whose oracles are published."""
    folder = Path(__file__).parents[1] / "results" / "tuner"
    oracle = json.loads((folder / "mnist-one-C1" / "FA-oracle.json").read_text())["chosen"]
    assert study_of("mnist", lab_in(folder)).rows[1].tuned["FA"] == asdict(stretched(Schedule(**oracle), 4))
