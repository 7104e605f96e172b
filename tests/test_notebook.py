"""The notebook of docs/ runs as it stands, and a run is charted in it."""

import re
import runpy
from pathlib import Path

import pytest
import torch
from torch import nn

from fedaccord import federate

DOCS = Path(__file__).parents[1] / "docs"


def outputs(notebook):
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def printed(notebook):
    return "".join(output.text for output in outputs(notebook) if output.output_type == "stream")


@pytest.mark.slow
@pytest.mark.anywhere
def test_the_notebook_runs_and_what_is_kept_of_it_is_what_it_shows(tmp_path):
    pytest.importorskip("ipykernel")
    make = runpy.run_path(str(DOCS / "make_notebook.py"))
    import nbformat

    kept, fresh = nbformat.read(make["NOTEBOOK"], as_version=4), make["executed"](make["NOTEBOOK"], tmp_path)
    for notebook in (kept, fresh):
        # of the 119 tumours of the test 47 are malignant: who knows one kind only is right for 39.5 % or 60.5 %
        assert re.findall(r"alone: (\S+)%", printed(notebook)) == ["39.5", "39.5", "60.5", "60.5"]
        assert float(re.search(r"together: (\S+)%", printed(notebook))[1]) > 90
        live, drawn = [output.data for output in outputs(notebook) if "image/png" in output.get("data", {})]
        assert live["image/png"] != drawn["image/png"]  # the live one has a title
    assert (tmp_path / "runs" / "hospitals" / "rounds.jsonl").exists()


@pytest.fixture(scope="module")
def history():
    draw = torch.Generator().manual_seed(0)
    clients = [(torch.randn(12, 4, generator=draw), torch.arange(12) % 3) for _ in range(3)]
    return federate(nn.Linear(4, 3), clients, clients[0], test=clients[1], rounds=4, test_every=2)


def test_the_table_of_a_history_has_its_figures(history):
    table = history.to_pandas()
    assert table.index.tolist() == [1, 2, 3, 4]
    assert table["loss"].tolist() == [log.loss for log in history.rounds]
    assert table["accuracy"].dropna().to_dict() == {
        log.round: log.metrics["accuracy"] for log in history.rounds if log.metrics
    }


def test_the_picture_of_a_history_has_its_figures(history):
    loss, accuracy = history.plot().axes
    assert loss.lines[0].get_xydata().tolist() == [[log.round, log.loss] for log in history.rounds]
    assert accuracy.get_title() == "test accuracy, %"
    assert accuracy.lines[0].get_xydata().tolist() == [
        [log.round, 100 * log.metrics["accuracy"]] for log in history.rounds if log.metrics
    ]
