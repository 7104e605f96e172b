"""A hostile order of every kind to a client of a real federation; ten thousand are in `make chaos-full`."""

import pytest

pytest.importorskip("flwr")
pytestmark = pytest.mark.filterwarnings("ignore")  # flwr's own

from benchmarks.chaos import orders  # noqa: E402
from benchmarks.chaos.order_kinds import KINDS  # noqa: E402


@pytest.mark.slow
def test_a_hostile_order_is_refused_with_a_reason_and_changes_nothing(tmp_path):
    outcome = orders.several(0, tmp_path, each=len(KINDS))
    assert outcome.lost == 0, outcome.told
    assert outcome.tried >= len(KINDS) - 2  # what flwr cannot write down is not tried
    assert len(KINDS) >= 14


def test_an_honest_order_of_the_same_form_is_carried_out(tmp_path):
    """Otherwise the client would refuse just anything."""
    client = orders.Client("SCAFFOLD", tmp_path)
    assert "params" in client.post(client.honest(3))
    assert orders.attempt(client, client.honest(4)) == "what the client keeps has changed"


@pytest.mark.parametrize("scene", ["SCAFFOLD", "FA+RM+AH"])
def test_an_order_of_an_earlier_round_that_comes_once_more_changes_nothing(tmp_path, scene):
    client = orders.Client(scene, tmp_path / "tried")
    spared = orders.Client(scene, tmp_path / "spared")
    assert orders.late(client) == "unchanged"
    assert client.post(client.honest(3)) == spared.post(spared.honest(3))
