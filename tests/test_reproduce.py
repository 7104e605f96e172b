"""What is published: every table is made again from the logs in results/, and docs/results.md shows just these."""

import csv
import io
import re
from pathlib import Path

import pytest

from fedaccord.cli import main
from fedaccord.experiments import runner
from fedaccord.experiments import study as studies
from fedaccord.experiments.paper import EVERY, Reproduction
from fedaccord.report import paper

pytestmark = pytest.mark.anywhere

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
PUBLISHED = sorted(file.relative_to(RESULTS / "tables") for file in (RESULTS / "tables").iterdir())


@pytest.fixture(scope="module")
def remade(tmp_path_factory) -> Path:
    """results/ again, with nothing but the logs and the measured times."""
    folder = tmp_path_factory.mktemp("again")
    for name in (*EVERY, "bench"):
        (folder / name).symlink_to(RESULTS / name)
    work = Reproduction(folder, "cpu", run=False, lanes=None, device="cpu", say=lambda text: None)
    for part in ("mnist", "cifar10", "kws", "search", "steps", "overhead", "evolution"):
        work.part(part)
    return folder


@pytest.mark.parametrize("name", PUBLISHED, ids=str)
def test_a_published_table_is_what_the_logs_say(remade, name):
    assert (remade / "tables" / name).read_text() == (RESULTS / "tables" / name).read_text()


def test_every_table_and_figure_is_published(remade):
    for kind in ("tables", "figures"):
        made = {file.name for file in (remade / kind).iterdir()}
        assert made == {file.name for file in (RESULTS / kind).iterdir()}
    assert {"mnist.md", "cifar10.md", "kws.md", "overhead.md", "search-mnist.md", "steps-mnist.md"} <= {
        str(name) for name in PUBLISHED
    }


@pytest.mark.parametrize("name", ["mnist", "cifar10", "kws", "overhead"])
def test_the_results_page_shows_the_published_tables(name):
    table = (RESULTS / "tables" / f"{name}.md").read_text().split("\n\n", 1)[1].strip()
    assert table in (ROOT / "docs" / "results.md").read_text()


def test_the_whole_of_mnist_was_run():
    rows = list(csv.DictReader(io.StringIO((RESULTS / "tables" / "mnist.csv").read_text())))
    assert len(rows) == 4 * 5
    assert {row["runs"] for row in rows} == {"3"}


@pytest.mark.parametrize("study", EVERY.values(), ids=EVERY)
def test_every_study_can_be_run_as_it_stands(study):
    """All settings are valid and all names differ."""
    names = [cell.name for cell in studies.cells(study)]
    assert len(set(names)) == len(names) > 0


def test_methods_of_a_row_share_rounds_and_steps():
    for study in EVERY.values():
        for row in study.rows:
            found = {(c.settings.rounds, c.settings.steps) for c in studies.cells(study) if c.row is row}
            assert len(found) == 1


ROWS = (Path(__file__).parent / "report" / "paper_tables.tex").read_text()


def test_the_paper_figures_are_those_of_its_tables():
    pairs = re.findall(r"([\d.]+) \\pm ([\d.]+)", ROWS)
    found = [(float(mean), float(deviation)) for mean, deviation in pairs]
    order = [("iid", 1.0), ("non-iid", 1.0), ("iid", 0.5), ("non-iid", 0.5)]  # as the paper's tables have it
    ours = [rows[row][name] for rows in paper.ACCURACY.values() for row in order for name in paper.METHODS]
    ours += [row[name] for row in paper.SECONDS.values() for name in paper.METHODS]
    assert found == ours


def test_the_rows_are_those_of_the_paper():
    """Where its source is at hand."""
    source = ROOT.parent / "shared" / "paper.tex"
    if not source.exists():
        pytest.skip("the paper's source is not here; what is quoted of it is in report/paper_tables.tex")
    rows = [line.strip() for line in source.read_text().splitlines() if r"\pm" in line]
    assert rows == [line for line in ROWS.splitlines() if not line.startswith("%")]


def test_unknown_parts_are_named(capsys):
    assert main(["reproduce", "minst"]) == 2
    assert "unknown 'minst'" in capsys.readouterr().err


def test_a_run_that_fails_leaves_all_tables_to_be_made(tmp_path, monkeypatch, capsys):
    (tmp_path / "steps-cifar10").symlink_to(RESULTS / "steps-cifar10")
    (tmp_path / "steps-mnist").symlink_to(RESULTS / "steps-mnist")
    monkeypatch.setattr(runner, "run_rest", lambda *_: ["a run: the disk is full"])
    assert main(["reproduce", "steps", "--results", str(tmp_path)]) == 2
    assert "2 runs failed, see above" in capsys.readouterr().err
    for name in ("steps-mnist.md", "steps-cifar10.md"):
        assert (tmp_path / "tables" / name).read_text() == (RESULTS / "tables" / name).read_text()
