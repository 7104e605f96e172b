import csv
import io

import pytest

from fedaccord.report.tables import Row, Table, as_csv, latex, markdown

PAPER = {"FA": (94.7, 0.07), "FA+RM": (94.5, 0.3)}
TABLE = Table(
    "MNIST: test accuracy in %",
    ("FA", "FA+RM", "FA+AH"),
    [
        Row("non-iid, C=1", {"FA": (94.0, 95.0, 96.0), "FA+RM": (97.02,), "FA+AH": ()}, PAPER),
        Row("iid, C=1", {"FA": (98.0,), "FA+RM": (97.96,), "FA+AH": (90.0,)}),
    ],
)  # fmt: skip


def test_markdown_marks_the_best_and_shows_the_paper_below():
    lines = markdown(TABLE).splitlines()
    assert lines[0] == "MNIST: test accuracy in %"
    assert lines[4] == "| non-iid, C=1 | ours | 95.0 ± 1.00 | **97.0** | – |"  # std of 94, 95, 96 is 1
    assert lines[5] == "|  | paper | **94.7 ± 0.07** | 94.5 ± 0.3 | – |"


def test_figures_that_print_alike_share_the_mark():
    assert "| iid, C=1 | ours | **98.0** | **98.0** | 90.0 |" in markdown(TABLE)


def test_latex_has_as_many_cells_in_every_line():
    lines = latex(TABLE).splitlines()
    assert lines[1] == r"\begin{tabular}{ll|ccc}"
    assert r"$\mathbf{97.0}$" in lines[3]
    assert {line.count("&") for line in lines[2:-1]} == {4}


def test_csv_keeps_every_run():
    rows = list(csv.DictReader(io.StringIO(as_csv(TABLE))))
    assert rows[0] == {
        "row": "non-iid, C=1", "column": "FA", "runs": "3", "mean": "95.000", "std": "1.000",
        "accuracies": "94.00 95.00 96.00", "paper_mean": "94.7", "paper_std": "0.07",
    }  # fmt: skip
    assert [row["runs"] for row in rows] == ["3", "1", "0", "1", "1", "1"]


@pytest.mark.parametrize("form", [markdown, latex, as_csv])
def test_an_empty_table_is_a_table(form):
    assert form(Table("nothing yet", ("FA",), [Row("iid", {"FA": ()})]))
