"""Check every byte of a federation at the socket, behind TLS termination: declared slots only, and no canary.

Two nodes and the server each reach the SuperLink through a port of a proxy that terminates TLS. Every request and
response is taken apart down to the records and the names of the tensors in them. Canaries are in the clients' data, in
the names of their files and folders, in theta_i and in what a method keeps at a client.
"""

import logging
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.chaos import canaries
from benchmarks.chaos.capture_parts import Seen, look_into
from benchmarks.chaos.part import Outcome, Part
from benchmarks.chaos.tls_proxy import Proxy, exchanges
from benchmarks.chaos.updates import ready
from fedaccord import config
from fedaccord.client.store import ClientStore
from fedaccord.methods.registry import find
from fedaccord.runtime.federation import serve_task
from fedaccord.tasks import find_task

METHODS = ("FA", "SCAFFOLD", "FA+RM+AH")
CLIENTS, ROUNDS, COUNT = 2, 3, 600

TASK = '''
from pathlib import Path
import torch
from torch import nn
from fedaccord import Examples, Task

HERE = Path(__file__).parent


def load_my_data(client):
    """Every client has a file of its own, with a name that says much."""
    (file,) = HERE.glob(f"patients-*-{client}.pt")
    return Examples(torch.load(file, weights_only=True), torch.arange(60) % 3)


def load_server_data():
    inputs = torch.rand(60, 40, generator=torch.Generator().manual_seed(7))
    return Examples(inputs, torch.arange(60) % 3), Examples(inputs, torch.arange(60) % 3)


def model():
    return nn.Sequential(nn.Linear(40, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 3))


task = Task("captured", load_my_data=load_my_data, load_server_data=load_server_data, model=model)
'''


def captured(number: int, folder: Path) -> Outcome:
    """Run a federation with one of the methods, and check the bytes that were captured."""
    ready()
    logging.getLogger("fedaccord").setLevel(logging.CRITICAL)
    method, word = METHODS[number % len(METHODS)], secrets.token_hex(12)
    home = folder / f"folder-{word}"
    home.mkdir()
    values = np.random.default_rng(number).random((CLIENTS + 1, COUNT * 4), dtype=np.float32)
    (home / "task.py").write_text(TASK)
    for client in range(CLIENTS):
        inputs = torch.from_numpy(values[client]).view(60, 40)
        torch.save(inputs.clone(), home / f"patients-{word[::-1]}-{client}.pt")
    settings = settings_of(f"{home / 'task.py'}:task", method)
    with federation(home, settings) as (grid, proxy):
        planted = spy(grid, home, torch.from_numpy(values[CLIENTS]))
        outcome = serve_task(find_task(settings.task), settings, grid, home / "run", lambda made: Silent())
    seen = Seen()
    model = set(outcome.state.params)
    declared = {way: set(find(method).slots(way)) for way in ("down", "up")}
    streams = []
    for talk in proxy.talks:
        streams += [bytes(talk.up), bytes(talk.down)]
        for asked, answered in exchanges(talk):
            look_into(asked, answered, model, declared, seen)
    needles = {needle for row in values[:CLIENTS] for needle in canaries.of_numbers(row)}
    needles |= canaries.of_numbers(values[CLIENTS][: planted["count"]]) if planted else set()
    needles |= canaries.of_name(word) | canaries.of_name(word[::-1])
    leaked = canaries.leaks(needles, streams)
    told = [*sorted(set(seen.odd))[:5], *(f"canary {each!r} travelled" for each in leaked[:5])]
    whole = ROUNDS * CLIENTS
    if min(seen.records.values()) < whole or outcome.state.round != ROUNDS or bool(planted) != (method != "FA"):
        told.append(f"not the whole run was seen: {seen.records}, round {outcome.state.round}, planted {planted}")
    if seen.slots != declared["down"] | declared["up"]:
        told.append(f"the slots that travelled are {sorted(seen.slots)}")
    figures = {"MB": sum(map(len, streams)) / 1e6, "canaries": len(needles)}
    return Outcome(sum(seen.records.values()), len(told), f"{method}: {'; '.join(told)}" if told else "", figures)


def settings_of(task: str, method: str) -> config.Settings:
    """Return settings with such a small learning rate that what is planted in theta_i stays as it is."""
    own = {
        "task": task,
        "clients": CLIENTS,
        "method": method,
        "lr": 1e-6,
        "steps": 2,
        "rounds": ROUNDS,
        "batch_size": 20,
    }
    own |= {"rm_weight": 1e-12, "rm_step": 0.0} if "RM" in method else {}
    own |= {"grid": "lr = 1e-6, 2e-6; steps = 2, 3"} if "AH" in method else {}
    return config.make(find_task(task).defaults("iid"), own)


@contextmanager
def federation(home: Path, settings: config.Settings) -> Iterator[tuple[Any, Proxy]]:
    """Start a SuperLink and nodes; yield this process's grid, and the proxy through which it and the nodes connect."""
    from fedaccord.flower.adapter import open_grid
    from fedaccord.flower.certificates import Link
    from fedaccord.flower.local import LocalFederation

    local = LocalFederation(home, CLIENTS, simulate=False)
    (home / "settings.toml").write_text(config.to_toml(settings))
    proxy = Proxy(local.keys, local.address)
    try:
        local.start(local.link)
        for part in local.members:
            place = part.words.index(local.address)
            part.words[place] = proxy.listen(part.name)
            local.start(part)
        secret, authority = (local.keys / "secret").read_bytes(), (local.keys / "ca.pem").read_bytes()
        with open_grid(Link(proxy.listen("server"), authority, secret=secret)) as grid:
            yield grid, proxy
    finally:
        local.end()
        proxy.close()


class Silent:
    """A view of a run that shows nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **more: None


def spy(grid: Any, home: Path, values: torch.Tensor) -> dict[str, int]:
    """Have canaries planted in what client 1 keeps, after its first round and before it is sent the next order.

    Return a dictionary that holds how many there are as soon as they are planted.
    """
    planted: dict[str, int] = {}
    push = grid.push_messages

    def pushed(letters: Any) -> Any:
        if not planted:
            planted.update(plant(home, values))
        return push(letters)

    grid.push_messages = pushed
    return planted


def plant(home: Path, values: torch.Tensor) -> dict[str, int]:
    """Write values into the largest tensor that client 1 keeps; return their count, or nothing if it keeps none yet."""
    places = [each.parent for each in (home / "node1").glob("*/1")]
    if not places or not (generations := ClientStore(places[0], in_memory=False).generations(1)):
        return {}
    store, newest = ClientStore(places[0], in_memory=False), generations[-1][0]
    kept = store.get(1, newest)
    slot, name = max(((s, n) for s in kept for n in kept[s]), key=lambda pair: kept[pair[0]][pair[1]].numel())
    count = min(kept[slot][name].numel(), len(values))
    kept[slot][name].view(-1)[:count] = values[:count]
    store.put(1, newest, kept, since=0)
    return {"count": count}


PARTS = (
    Part("capture", "a record of a federation at the socket, without TLS: declared slots, no canary", captured, 3, 15),
)
