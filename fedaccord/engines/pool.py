"""Worker processes on this machine, one torch thread each, that compute the same bits as the serial engine.

The results do not depend on which worker trains which client, nor on when.

Workers are forked: the data, the model and the method are theirs without a copy, and nothing needs to be picklable.
Tensors pass through memory that parent and workers share: one block for what all clients receive, and places for what a
client keeps and sends. A message is a few scalars. A worker that dies is replaced, and its clients are trained again
from what they began with.
"""

import atexit
import contextlib
import copy
import math
import mmap
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import warnings
import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import NamedTuple

import torch

from fedaccord.client.training import Site, Trainer
from fedaccord.core.errors import EngineError
from fedaccord.core.packages import flatten, unflatten
from fedaccord.core.params import read_params
from fedaccord.core.processes import die_with
from fedaccord.core.records import ClientUpdate, Order, Packages, Params, size_of
from fedaccord.engines.serial import SerialEngine

AHEAD = 2
"""Groups of clients given to a worker at a time, so that it need not wait for the parent between two of them."""
EARLY_BYTES = 2**31
"""The memory that updates may take while they wait for their turn, for those before them in client order."""
TRIES = 3
"""How often a client is tried if its worker dies."""


class Job(NamedTuple):
    """A message to a worker: everything else it knows or finds in shared memory."""

    places: list[int]  # one for each client
    clients: list[int]
    kept: list[bool]  # whether the place holds what the client kept
    order: Order  # without tensors


class Reply(NamedTuple):
    updates: list[ClientUpdate]  # without tensors: they are in the places
    kept: list[bool]  # whether the place holds what the client keeps now
    error: Exception | None = None


class Place(NamedTuple):
    """Shared memory for one client: its model, what the method sends, and what it keeps."""

    params: Params
    sent: Params
    kept: Params


@dataclass
class Worker:
    process: BaseProcess
    pipe: Connection
    jobs: list[Job] = field(default_factory=list)  # in the order in which it does them


class PoolEngine(SerialEngine):
    """An engine of `workers` processes, each with the same trainer."""

    def __init__(self, site: Site, workers: int, trainer: Trainer | None = None):
        super().__init__(site, trainer)
        self.count = workers
        self.workers: list[Worker] = []
        self.places: list[Place] = []  # for the clients in progress
        self.free: list[int] = []

    def train(self, order: Order) -> Iterator[ClientUpdate]:
        waiting = [client for client in order.cohort if len(self.site.clients[client])]
        todo = self.trainer.groups(waiting, order)
        if not todo:
            return
        self.start(AHEAD * self.count * max(map(len, todo)))
        write(self.received, order.params)
        write(self.down, flatten(order.down))
        if order.previous is not None:
            write(self.previous, order.previous)
        bare = replace(order, cohort=(), params={}, down={}, previous={} if order.previous is not None else None)
        message = replace(bare, since={client: order.since.get(client, 0) for client in waiting})
        done: dict[int, ClientUpdate] = {}
        deaths: Counter[int] = Counter()
        try:
            for client in waiting:  # the updates leave in client order
                while client not in done:
                    self.hand_out(todo, len(done), message)
                    for place in self.ready():
                        reply = receive(self.workers[place])
                        if reply is None:
                            todo += self.replace(place, deaths)
                        elif reply.error:
                            raise reply.error
                        else:
                            self.accept(reply, self.workers[place].jobs.pop(0), order, done)
                yield done.pop(client)
        finally:
            if todo or any(worker.jobs for worker in self.workers):
                self.stop()  # the round was left early: its answers must not reach the next one

    def start(self, places: int) -> None:
        """Make shared memory and then start the workers, unless both are there: a fork shares what exists by then."""
        if self.workers and len(self.places) >= places:
            return
        self.stop()
        OPEN.add(self)
        model, method = read_params(self.site.model, self.site.names), self.site.method
        sent, kept = flatten(method.up), flatten(method.kept)
        self.size = size_of(model) + size_of(sent)
        self.received, self.previous, self.down = shared(model), shared(model), shared(flatten(method.down))
        self.places = [Place(shared(model), shared(sent), shared(kept)) for _ in range(places)]
        self.free = list(range(places))
        for _ in range(self.count):
            self.workers.append(self.hire())

    def hire(self) -> Worker:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        process = context.Process(target=self.work, args=(theirs, os.getpid()), daemon=False)
        with warnings.catch_warnings():  # forking beside threads: ours hold no lock that a worker needs
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        theirs.close()
        return Worker(process, ours)

    def hand_out(self, todo: list[list[int]], early: int, message: Order) -> None:
        """Give each worker something to do, beginning with the group that has most examples.

        If many updates are waiting for their turn already, the group whose turn it is comes first instead.
        """
        for depth in range(1, AHEAD + 1 if len(todo) > len(self.workers) else 2):
            for worker in self.workers:
                if todo and len(worker.jobs) < depth:
                    crowded = early * self.size > EARLY_BYTES
                    group = min(todo) if crowded else max(todo, key=lambda group: (self.examples(group), -group[0]))
                    todo.remove(group)
                    self.give(worker, group, message)

    def examples(self, group: list[int]) -> int:
        return sum(len(self.site.clients[client]) for client in group)

    def give(self, worker: Worker, group: list[int], message: Order) -> None:
        places = [self.free.pop() for _ in group]
        kept = [flatten(self.kept(client, message)) for client in group]
        for place, before in zip(places, kept, strict=True):
            if before:
                write(self.places[place].kept, before)
        job = Job(places, group, [bool(before) for before in kept], message)
        worker.jobs.append(job)
        with contextlib.suppress(OSError):  # it has just died: `receive` will notice
            worker.pipe.send(job)

    def ready(self) -> list[int]:
        """Wait until a worker has replied or died, and return the places of all that have."""
        ready = multiprocessing.connection.wait([worker.pipe for worker in self.workers])
        return [place for place, worker in enumerate(self.workers) if worker.pipe in ready]

    def accept(self, reply: Reply, job: Job, order: Order, done: dict[int, ClientUpdate]) -> None:
        for update, kept, number in zip(reply.updates, reply.kept, job.places, strict=True):
            place = self.places[number]
            self.keep(update.client, order, unflatten(copied(place.kept)) if kept else {})
            done[update.client] = replace(update, params=copied(place.params), sent=unflatten(copied(place.sent)))
        self.free += job.places

    def replace(self, place: int, deaths: Counter[int]) -> list[list[int]]:
        """Put a new worker in the place of a dead one, and return the groups that are to be trained again."""
        dead = self.workers.pop(place)
        dead.pipe.close()
        dead.process.join()
        if dead.jobs:  # it died over the first of these; the others were only waiting
            first = dead.jobs[0].clients[0]
            deaths[first] += 1
            if deaths[first] == TRIES:
                raise EngineError(f"client {first}: its worker died {TRIES} times, {cause(dead.process.exitcode)}")
        for job in dead.jobs:
            self.free += job.places
        self.workers.insert(place, self.hire())
        return [job.clients for job in dead.jobs]

    def work(self, pipe: Connection, parent: int) -> None:
        """Do jobs in the worker process until the parent closes the pipe."""
        let_go(pipe.fileno())
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # the parent decides when to stop
        die_with(parent)
        torch.set_num_threads(self.site.threads)
        while True:
            try:
                job: Job = pipe.recv()
            except (EOFError, OSError):
                os._exit(0)
            try:
                reply = self.do(job)
            except Exception as error:
                reply = Reply([], [], portable(error))
            pipe.send(reply)

    def do(self, job: Job) -> Reply:
        previous = self.previous if job.order.previous is not None else None
        order = replace(job.order, params=self.received, down=unflatten(self.down), previous=previous)
        before: list[Packages] = [
            unflatten(self.places[number].kept) if held else {}
            for number, held in zip(job.places, job.kept, strict=True)
        ]
        updates, keeps = [], []
        for (update, kept), number in zip(self.trainer.train(order, job.clients, before), job.places, strict=True):
            place = self.places[number]
            write(place.params, update.params)
            write(place.sent, flatten(update.sent))
            if kept:
                write(place.kept, flatten(kept))
            updates.append(replace(update, params={}, sent={}))
            keeps.append(bool(kept))
        return Reply(updates, keeps)

    def stop(self) -> None:
        for worker in self.workers:
            worker.pipe.close()
            worker.process.kill()
            worker.process.join()
        self.workers = []

    def close(self) -> None:
        self.stop()
        super().close()


OPEN: "weakref.WeakSet[PoolEngine]" = weakref.WeakSet()
"""Engines that may have workers."""


@atexit.register  # registered after multiprocessing's own, hence called before it
def stop_all() -> None:
    """Stop engines that nobody closed: at exit multiprocessing asks workers to end, which they ignore, and waits."""
    for engine in list(OPEN):
        engine.stop()


def receive(worker: Worker) -> Reply | None:
    """Return a worker's reply, or None if it is dead, perhaps in the middle of a message."""
    try:
        reply: Reply = worker.pipe.recv()
        return reply
    except (EOFError, OSError, pickle.UnpicklingError):
        return None


def shared(like: Params) -> Params:
    """Make tensors of these shapes in one anonymous block of memory that forks share; a kill leaves nothing behind."""
    starts, total = {}, 0
    for name, value in like.items():
        starts[name] = total
        total += math.ceil(value.numel() * value.element_size() / 64) * 64
    block = mmap.mmap(-1, max(total, 1))
    return {
        name: torch.frombuffer(block, dtype=value.dtype, count=value.numel(), offset=starts[name]).view(value.shape)
        if value.numel()
        else value.clone()
        for name, value in like.items()
    }


def write(block: Params, params: Params) -> None:
    for name, value in block.items():
        value.copy_(params[name])


def copied(block: Params) -> Params:
    return {name: value.clone() for name, value in block.items()}


def portable(error: Exception) -> Exception:
    """Return the exception if it survives the way to another process, otherwise an EngineError with its text."""
    try:
        copy.copy(error), pickle.dumps(error)  # a copy is made as unpickling would make it
        return error
    except Exception:
        return EngineError(f"{type(error).__name__}: {error}")


def cause(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        return f"last by {signal.Signals(-exitcode).name}" + (" (out of memory?)" if exitcode == -9 else "")
    return f"last with exit code {exitcode}"


def let_go(own: int) -> None:
    """Close every inherited file descriptor except the standard streams and the worker's own pipe.

    These are the other workers' pipes, and the run folder's lock, which would otherwise be held as long as a worker
    lives. Their numbers stay taken, by the null device, so that nobody closes a new file by an old number.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2 and number not in (own, nothing):
            with contextlib.suppress(OSError):  # the listing's own descriptor
                os.fstat(number)
                os.dup2(nothing, number)
