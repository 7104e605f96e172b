"""theta_i stays with its client: canary values planted in it are found nowhere but in the store."""

import dataclasses
import struct

import torch

from fedaccord import config
from fedaccord.client.store import PrivateStore
from fedaccord.core.algorithm import run, start
from fedaccord.core.records import ClientUpdate
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


def test_canaries_in_theta_are_found_nowhere_outside_the_store(tmp_path):
    task = find_task("digits")
    changes = {"method": "FA+RM", "rounds": 3, "rm_store": "disk", "rm_weight": 1e-2, "lr": 1e-30}
    sim = from_task(task, config.make(task.defaults("non-iid"), changes))
    engine, canaries = sim.federation.engine, torch.rand(2 * CANARIES, generator=torch.Generator().manual_seed(0))
    sent = spy_on(engine)
    with RunFolder.create(tmp_path / "run", sim.settings) as folder:
        engine.open(folder.private)
        state = start(sim.federation, sim.params)
        for state, log in run(sim.federation, state):  # noqa: B020
            folder.append(log)
            checkpoint(engine, folder, state)
            if state.round == 1:  # plant: with so small a rate they stay as they are
                theta = engine.store.get(3, 2)
                theta["f.0.layer.weight"].view(-1)[: 2 * CANARIES] = canaries
                engine.store.put(3, 1, theta)
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
    kept = PrivateStore(tmp_path / "run" / "private", in_memory=True).get(3, 4)
    assert torch.equal(kept["f.0.layer.weight"].view(-1)[: 2 * CANARIES], canaries)


def test_an_update_has_no_field_that_could_carry_theta_or_data():
    assert [item.name for item in dataclasses.fields(ClientUpdate)] == [
        "client", "params", "examples", "loss", "received_loss", "previous_loss"
    ]  # fmt: skip


def test_every_update_holds_the_models_names_and_nothing_else():
    task = find_task("digits")
    sim = from_task(task, config.make(task.defaults("non-iid"), {"method": "FA+RM", "rounds": 2}))
    sent = spy_on(sim.federation.engine)
    list(run(sim.federation, start(sim.federation, sim.params)))
    assert len(sent) == 20
    assert all(update.params.keys() == sim.params.keys() for update in sent)
