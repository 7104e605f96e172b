"""A few hostile updates of every kind at the server's two ends; ten thousand are in `python -m benchmarks.hostile`."""

import pytest

from benchmarks.chaos.update_kinds import KINDS
from benchmarks.chaos.updates import ENDS, METHODS, Scene, attempt, hostile


@pytest.fixture(scope="module")
def scenes():
    return {method: Scene(method) for method in METHODS}


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_as_if_it_had_not_come_at_the_chain(kind, scenes):
    first = list(KINDS).index(kind)
    for number in range(first, 2 * len(METHODS) * len(KINDS), len(KINDS)):  # twice with each method
        title, scene, bad = hostile(number, 1, scenes)
        assert title == kind
        assert attempt(ENDS["chain"], scene, bad) == "left out", bad


@pytest.mark.filterwarnings("ignore")  # flwr's own
def test_nor_at_the_engine_in_front_of_it(scenes):
    pytest.importorskip("flwr")
    from fedaccord.flower.adapter import identify

    identify(1, 1, 1)
    for number in range(len(KINDS)):
        _, scene, bad = hostile(number, 2, scenes)
        assert attempt(ENDS["engine"], scene, bad) == "left out", bad


def test_the_honest_round_counts_all_and_differs_from_the_one_without_the_client(scenes):
    for scene in scenes.values():
        assert len(set(scene.results.values())) == 2
