"""Clients on a Ray cluster, one actor per core on whatever nodes there are, with the same bits as the serial engine.

Model, data and method go to the cluster once. A round's parameters go once to each node. What a client keeps stays in
the object store of the node that trained it and follows the client if another node has to take over; at a checkpoint it
is written into the run folder. The clients of a lost node are trained again elsewhere, from what they last kept.
"""

import logging
import os
import socket
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import ray
import torch
from ray.exceptions import GetTimeoutError, RayActorError, RayError

from fedaccord.client.store import ClientStore, may_be_needed
from fedaccord.client.training import OneByOne, Site
from fedaccord.core.errors import EngineError, first_line
from fedaccord.core.records import ClientUpdate, Order, Packages, Params
from fedaccord.engines.pool import TRIES, copied, portable
from fedaccord.engines.serial import SerialEngine

PATIENCE = 60.0
"""Seconds to wait for a core of the cluster before giving up."""


class Clients:
    """A Ray actor that trains the clients it is given."""

    def __init__(self, site: Site):
        torch.set_num_threads(site.threads)
        self.trainer = OneByOne(site)

    def train(self, order: Order, client: int, kept: Packages) -> tuple[Any, Packages]:
        try:
            return next(self.trainer.train(order, [client], [cloned(kept)]))
        except Exception as error:
            return portable(error), {}


def out_of_reach() -> list[ModuleType]:
    """Return the modules whose folder is not on sys.path, such as a user's file: no other process could import them."""
    files = {module: getattr(module, "__file__", None) for module in list(sys.modules.values())}
    folders = {os.path.abspath(folder) for folder in sys.path}
    return [
        module
        for module, file in files.items()
        if file and "." not in module.__name__ and Path(file).name != "__init__.py"
        if module.__name__ != "__main__" and str(Path(file).resolve().parent) not in folders
    ]


class RayEngine(SerialEngine):
    """An engine of `workers` actors (None: one per core) on the cluster at `address`; '' for one on this machine."""

    def __init__(self, site: Site, workers: int | None = None, address: str = ""):
        super().__init__(site)
        self.address, self.count = address, workers
        self.started = False
        self.actors: list[Any] = []
        self.places: dict[int, dict[int, Any]] = {}  # client -> generation -> where on the cluster it is
        self.unsaved: set[tuple[int, int]] = set()

    def open(self, folder: Path | None) -> None:
        self.store = ClientStore(folder, in_memory=folder is None)
        check_reachable(self.address)
        if not ray.is_initialized():
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would report to its makers
            here = {"address": "local", "num_cpus": self.count, "include_dashboard": False}  # never somebody else's
            where: dict[str, Any] = {"address": self.address} if self.address else here
            try:
                ray.init(**where, logging_level=logging.ERROR, log_to_driver=False)
            except (ConnectionError, RuntimeError, ValueError, OSError) as error:
                raise EngineError(f"no Ray cluster at {self.address or 'this machine'}: {first_line(error)}") from None
            self.started = True
        for module in out_of_reach():
            ray.cloudpickle.register_pickle_by_value(module)
        self.site_ref = ray.put(self.site)

    def train(self, order: Order) -> Iterator[ClientUpdate]:
        waiting = [client for client in order.cohort if len(self.site.clients[client])]
        todo = sorted(waiting, key=lambda client: (-len(self.site.clients[client]), client))  # the largest first
        order_ref = ray.put(replace(order, cohort=()))
        done: dict[int, ClientUpdate] = {}
        deaths: Counter[int] = Counter()
        self.hire(len(waiting))
        idle, running = list(self.actors), dict[Any, tuple[Any, int, Any]]()
        try:
            for client in waiting:
                while client not in done:
                    while todo and idle:
                        actor, next_ = idle.pop(), todo.pop(0)
                        kept = self.kept(next_, order)
                        update, keeps = actor.train.options(num_returns=2).remote(order_ref, next_, kept)
                        running[update] = (actor, next_, keeps)
                    (ready, *_), _ = ray.wait(list(running))
                    actor, number, keeps = running.pop(ready)
                    update = self.collect(ready)
                    if isinstance(update, RayError):  # its process is gone, or what the client goes on from
                        deaths[number] += 1
                        if deaths[number] == TRIES:
                            raise EngineError(f"client {number}: failed {TRIES} times on the cluster: {update}")
                        todo.insert(0, number)
                        self.look_after(number, order)
                        if isinstance(update, RayActorError):
                            self.actors.remove(actor)
                            if not self.actors:
                                self.hire(len(waiting))
                                idle = list(self.actors)
                            continue
                    else:
                        if self.keeps:
                            self.remember(number, order, keeps)
                        done[number] = update
                    idle.append(actor)
                yield done.pop(client)
        finally:
            for update in running:
                ray.cancel(update)

    def hire(self, wanted: int) -> None:
        """Start actors on the free cores, no more than `wanted` in all; raise EngineError if there can be none."""
        cores = int(ray.available_resources().get("CPU", 0)) + len(self.actors)
        count = max(1, min(self.count or cores, cores, wanted))
        remote = ray.remote(Clients).options(num_cpus=1, scheduling_strategy="SPREAD")
        while len(self.actors) < count:
            self.actors.append(remote.remote(self.site_ref))
        for actor in list(self.actors):
            try:
                ray.get(actor.__ray_ready__.remote(), timeout=PATIENCE)
            except GetTimeoutError:
                raise EngineError(f"no free core in the Ray cluster after {PATIENCE:.0f} s") from None
            except RayError:
                self.actors.remove(actor)
        if not self.actors:
            raise EngineError("every actor died as it was started: does each node have fedaccord installed?")

    def collect(self, ready: Any) -> ClientUpdate | RayError:
        try:
            update = ray.get(ready)
        except RayError as error:
            return error
        if isinstance(update, Exception):
            raise update
        return replace(update, params=copied(update.params), sent=cloned(update.sent))

    def kept(self, client: int, order: Order) -> Any:
        """Return what the client goes on from, or a reference to it on the cluster."""
        since = order.since.get(client, 0)
        return self.places.get(client, {}).get(since) or super().kept(client, order)

    def remember(self, client: int, order: Order, where: Any) -> None:
        """Remember where this generation is, and forget the earlier ones that nobody can go on from again."""
        before = self.places.get(client, {})
        needed = may_be_needed(before, order.since.get(client, 0))
        self.unsaved -= {(client, old) for old in before.keys() - set(needed)}
        self.places[client] = {old: before[old] for old in needed} | {order.round: where}
        self.unsaved.add((client, order.round))

    def look_after(self, client: int, order: Order) -> None:
        """Go back to the store if what the client goes on from was lost with its node.

        Raise EngineError if the store does not have it either.
        """
        since = order.since.get(client, 0)
        where = self.places.get(client, {}).get(since)
        if where is None or not lost(where):
            return
        if (client, since) in self.unsaved or since not in dict(self.store.generations(client)):
            raise gone(client, since)
        del self.places[client][since]

    def save(self) -> None:
        """Write what is new, also where there is a file of that round already: the round was then done again."""
        for client, generation in sorted(self.unsaved) if self.store.folder is not None else ():
            where = self.places[client][generation]
            if lost(where):
                raise gone(client, generation)
            self.store.put(client, generation, cloned(ray.get(where)), generation)
        self.unsaved.clear()
        super().save()

    def prune(self, accepted: Mapping[int, int]) -> None:
        """Forget what is older than the generations that the oldest checkpoint goes on from, as the store does."""
        for client, needed in accepted.items():
            places = self.places.get(client, {})
            self.places[client] = {generation: where for generation, where in places.items() if generation >= needed}
        super().prune(accepted)

    def close(self) -> None:
        for actor in self.actors:
            ray.kill(actor)
        self.actors = []
        if self.started:
            ray.shutdown()
        super().close()


def cloned(packages: Packages) -> dict[str, Params]:
    """Return copies of the tensors: those in the object store cannot be written to."""
    return {slot: copied(params) for slot, params in packages.items()}


def check_reachable(address: str) -> None:
    """Raise EngineError if nobody answers at the address; Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon:
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
        except (OSError, ValueError) as error:
            raise EngineError(f"no Ray cluster at {address}: {error}") from None


def gone(client: int, generation: int) -> EngineError:
    return EngineError(
        f"what client {client} kept in round {generation} was lost with its node before a checkpoint was written: "
        "`fedaccord resume` goes on from the last one"
    )


def lost(where: Any) -> bool:
    try:
        ray.get(where, timeout=PATIENCE)
        return False
    except RayError:
        return True
