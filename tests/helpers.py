"""Small real parts that many tests build on."""

import json
import time
from dataclasses import replace

import torch
from torch import nn

from fedaccord import config
from fedaccord.client.side import ClientSide
from fedaccord.core.protocols import Built
from fedaccord.core.records import Hyper, Observation
from fedaccord.methods.registry import as_method
from fedaccord.server.chain import ServerChain
from fedaccord.server.steps import with_server_steps


def hyper(lr=0.1, steps=1, batch_size=64, momentum=0.0, **own):
    """Hyper-parameters; whatever is not the optimizer's is the method's or the loss's own."""
    return Hyper(lr, steps, batch_size, momentum, own)


def client_side(model, example=None, method="FA", **settings):
    """The client's side of a method, with its default settings but for these."""
    made = as_method(method)
    values = config.make({"method": made.name, **settings}, method=made).values()
    made.prepare(model, values)
    return ClientSide(made, Built(model, torch.zeros(2, 1) if example is None else example, values))


def server_chain(model, method="FA", clients=10, **settings):
    """The server's side of a method, with the steps that go with any."""
    made = as_method(method)
    values = config.make({"method": made.name, **settings}, method=made).values()
    return ServerChain(with_server_steps(made, values), model, values, clients)


def seen(reward, carried_out=True, round=1):
    """What a policy sees of a round with this reward."""
    return Observation(round, reward, carried_out, 1.0, {}, {}, None, 0.0, None, None, None, None, 0.0, None, 0, {})


def module_with(params, buffers=()):
    """A module whose state has these names and values; what is not a float is a buffer."""
    made = nn.Module()
    for name, value in params.items():
        if value.is_floating_point() and name not in buffers:
            made.register_parameter(name, nn.Parameter(value.clone()))
        else:
            made.register_buffer(name, value.clone())
    return made


def write_cell(cell, folder, accuracy, rounds=None, lost=0):
    """A run of a study by hand: one client, the same accuracy in every round; nobody counts in the last `lost`."""
    path, rounds = folder / cell.name, rounds or cell.settings.rounds
    path.mkdir(parents=True)
    settings = replace(cell.settings, clients=cell.settings.clients or 10, augment=bool(cell.settings.augment))
    (path / "settings.toml").write_text(config.to_toml(settings))
    beside = {"reward": None, "policy": {}, "guard": None, "seconds": {}}
    lines = [
        {
            "round": t,
            "hyper": {},
            "cohort": [0],
            "refused": [{"client": 0, "why": "not finite"}] if t > rounds - lost else [],
            "loss": 1.0,
            "metrics": {"accuracy": accuracy},
            "clients": {} if t > rounds - lost else {"0": {"examples": 1}},
            **beside,
        }
        for t in range(1, rounds + 1)
    ]
    (path / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def wait_for(what, seconds=600):
    """Until it is so. The limit is no measurement: it ends a test that would hang for ever."""
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            raise TimeoutError("it never came")
        time.sleep(0.02)
