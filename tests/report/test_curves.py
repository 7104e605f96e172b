"""The figures: what their curves are made of."""

import numpy as np
import pytest
from folders import line, write_run

from fedaccord.core.errors import SettingsError
from fedaccord.report import curves, evolution
from fedaccord.report.canvas import COLOURS, colours_of
from fedaccord.runtime.folder import MetricNote

ACCURACY, RMSE = MetricNote("accuracy", percent=True), MetricNote("rmse", higher=False)


@pytest.fixture
def runs(tmp_path):
    """Two seeds; the second was tested in every other round only."""
    first = [line(t, metrics={"accuracy": t / 8, "rmse": 4.0 - t}) for t in (1, 2, 3)]
    second = [line(t, metrics={"accuracy": t / 4, "rmse": 8.0 - t} if t % 2 else {}) for t in (1, 2, 3)]
    notes = [vars(ACCURACY), vars(RMSE)]
    return [write_run(tmp_path / str(n), lines, metrics=notes, seed=n) for n, lines in enumerate((first, second))]


def test_curves_are_of_the_rounds_that_all_runs_know(runs):
    rounds, values = curves.measured(runs, ACCURACY)
    assert rounds.tolist() == [1, 3]
    assert values.tolist() == [[12.5, 37.5], [25.0, 75.0]]  # in percent
    assert curves.measured(runs, RMSE)[1].tolist() == [[3.0, 1.0], [7.0, 5.0]]  # as it is
    rounds, values = curves.measured(runs, None)
    assert rounds.tolist() == [1, 2, 3]
    assert values == pytest.approx(np.array([[1, 1 / 2, 1 / 3]] * 2))  # L_t, as line() has it


def test_rows_are_what_was_asked_for_or_all_there_is(runs, tmp_path):
    panels = {"digits": {"one": runs}}
    assert curves.fields_of(panels, ("rmse", "loss")) == [RMSE, None]
    assert curves.fields_of(panels, ()) == [ACCURACY, RMSE, None]
    with pytest.raises(SettingsError, match=r"no curve of f1.*accuracy, rmse, loss"):
        curves.draw(panels, tmp_path / "f.svg", ("f1",))


def test_a_picture_names_its_metrics(runs, tmp_path):
    pytest.importorskip("matplotlib")
    labels = [curves.axis_label(field) for field in (ACCURACY, RMSE, None)]
    assert labels == ["test accuracy, %", "test rmse", "loss $L_t$"]
    curves.draw({"digits": {"one": runs}}, tmp_path / "curves.svg")
    curves.draw_sweep("steps", "steps", {"one": {5: [1.5], 10: [1.25, 1.0]}}, tmp_path / "sweep.svg", RMSE)
    assert "<!-- test rmse -->" in (tmp_path / "curves.svg").read_text()
    assert "<!-- test rmse -->" in (tmp_path / "sweep.svg").read_text()


def test_more_methods_than_colours_all_get_one():
    names = [f"method {n}" for n in range(len(COLOURS) + 2)]
    assert list(colours_of({"digits": dict.fromkeys(names)})) == names


def test_the_evolution_has_a_row_for_each_hyper_parameter(tmp_path):
    pytest.importorskip("matplotlib")
    policy = {**line(1)["policy"], "mean": {"lr": 0.1, "momentum": 0.5}}
    tuned = write_run(tmp_path / "tuned", [line(1, policy=policy), line(2, policy={})])
    fixed = write_run(tmp_path / "fixed", [line(1, policy={})], method="FA")
    evolution.draw({"digits": {"tuned": [tuned], "fixed": [fixed]}}, tmp_path / "evolution.svg")
    text = (tmp_path / "evolution.svg").read_text()
    assert "<!-- learning rate -->" in text
    assert "<!-- momentum -->" in text
    assert "SGD iterations" not in text
    with pytest.raises(SettingsError, match="none of these runs tuned"):
        evolution.draw({"digits": {"fixed": [fixed]}}, tmp_path / "nothing.svg")
