import csv
import io

import pytest
from folders import line, write_run

from fedaccord.core.errors import RunError
from fedaccord.report.tables import (
    ACCURACY,
    Row,
    Table,
    as_csv,
    last_value,
    latex,
    markdown,
    metric_of,
    plural,
    title_of,
)
from fedaccord.runtime.folder import MetricNote

PAPER = {"FA": (94.7, 0.07), "FA+RM": (94.5, 0.3)}
TABLE = Table(
    "MNIST: test accuracy in %",
    ("FA", "FA+RM", "FA+AH"),
    [
        Row("non-iid, C=1", {"FA": (94.0, 95.0, 96.0), "FA+RM": (97.02,), "FA+AH": ()}, PAPER),
        Row("iid, C=1", {"FA": (98.0,), "FA+RM": (97.96,), "FA+AH": (90.0,)}),
    ],
)  # fmt: skip


def test_a_yardstick_is_not_marked_as_the_best_method():
    rows = [Row("a", {"FA": (50.0,), "FA+RM": (60.0,), "central": (90.0,)})]
    table = Table("heading", ("FA", "FA+RM", "central"), rows, yardsticks=("central",))
    assert "| a | 50.0 | **60.0** | 90.0 |" in markdown(table)


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


RMSE = MetricNote("rmse", higher=False)
ERRORS = Table(
    "houses: test rmse",
    ("FA", "FA+RM", "SCAFFOLD"),
    [Row("iid, C=1", {"FA": (1200.0, 1300.0), "FA+RM": (0.12344,), "SCAFFOLD": (0.123441,)})],
    metric=RMSE,
)


def test_a_metric_that_is_better_when_lower_is_marked_so():
    """Means to four digits, standard deviations to two: that of 1200 and 1300 is 100 / sqrt 2 = 70.7."""
    (line,) = markdown(ERRORS).splitlines()[4:]
    assert line == "| iid, C=1 | 1250 ± 71 | **0.1234** | **0.1234** |"
    assert r"$1250 \pm 71$ & $\mathbf{0.1234}$" in latex(ERRORS)
    rows = list(csv.DictReader(io.StringIO(as_csv(ERRORS))))
    assert [row["rmses"] for row in rows] == ["1200 1300", "0.12344", "0.123441"]
    assert (rows[0]["mean"], rows[0]["std"]) == ("1250", "70.7107")


def test_names_for_a_heading_and_a_column():
    assert title_of(ACCURACY) == "test accuracy in %"
    assert title_of(RMSE) == "test rmse (less is better)"
    assert (plural("accuracy"), plural("error")) == ("accuracies", "errors")


def test_the_last_value_is_that_of_the_first_metric(tmp_path):
    notes = [vars(RMSE), vars(ACCURACY)]
    lines = [
        line(1, metrics={"accuracy": 0.5, "rmse": 3.0}),
        line(2, metrics={"accuracy": 0.6, "rmse": 2.5}),
        line(3, metrics={}),
    ]
    judged_by_error = write_run(tmp_path / "error", lines, metrics=notes)
    judged_by_accuracy = write_run(tmp_path / "accuracy", lines, metrics=notes[::-1])
    assert last_value(judged_by_error) == 2.5
    assert last_value(judged_by_accuracy) == 60.0  # in percent
    assert metric_of([judged_by_error]) == RMSE
    assert metric_of([]) == ACCURACY
    with pytest.raises(RunError, match=r"judged by accuracy, the others by rmse"):
        metric_of([judged_by_error, judged_by_accuracy])


def test_a_run_without_a_figure_is_told(tmp_path):
    with pytest.raises(RunError, match="no test metric"):
        last_value(write_run(tmp_path / "none", [line(1)], metrics=[]))
    with pytest.raises(RunError, match="accuracy was never measured"):
        last_value(write_run(tmp_path / "never", [line(1, metrics={})]))


@pytest.mark.parametrize("form", [markdown, latex, as_csv])
def test_an_empty_table_is_a_table(form):
    assert form(Table("nothing yet", ("FA",), [Row("iid", {"FA": ()})]))
