"""Drives a simulation into a run folder: rounds, log, checkpoints, a clean stop."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType

import torch
from torch import nn

from fedaccord.algorithm import run, start
from fedaccord.errors import RunError
from fedaccord.live import View
from fedaccord.records import Engine, RoundLog, ServerState
from fedaccord.runs import RunFolder, fingerprint
from fedaccord.simulation import Simulation
from fedaccord.trackers import Together, trackers


@dataclass(frozen=True)
class Outcome:
    state: ServerState
    rounds: list[RoundLog]  # all of the run, also those from before it was resumed
    stopped: bool  # a person asked it to stop before the last round
    about: str  # the run's fingerprint


def drive(simulation: Simulation, folder: RunFolder | None, view: View | None) -> Outcome:
    """Run to the end, or go on from the folder's last checkpoint. Ctrl-C ends it after the round in progress."""
    fed, settings = simulation.federation, simulation.settings
    views = Together([*([view] if view else []), *(trackers(folder, settings) if folder else [])])
    with torch_threads(settings.threads), stop_request() as asked:
        fed.engine.open(folder.private if folder else None)
        about = fingerprint(settings, simulation.params, fed.data())
        found = folder.load() if folder else None
        logs = [RoundLog(**entry) for entry in folder.rounds()] if folder else []
        if found is not None and folder is not None:
            if found.about != about:
                raise RunError(
                    f"{folder.path}: the settings, the model or the data are not those that this run began with"
                )
            fed.engine.expect(found.private)
            state = on_device(found.state, simulation.model)
        else:
            state = start(fed, simulation.params)
            if folder:
                checkpoint(fed.engine, folder, state, about)
        try:
            views.begin(logs)
            for state, log in run(fed, state):  # noqa: B020 (each round starts from the state of the one before)
                logs.append(log)
                if folder:
                    folder.append(log)
                    if state.round % settings.checkpoint_every == 0 or state.round == settings.rounds or asked.is_set():
                        checkpoint(fed.engine, folder, state, about)
                views.show(log)
                if asked.is_set():
                    break
        finally:
            views.end()
            fed.engine.close()
    return Outcome(state, logs, state.round < settings.rounds, about)


def checkpoint(engine: Engine, folder: RunFolder, state: ServerState, about: str = "") -> None:
    """What the clients keep first, then the server's state: a checkpoint never names what is not there."""
    folder.save(state, engine.save(), about)
    engine.prune(folder.oldest())


def on_device(state: ServerState, model: nn.Module) -> ServerState:
    """A checkpoint is read to the CPU; the run goes on where the model is."""
    device = next(model.parameters()).device
    params = {name: value.to(device) for name, value in state.params.items()}
    previous = {name: value.to(device) for name, value in (state.previous or {}).items()}
    return replace(state, params=params, previous=previous or None)


@contextmanager
def stop_request() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C (or SIGTERM) sets; a second Ctrl-C stops at once."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked  # signals belong to the main thread
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if asked.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
