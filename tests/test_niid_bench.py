"""NIID-Bench's table: what is run, and the command on pictures that are small in number but of the right shape."""

import re
from pathlib import Path

import pytest
from helpers import write_cell

from fedaccord.cli import main
from fedaccord.experiments import niid_bench, runner
from fedaccord.experiments.study import cells
from fedaccord.runtime.folder import read_rounds, read_settings

TASK = """
import torch
from fedaccord import DataSet, Task
from fedaccord.tasks import PRESETS

def load():
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(400) % 10
    pictures = torch.randint(0, 120, (400, 3, 32, 32), generator=draw)
    pictures[torch.arange(400), labels % 3, labels] += 100  # a bright line in one colour
    pictures = pictures.to(torch.uint8)
    return DataSet((pictures[:300], labels[:300]), (pictures[300:], labels[300:]), tuple("abcdefghij"))

lenet = PRESETS["cifar10_lenet"]
task = Task("small", load, lenet.model, lenet.prepare, lenet.settings)
"""


@pytest.fixture
def small(tmp_path, monkeypatch) -> Path:
    """The same study with 300 pictures and two steps a round."""
    file = tmp_path / "small.py"
    file.write_text(TASK)
    monkeypatch.setattr(niid_bench, "TASK", f"{file}:task")
    monkeypatch.delitem(niid_bench.PROTOCOL, "epochs")
    monkeypatch.setitem(niid_bench.PROTOCOL, "steps", 2)
    monkeypatch.setattr(niid_bench, "SKEWS", {
        name: niid_bench.Skew(each.label, {**each.settings, "min_examples": 2}, each.published, each.mu)
        for name, each in niid_bench.SKEWS.items()
    })  # fmt: skip
    return tmp_path / "results"


@pytest.mark.slow
@pytest.mark.anywhere
def test_the_command_runs_what_is_missing_and_prints_both_figures_and_the_difference(small, capsys):
    words = ["reproduce", "niid-bench", "--results", str(small), "--methods", "FA,FA+WD,SCAFFOLD", "--rounds", "2"]
    assert main([*words, "--rows", "dirichlet"]) == 0
    said = capsys.readouterr().out
    assert main([*words, "--rows", "dirichlet", "--no-run"]) == 0
    table = (small / "niid-bench" / "table-2rounds.md").read_text()
    assert (
        capsys.readouterr().out.strip() == f"{table}\n{(small / 'niid-bench' / 'spent-2rounds.md').read_text()}".strip()
    )
    assert table in said
    ours, theirs, apart = (
        re.split(r"\s*\|\s*", line.replace("*", "").strip("| ")) for line in table.strip().splitlines()[-3:]
    )
    assert ours[:2] == ["Dirichlet 0.5, 2rounds", "ours"]
    assert theirs == ["paper", "68.2", "67.9", "69.8"]
    assert apart[0] == "difference"
    for own, published, difference in zip(ours[2:], theirs[1:], apart[1:], strict=True):
        assert float(difference) == pytest.approx(float(own) - float(published), abs=0.11)  # each is rounded
    for word in ("weight decay 1e-5", "padded by 4", "mu = 0.001", "1 seed", "the last of 2 rounds"):
        assert word in table.splitlines()[0]
    runs = small / "niid-bench"
    for method in ("FA", "FA+WD", "SCAFFOLD"):
        run = runs / f"dirichlet-capped-{method}-C1.0-2rounds-s0"
        assert [sorted(line["metrics"]) for line in read_rounds(run)] == [["accuracy"]] * 2
        assert sum(entry["examples"] for entry in next(iter(read_rounds(run)))["clients"].values()) == 300


@pytest.mark.slow
@pytest.mark.anywhere
def test_rows_and_seeds_are_chosen_and_the_longer_study_has_runs_of_its_own(small):
    words = ["reproduce", "niid-bench", "--results", str(small), "--methods", "FA", "--rounds", "1"]
    assert main([*words, "--rows", "labels,quantity", "--seeds", "2"]) == 0
    names = {path.name for path in (small / "niid-bench").iterdir() if path.is_dir()}
    assert names == {f"{split}-FA-C1.0-1rounds-s{n}" for split in ("classes-random", "quantity") for n in (0, 1)}
    kept = read_settings(small / "niid-bench" / "classes-random-FA-C1.0-1rounds-s0")
    assert (kept.classes_per_client, kept.weight_decay, kept.momentum, kept.augment) == (2, 1e-5, 0.9, True)
    assert (kept.init, kept.entropy_weight, kept.evaluate, kept["average"]) == ("as-given", 0.0, "clients", False)


def written(folder, rounds, accuracy, lost=(), **wanted):
    """Runs of the study by hand; those of the methods in `lost` diverged."""
    for cell in cells(niid_bench.study_of(rounds=rounds, **wanted)):
        some = {"rounds": 4, "lost": 3} if cell.method in lost else {}
        write_cell(cell, folder / "niid-bench", accuracy, **some)


def test_the_tables_have_all_runs_of_the_folder_and_a_shorter_study_its_own(tmp_path, capsys):
    written(tmp_path, 50, 0.5, methods=["FA"], seeds=2)
    written(tmp_path, 50, 0.6, methods=["SCAFFOLD"], rows=["quantity"])
    written(tmp_path, 2, 0.2, methods=["FedNova"], rows=["labels"])
    words = ["reproduce", "niid-bench", "--results", str(tmp_path), "--no-run", "--rows", "labels", "--methods", "FA"]
    assert main(words) == 0
    table = (tmp_path / "niid-bench" / "table.md").read_text()
    assert table in capsys.readouterr().out
    assert "1 to 2 seeds" in table
    ours = [line for line in table.splitlines() if "| ours |" in line]
    assert ours == [
        "| Dirichlet 0.5 | ours | 50.0 ± 0.00 | – |",
        "| two labels a party | ours | 50.0 ± 0.00 | – |",
        "| quantity 0.5 | ours | – | 60.0 |",
    ]
    assert main([*words, "--rounds", "2"]) == 0
    assert (tmp_path / "niid-bench" / "table.md").read_text() == table
    assert "| two labels a party, 2rounds | ours | – | 20.0 |" in (tmp_path / "niid-bench/table-2rounds.md").read_text()


def test_a_run_that_diverged_counts_as_chance_and_the_tables_come_before_a_failure(tmp_path, monkeypatch, capsys):
    written(tmp_path, 50, 0.7, methods=["FA", "FedNova"], rows=["quantity"], lost=["FedNova"])
    failed = []

    def run_missing(todo, folder, lanes, more):
        failed.extend(f"{cell.name}: the disk is full" for cell in todo)
        return failed

    monkeypatch.setattr(runner, "run_missing", run_missing)
    words = ["reproduce", "niid-bench", "--results", str(tmp_path), "--rows", "quantity"]
    assert main([*words, "--methods", "FA,SCAFFOLD,FedNova"]) != 0
    assert not any("FedNova" in told for told in failed)
    said = capsys.readouterr()
    assert "| quantity 0.5 | ours | 70.0 | – | 10.0 |" in said.out.replace("*", "")
    assert "Diverged, and counted as chance: FedNova (quantity 0.5, seed 0)" in said.out
    assert "2 runs failed" in said.err


def test_the_term_of_fedprox_is_half_of_mu(small):
    study = niid_bench.study_of(methods=("FA", "FA+WD"))
    weights = [cell.settings["wd_weight"] for cell in cells(study) if cell.method == "FA+WD"]
    assert weights == [0.0005, 0.005]
    assert "mu = 0.001 (Dirichlet 0.5), 0.01 (two labels a party)" in study.heading


def test_the_whole_study_is_eight_runs_of_fifty_rounds_of_ten_epochs():
    found = list(cells(niid_bench.study_of()))
    assert len({cell.name for cell in found}) == 8
    assert {(cell.settings.rounds, cell.settings["epochs"], cell.settings.batch_size) for cell in found} == {
        (50, 10, 64)
    }


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["niid-bench", "--rows", "noise"], "--rows noise: there are dirichlet, labels, quantity"),
        (["niid-bench", "--methods", "FedAvg"], "--methods FedAvg: there are FA, FA+WD, SCAFFOLD, FedNova"),
        (
            ["mnist", "--rounds", "2"],
            "--rounds is an option of niid-bench; the paper's tables have",
        ),
    ],
)
def test_mistakes_are_explained(words, complaint, tmp_path, capsys):
    assert main(["reproduce", *words, "--results", str(tmp_path / "r")]) == 2
    assert complaint in capsys.readouterr().err
    assert not (tmp_path / "r").exists()
