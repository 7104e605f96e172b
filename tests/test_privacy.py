"""Data and what a client keeps stay with it: canary values planted there are found nowhere else."""

import dataclasses
import struct

import pytest
import torch
from helpers import hyper, server_chain

from fedaccord import ClientPart, Outgoing, Part, config, federate
from fedaccord.client.store import ClientStore
from fedaccord.core.algorithm import run, start
from fedaccord.core.errors import MethodError
from fedaccord.core.packages import encode, flatten
from fedaccord.core.params import read_params
from fedaccord.core.records import ClientUpdate
from fedaccord.engines.serial import SerialEngine
from fedaccord.methods.registry import METHODS
from fedaccord.runtime.build import from_task
from fedaccord.runtime.drive import checkpoint
from fedaccord.runtime.folder import RunFolder
from fedaccord.tasks import find_task

CANARIES = 1000


def pairs_of(values):
    """The canaries as byte strings of two neighbouring floats: eight bytes do not occur by chance."""
    return [struct.pack("<2f", *values[i : i + 2].tolist()) for i in range(0, len(values), 2)]


def spy_on(engine):
    """A list that fills with all that the clients send."""
    sent, original = [], engine.train

    def train(order):
        for update in original(order):
            sent.append(update)
            yield update

    engine.train = train
    return sent


@pytest.mark.slow
def test_canaries_in_theta_are_found_nowhere_outside_the_store(tmp_path):
    task = find_task("digits")
    changes = {"method": "FA+RM", "rounds": 3, "store": "disk", "rm_weight": 1e-2, "lr": 1e-30}
    sim = from_task(task, config.make(task.defaults("non-iid"), changes))
    engine, canaries = sim.experiment.engine, torch.rand(2 * CANARIES, generator=torch.Generator().manual_seed(0))
    sent = spy_on(engine)
    with RunFolder.create(tmp_path / "run", sim.settings) as folder:
        engine.open(folder.private)
        state = start(sim.experiment, sim.params)
        for state, log in run(sim.experiment, state):  # noqa: B020
            folder.append(log)
            checkpoint(engine, folder, state)
            if state.round == 1:  # plant: with so small a rate they stay as they are
                kept = engine.store.get(3, 1)
                kept["RM.theta"]["f.0.layer.weight"].view(-1)[: 2 * CANARIES] = canaries
                engine.store.put(3, 1, kept, since=0)
    wanted = pairs_of(canaries)
    assert len(wanted) == CANARIES
    inside, outside = b"", b"".join(value.numpy().tobytes() for update in sent for value in update.params.values())
    assert len(sent) == 30
    for path in sorted((tmp_path / "run").rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            if "private" in path.parts:
                inside += data
            else:
                outside += data
    assert all(canary in inside for canary in wanted)
    assert not any(canary in outside for canary in wanted)
    kept = ClientStore(tmp_path / "run" / "private", in_memory=True).get(3, 3)["RM.theta"]
    assert torch.equal(kept["f.0.layer.weight"].view(-1)[: 2 * CANARIES], canaries)


def test_an_update_has_no_field_that_could_carry_theta_or_data():
    assert [item.name for item in dataclasses.fields(ClientUpdate)] == [
        "client", "params", "examples", "loss", "sent", "received_loss", "previous_loss", "metrics", "round", "done"
    ]  # fmt: skip


class Leaky(ClientPart):
    """A method that tries to send what it did not declare."""

    def finish(self, end, work):
        return Outgoing(sent={"secret": {"value": torch.zeros(())}})


def test_what_is_not_declared_cannot_travel():
    class Part_(Part):
        name = "Leaky"

        def client(self, built):
            return Leaky()

    clients = [(torch.randn(8, 3), torch.arange(8) % 2)] * 2
    with pytest.raises(MethodError, match=r"sends up 'Leaky\.secret', which it did not declare"):
        federate(torch.nn.Linear(3, 2), clients, clients[0], method=Part_(), rounds=1, engine="serial")


def test_what_arrives_undeclared_is_refused():
    """The server's end: a client that adds a slot, leaves one out, or changes its form does not count."""
    chain = server_chain(torch.nn.Linear(3, 2), "SCAFFOLD")
    before = chain.start(read_params(torch.nn.Linear(3, 2)))
    zeros = {
        "SCAFFOLD.change": dict(before.server["SCAFFOLD.c"]),
        "SCAFFOLD.size": {"value": torch.zeros((), dtype=torch.float64)},
    }
    good = ClientUpdate(0, before.params, 5, 0.1, zeros)
    bad = {
        "an extra slot": {**zeros, "theta": {"w": torch.zeros(2)}},
        "a slot less": {"SCAFFOLD.size": zeros["SCAFFOLD.size"]},
        "another shape": {**zeros, "SCAFFOLD.size": {"value": torch.zeros(2, dtype=torch.float64)}},
        "a NaN": {**zeros, "SCAFFOLD.size": {"value": torch.tensor(float("nan"), dtype=torch.float64)}},
    }
    for name, sent in bad.items():
        result = chain.aggregate(
            1, before, [good, dataclasses.replace(good, client=1, sent=sent)], hyper(server_lr=1.0)
        )
        assert [each.client for each in result.accepted] == [0], name
        assert [each.client for each in result.refused] == [1], name


def test_every_update_holds_the_models_names_and_nothing_else():
    task = find_task("digits")
    sim = from_task(task, config.make(task.defaults("non-iid"), {"method": "FA+RM", "rounds": 2, "engine": "serial"}))
    sent = spy_on(sim.experiment.engine)
    list(run(sim.experiment, start(sim.experiment, sim.params)))
    assert len(sent) == 20
    assert all(update.params.keys() == sim.params.keys() for update in sent)


@pytest.mark.parametrize("method", METHODS)
def test_canaries_in_the_data_are_in_nothing_that_leaves_a_client(method, tmp_path):
    """In what is sent (declared slots only), and in every file of the server."""
    canaries = torch.rand(2 * CANARIES, generator=torch.Generator().manual_seed(0))
    inputs = canaries.view(-1, 20)  # (examples, features)
    clients = [(inputs[n::2], torch.arange(len(inputs[n::2])) % 3) for n in range(2)]
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    slots = {
        "SCAFFOLD": {"SCAFFOLD.change", "SCAFFOLD.size"},
        "FedNova": {"FedNova.length"},
        "FATHOM": {"FATHOM.least"},
    }.get(method, set())
    sent = []
    with pytest.MonkeyPatch.context() as patch:
        whole = SerialEngine.train
        patch.setattr(SerialEngine, "train", lambda self, order: (sent.append(u) or u for u in whole(self, order)))
        federate(model, clients, method=method, rounds=2, engine="serial", folder=tmp_path / "run")
    assert len(sent) == 4
    assert all(update.sent.keys() == slots for update in sent)
    outside = b"".join(encode({**update.params, **flatten(update.sent)}) for update in sent)
    outside += b"".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert not any(canary in outside for canary in pairs_of(canaries))
