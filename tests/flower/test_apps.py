"""The example's apps, for the stock Flower commands."""

import sys
from pathlib import Path

import pytest
from flower_helpers import Wire, private_files
from flwr.app import Context, RecordDict

from fedaccord.runtime.folder import read_rounds

pytestmark = pytest.mark.filterwarnings("ignore")  # flwr's own


@pytest.mark.slow
def test_the_example_app_trains_and_goes_on(own_run, tmp_path, monkeypatch):
    """Its own ServerApp and ClientApp objects, as Flower calls them; the stock commands are tried in docs/deploy.md."""
    folder = Path(__file__).parents[2] / "examples" / "flower_app"
    monkeypatch.syspath_prepend(str(folder))
    for name in ("task", "server_app", "client_app"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import client_app
    import server_app

    def context(**node):
        return Context(run_id=1, node_id=1, node_config=node, state=RecordDict(), run_config=run, series_id=0)

    def node(number):
        return lambda message: client_app.app(message, context(client=number, private=str(tmp_path / f"p{number}")))

    wire = Wire({10 + number: node(number) for number in range(3)})
    for rounds in (2, 4):
        run = {"run": str(tmp_path / "run"), "rounds": rounds}
        server_app.app(wire, context())
        assert len(list(read_rounds(tmp_path / "run"))) == rounds
    first, *_, last = read_rounds(tmp_path / "run")
    assert last["last_loss"] < first["last_loss"]
    assert private_files(tmp_path / "p1").keys() == {"1"}
    for name in ("task", "server_app", "client_app"):
        monkeypatch.delitem(sys.modules, name, raising=False)
