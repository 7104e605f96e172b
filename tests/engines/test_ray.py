"""The Ray engine on a real cluster of two nodes, started here and ended here."""

import copy
from dataclasses import replace

import pytest
import test_contract as contract
import torch
from test_contract import (
    assert_same,
    make_site,
    order,
    test_a_round_goes_on_from_the_generation_that_the_order_names,  # noqa: F401
    test_a_round_left_in_the_middle_does_not_disturb_the_next,  # noqa: F401
    test_an_empty_cohort_gives_nothing,  # noqa: F401
    test_clients_may_have_hyper_parameters_of_their_own,  # noqa: F401
    test_rounds_do_not_leak_into_each_other,  # noqa: F401
    test_the_clients_report_the_losses_they_are_asked_for,  # noqa: F401
)
from torch import nn

from fedaccord import config
from fedaccord.client.store import ClientStore
from fedaccord.client.training import train
from fedaccord.core.errors import EngineError
from fedaccord.runtime.build import from_task
from fedaccord.runtime.drive import drive
from fedaccord.runtime.folder import RunFolder
from fedaccord.runtime.identity import params_sha256
from fedaccord.tasks import find_task

ray = pytest.importorskip("ray", reason="the extra [ray] is not installed")
from ray.cluster_utils import Cluster  # noqa: E402

from fedaccord.engines.ray import RayEngine  # noqa: E402

# the warnings are Ray's own; its workers compute as the loop does, which the contract suite runs on any processor
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.anywhere]


@pytest.fixture(scope="module")
def cluster():
    """A head and a second node, one core each."""
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    second = made.add_node(num_cpus=1)
    ray.init(address=made.address, log_to_driver=False)
    yield made, second
    ray.shutdown()
    made.shutdown()


def digits(folder, engine, **more):
    """Rounds of many iterations: a node that is killed in the middle of one must not be done already."""
    task = find_task("digits")
    tuned = {"method": "FA+RM+AH", "grid": "lr = 0.05..0.5/9 log; steps = 100, 150"}
    settings = config.make(task.defaults("non-iid"), {"task": "digits", "rounds": 3, "engine": engine}, tuned, more)
    simulation = from_task(task, settings)
    return simulation, RunFolder.create(folder, simulation.settings)


def test_an_address_where_nobody_is_is_told_in_one_line():
    engine = RayEngine(make_site(), address="127.0.0.1:1")
    with pytest.raises(EngineError, match=r"no Ray cluster at 127\.0\.0\.1:1"):
        engine.open(None)
    assert torch.get_num_threads() == 1


def test_a_round_that_is_done_again_is_written_again(tmp_path, monkeypatch):
    """A file of it lies there from before a resume; what was lost anew is not taken from it either."""
    monkeypatch.setattr("fedaccord.engines.ray.ray.get", lambda where, timeout=None: where)
    site = make_site(method="SCAFFOLD")
    engine, work = RayEngine(site), order(site, 1)
    engine.store = ClientStore(tmp_path, in_memory=False)
    old, new = ({"c": {"w": torch.tensor(value)}} for value in (1.0, 2.0))
    engine.store.put(0, 1, old, since=0)
    engine.remember(0, work, new)
    with monkeypatch.context() as patch:
        patch.setattr("fedaccord.engines.ray.lost", lambda where: True)
        with pytest.raises(EngineError, match="was lost with its node"):
            engine.look_after(0, order(site, 2, since={0: 1}))
    engine.save()
    assert engine.store.get(0, 1)["c"]["w"] == 2.0
    assert not engine.unsaved


@pytest.fixture
def name():
    return "ray"


@pytest.fixture
def opened(cluster):
    """The contract suite's tests, imported above, run here with this engine."""
    engines = []

    def make(site):
        engines.append(RayEngine(site))
        engines[-1].open(None)
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


@pytest.mark.parametrize("method", ["FA+WD+RM", "SCAFFOLD", "MOON"])
def test_the_updates_are_those_of_a_plain_loop_in_client_order(name, opened, method):
    """Modules of its own, all four kinds of slots, a model that is kept: an engine knows nothing else of a method."""
    contract.test_the_updates_are_those_of_a_plain_loop_in_client_order(name, opened, method)


def test_two_nodes_give_the_bits_of_a_loop_also_when_one_is_lost(cluster, tmp_path):
    made, second = cluster
    simulation, folder = digits(tmp_path / "serial", "serial")
    with folder:
        expected = drive(simulation, folder, None)

    simulation, folder = digits(tmp_path / "lost", "ray", address=made.address)
    engine = simulation.experiment.engine
    plain, left = engine.train, []

    def with_a_loss(work):
        updates = plain(work)
        yield next(updates)
        if work.round == 2:
            made.remove_node(second, allow_graceful=False)
        yield from updates
        left.append(len(engine.actors))

    engine.train = with_a_loss
    with folder:
        outcome = drive(simulation, folder, None)
    # in round 2 an actor was lost; the round was finished without it, or on a busy machine its last answers came first
    assert (left[0], left[2]) == (2, 1)
    assert params_sha256(outcome.state.params) == params_sha256(expected.state.params)
    assert outcome.state.policy == expected.state.policy
    for client in range(10):
        assert [file.name for file in sorted((tmp_path / "lost" / "private" / str(client)).iterdir())] == [
            file.name for file in sorted((tmp_path / "serial" / "private" / str(client)).iterdir())
        ]  # the name carries the round and the checksum


def large_site():
    """theta_i large enough to lie in a node's object store (small values travel with the answer)."""
    return make_site(nn.Sequential(nn.Linear(200, 300), nn.ReLU(), nn.Linear(300, 3)), "FA+RM", shape=(200,))


def gentle(site, round):
    """So large a network would blow up at the other tests' rate, and nobody keeps what blew up."""
    work = order(site, round, since=dict.fromkeys(range(6), round - 1))
    return replace(work, hyper=work.hyper.but({"lr": 0.001}))


def test_what_a_lost_node_held_is_there_after_a_checkpoint(cluster, tmp_path):
    made, _ = cluster
    third = made.add_node(num_cpus=1)
    site = large_site()
    engine, kept = RayEngine(site), {}
    engine.open(tmp_path)
    for round in (1, 2, 3):
        work = gentle(site, round)
        for update in engine.train(work):
            own, kept[update.client] = train(
                site, copy.deepcopy(site.model), work, update.client, kept.get(update.client, {})
            )
            assert_same("ray", update, own)
            assert kept[update.client]
        engine.save()
        if round == 2:
            made.remove_node(third, allow_graceful=False)
    engine.close()


def test_what_a_client_kept_stays_there_while_others_train(cluster, tmp_path):
    """Client 0 trains in rounds 1 and 2 only; the checkpoints that need its round 1 go, its round 2 stays."""
    site = make_site(method="SCAFFOLD")
    engine = RayEngine(site)
    engine.open(tmp_path)
    accepted = {}
    for round, cohort in ((1, (0, 1)), (2, (0, 1)), (3, (1,)), (4, (1,)), (5, (1,))):
        assert list(engine.train(replace(order(site, round, since=dict(accepted)), cohort=cohort)))
        accepted |= dict.fromkeys(cohort, round)
        engine.save()
        engine.prune(accepted)
    engine.expect(accepted)
    engine.close()


def test_what_was_lost_before_a_checkpoint_ends_the_run_in_one_line(cluster, tmp_path):
    """Nobody can bring it back; a checkpoint that named it would be worse than none."""
    made, _ = cluster
    another = made.add_node(num_cpus=1)
    site = large_site()
    engine = RayEngine(site)
    engine.open(tmp_path)
    for round in (1, 2, 3):
        assert list(engine.train(gentle(site, round)))
    made.remove_node(another, allow_graceful=False)
    with pytest.raises(EngineError, match="was lost with its node before a checkpoint was written: `fedaccord resume`"):
        engine.save()
    engine.close()
