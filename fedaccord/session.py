"""Drives a simulation into a run folder: rounds, log, checkpoints, a clean stop."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import torch

from fedaccord.algorithm import run, start
from fedaccord.live import View
from fedaccord.records import Engine, RoundLog, ServerState
from fedaccord.runs import RunFolder
from fedaccord.simulation import Simulation


@dataclass(frozen=True)
class Outcome:
    state: ServerState
    rounds: list[RoundLog]  # all of the run, also those from before it was resumed
    stopped: bool  # a person asked it to stop before the last round


def drive(simulation: Simulation, folder: RunFolder | None, view: View | None) -> Outcome:
    """Run to the end, or go on from the folder's last checkpoint. Ctrl-C ends it after the round in progress."""
    fed, settings = simulation.federation, simulation.settings
    with torch_threads(settings.threads), stop_request() as asked:
        fed.engine.open(folder.private if folder else None)
        state = folder.load() if folder else None
        logs = [RoundLog(**entry) for entry in folder.rounds()] if folder else []
        if state is None:
            state = start(fed, simulation.params)
            if folder:
                checkpoint(fed.engine, folder, state)
        if view:
            view.begin(logs)
        try:
            for state, log in run(fed, state):  # noqa: B020 (each round starts from the state of the one before)
                logs.append(log)
                if folder:
                    folder.append(log)
                    if state.round % settings.checkpoint_every == 0 or state.round == settings.rounds or asked.is_set():
                        checkpoint(fed.engine, folder, state)
                if view:
                    view.show(log)
                if asked.is_set():
                    break
        finally:
            if view:
                view.end()
            fed.engine.close()
    return Outcome(state, logs, stopped=state.round < settings.rounds)


def checkpoint(engine: Engine, folder: RunFolder, state: ServerState) -> None:
    """What the clients keep first, then the server's state: a checkpoint never names what is not there."""
    engine.save()
    folder.save(state)
    engine.prune(folder.oldest())


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
