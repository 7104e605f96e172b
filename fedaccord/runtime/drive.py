"""Runs an experiment and records it in a run folder: rounds, log, checkpoints, a clean stop."""

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType

from torch import nn

from fedaccord.core.algorithm import BEST, over, run, start, tests_in
from fedaccord.core.errors import RunError
from fedaccord.core.params import read_params
from fedaccord.core.processes import processor_kind, torch_threads
from fedaccord.core.protocols import Engine
from fedaccord.core.records import Params, RoundLog, ServerState, Snapshot
from fedaccord.runtime.attendance import MOST_EMPTY, Attendance, attendance
from fedaccord.runtime.build import Setup
from fedaccord.runtime.changes import other_code, other_settings
from fedaccord.runtime.checkpoints import Checkpoint
from fedaccord.runtime.classes import ByClass, write_classes
from fedaccord.runtime.folder import ROUNDS, RunFolder, read_raw
from fedaccord.runtime.identity import fingerprint
from fedaccord.runtime.lines import round_of
from fedaccord.runtime.live import JsonView, View
from fedaccord.runtime.trackers import Together, trackers
from fedaccord.tasks import PRESETS


@dataclass(frozen=True)
class Outcome:
    state: ServerState
    rounds: list[RoundLog]  # all rounds of the run, also those from before it was resumed
    stopped: bool  # whether a person stopped it before the last round
    about: str  # the run's fingerprint
    warnings: list[str]  # what a person should know although the run went on
    waited: int = 0  # rounds without a better model after which it ended early; 0: it did not
    classes: ByClass | None = None  # labels and test results by class


def drive(
    setup: Setup, folder: RunFolder | None, view: View | None, others: Sequence[View] = (), anyway: bool = False
) -> Outcome:
    """Run an experiment to its end, from the folder's last checkpoint if it has one.

    Ctrl-C stops it after the round in progress. `others`: views that are told of the rounds besides `view` and the
    trackers. `anyway`: go on even if the code of task, method or model has changed since the run began.
    """
    experiment, settings = setup.experiment, setup.settings
    engine = experiment.engine
    measured = [metric.name for metric in setup.metrics]
    views = Together([*([view] if view else []), *others, *(trackers(folder, settings, measured) if folder else [])])
    with torch_threads(settings.threads), stop_request() as asked, opened(engine, folder):
        experiment.server.open(folder.path if folder else None)
        about = fingerprint(settings, setup.params, experiment.data())
        state, logs = begun(setup, folder, about, anyway, quiet=isinstance(view, JsonView))
        classes = None
        whole = attendance(logs)
        present = Attendance()  # since the start or the resume, which gives clients their chances anew
        log = logs[-1] if logs else None
        try:
            views.begin(logs)
            if folder:
                logs = []  # the folder has them: a long run must not grow with every round
            for state, log in run(experiment, state):  # noqa: B020 (each round starts from the state of the one before)
                whole.add(log)
                present.add(log)
                written = False
                if folder is None:
                    logs.append(log)
                else:
                    folder.append(log)
                    gives_up = present.empty_rounds >= MOST_EMPTY
                    ends = asked.is_set() or gives_up or over(experiment, state.round, state.kept)
                    if written := ends or state.round % settings.checkpoint_every == 0:
                        checkpoint(engine, folder, state, about)
                views.show(log)
                if asked.is_set():
                    if folder and not written:  # it was asked for meanwhile
                        checkpoint(engine, folder, state, about)
                    break
                if not over(experiment, state.round, state.kept):
                    give_up_alone(present, log, folder, setup.remarks)
            if log is not None and log.handed and over(experiment, state.round, state.kept):
                models = experiment.server.models(state.model) | ({BEST: state.kept.params} if state.kept else {})
                classes = setup.by_class(state.round, models[log.handed])
                if folder:
                    write_classes(folder.path, classes)
        finally:
            views.end()
    stopped = not over(experiment, state.round, state.kept)
    early = not stopped and state.kept is not None and state.round < settings.rounds
    waited = settings.patience if early else 0
    warnings = whole.sentences()
    if log is not None and not state.model.accepted:
        little = "no round was kept whole, so the model is the one that it began with, or close to it"
        warnings.append("; ".join([little, *setup.remarks]))
    return Outcome(state, read_logs(folder) if folder else logs, stopped, about, warnings, waited, classes)


@contextmanager
def opened(engine: Engine, folder: RunFolder | None) -> Iterator[None]:
    """Open the engine for the rounds, and close it whatever happens."""
    engine.open(folder.private if folder else None)
    try:
        yield
    finally:
        engine.close()


def begun(
    setup: Setup, folder: RunFolder | None, about: str, anyway: bool, quiet: bool
) -> tuple[ServerState, list[RoundLog]]:
    """Begin a run, or resume that of the folder; return its state and its rounds so far.

    `quiet`: say only what is amiss.
    """
    experiment, engine, settings = setup.experiment, setup.experiment.engine, setup.settings
    found = folder.load() if folder else None
    logs = read_logs(folder) if folder else []
    if found is not None and folder is not None:
        check_same(setup, folder, found, about, anyway)
        state = on_device(found.state, setup.model)
        if not over(experiment, state.round, state.kept):
            engine.expect(found.state.model.accepted)
            tell_of_another_processor(found.processor, folder)
            if state.round and not quiet:
                tell(f"{folder.path}: going on after round {state.round}")
    else:
        for sentence in [*([] if quiet else [f"entropy term {setup.entropy}"]), *setup.remarks]:
            tell(sentence)
        state = start(experiment, setup.params)
        if experiment.metrics is not None and settings.task not in PRESETS and not tests_in(experiment, 1):
            experiment.metrics(setup.params)  # somebody's own, which should fail now rather than in the tenth round
        if folder:
            folder.describe(setup.metrics)
            write_classes(folder.path, setup.by_class())
            folder.keep(read_params(setup.model, setup.travel.fixed))
            checkpoint(engine, folder, state, about)
    if folder:
        folder.note_code(setup.code)
        folder.settle(setup.settings)
    return state, logs


def read_logs(folder: RunFolder) -> list[RoundLog]:
    """Return all rounds of the folder's log."""
    return [round_of(entry, folder.path / ROUNDS) for entry in folder.rounds()]


def check_same(setup: Setup, folder: RunFolder, found: Checkpoint, about: str, anyway: bool) -> None:
    """Raise RunError unless this is the run that the folder holds; with `anyway`, its code may have changed."""
    if told := other_settings(read_raw(folder.path), setup.settings):
        raise RunError(f"{folder.path}: holds a run with other settings: {'; '.join(told)}; choose another folder")
    if found.state.round > setup.settings.rounds:
        raise RunError(
            f"{folder.path}: rounds = {setup.settings.rounds}, but {found.state.round} are done; give as many, or more"
        )
    if told := other_code(folder.code(), setup.code):
        what = f"{folder.path}: not as when the run began: {', '.join(told)}"
        if not anyway:
            raise RunError(f"{what}; resume --anyway (federate: anyway=True) goes on all the same")
        tell(f"{what}; it goes on all the same")
    if found.about != about:
        raise RunError(f"{folder.path}: the model's tensors or the data are not those that this run began with")


def give_up_alone(present: Attendance, log: RoundLog, folder: RunFolder | None, remarks: Sequence[str]) -> None:
    """Raise RunError if no client has counted for several rounds, since further rounds would only be wasted.

    `remarks`: what was said before the first round, which may well be the reason.
    """
    if present.empty_rounds >= MOST_EMPTY:
        reason = "; ".join([log.refused[0]["why"] if log.refused else "see its log", *remarks])
        raise RunError(
            f"no client's update could be used in the last {MOST_EMPTY} rounds (up to round {log.round}): {reason}"
            + ("; everything up to here is kept: once that is mended, resume the run" if folder else "")
        )


def tell_of_another_processor(before: str, folder: RunFolder) -> None:
    """Warn in one line if the run was on another kind of processor before: from here on its bits may differ."""
    now = processor_kind()
    if before and before != now:
        tell(
            f"{folder.path}: the run was on another kind of processor so far ({before}; this one: {now}): "
            "from here on the last digits may differ"
        )


def tell(sentence: str) -> None:
    """Print a line on standard error that everybody should see, whatever the view."""
    print(f"fedaccord: {sentence}", file=sys.stderr, flush=True)


def checkpoint(engine: Engine, folder: RunFolder, state: ServerState, about: str = "") -> None:
    """Save what the clients keep, then the server's state, so that no checkpoint names what is not there."""
    engine.save()
    folder.save(state, about)
    engine.prune(folder.needed())


def on_device(state: ServerState, model: nn.Module) -> ServerState:
    """Move a state to the device that the model is on; a checkpoint is read to the CPU."""
    device = next(model.parameters()).device

    def there(params: Params) -> Params:
        return {name: value.to(device) for name, value in params.items()}

    def moved(snapshot: Snapshot) -> Snapshot:
        server = {slot: there(params) for slot, params in snapshot.server.items()}
        return replace(snapshot, params=there(snapshot.params), server=server)

    previous = None if state.previous is None else moved(state.previous)
    kept = None if state.kept is None else replace(state.kept, params=there(state.kept.params))
    return replace(state, model=moved(state.model), previous=previous, kept=kept)


@contextmanager
def stop_request() -> Iterator[threading.Event]:
    """Yield an event that the first Ctrl-C (or SIGTERM) sets; a second Ctrl-C stops at once."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked  # signals belong to the main thread
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if asked.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not asked.is_set():  # not print: the signal may have interrupted one
            os.write(2, b"fedaccord: stopping after this round; Ctrl-C once more stops at once\n")
        asked.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
