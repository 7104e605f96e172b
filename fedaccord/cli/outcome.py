"""Commands tell how they are going, how they ended, and with which exit code."""

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

from fedaccord.core.errors import EngineError

FAILED = 1
"""Some of the work failed, or nobody reads the output any more."""

WRONG_USE = 2
"""The user can put it right: a wrong setting, a missing file, a folder in use."""

TRY_AGAIN = 75
"""What was lost may come back, so the same command may succeed later (EX_TEMPFAIL of sysexits.h)."""

ABOUT = {"short": "five", "long": "thirty"}
"""The number of rounds over which a running mean of the model goes, in words, by its name in server/steps.py."""

STOPPED = 130
"""The user stopped it (128 + SIGINT, as shells do)."""


def progress(text: str) -> None:
    """Print a line about the work under way to standard error."""
    print(text, file=sys.stderr, flush=True)


def say(options: argparse.Namespace, text: str) -> None:
    """Print a line about the work under way, unless --json asked for lines for programs only."""
    if not options.json:
        progress(text)


def try_again(error: EngineError) -> int:
    """Report a lost connection with an exit code that allows a process manager to start the command again."""
    print(f"fedaccord: {error}", file=sys.stderr)
    return TRY_AGAIN


def carry_on(options: argparse.Namespace, setup: Any, folder: Any) -> int:
    """Drive a run from where its folder stands, and tell how it ended."""
    from fedaccord.runtime.drive import drive
    from fedaccord.runtime.live import choose

    began = time.monotonic()
    outcome = drive(setup, folder, choose(setup, options.json), anyway=getattr(options, "anyway", False))
    return tell(options, outcome, folder.path, began, f"fedaccord resume {folder.path}")


def tell(options: argparse.Namespace, outcome: Any, folder: Path, began: float, how_to_go_on: str) -> int:
    """Print the summary of a run that ended or was stopped, and return the exit code."""
    from fedaccord.core.algorithm import BEST, LAST
    from fedaccord.runtime.folder import read_metrics, read_settings
    from fedaccord.runtime.identity import log_sha256, params_sha256
    from fedaccord.runtime.live import figures
    from fedaccord.runtime.spent import epsilon_spent, privacy_sentence

    percent = {note.name for note in read_metrics(folder) if note.percent}
    rounds = [dataclasses.asdict(log) for log in outcome.rounds]
    tested = next((log for log in reversed(outcome.rounds) if log.metrics), None)
    metrics = tested.metrics if tested else {}
    summary: dict[str, Any] = {
        "run": str(folder),
        "rounds": outcome.state.round,
        "loss": outcome.state.loss,
        "metrics": metrics,
        "tested": tested.round if tested else None,
        "handed": tested.handed if tested else None,
        "best": None if outcome.state.kept is None else outcome.state.kept.round,
        "stopped": outcome.stopped,
        "warnings": outcome.warnings,
        "seconds": round(time.monotonic() - began, 2),
        "params_sha256": params_sha256(outcome.state.params),
        "log_sha256": log_sha256(rounds),
    }
    if (spent := epsilon_spent(rounds)) is not None:
        summary["epsilon"] = spent
    for sentence in outcome.warnings:
        print(f"fedaccord: warning: {sentence}", file=sys.stderr, flush=True)
    if options.json:
        print(json.dumps(summary), flush=True)
        return STOPPED if outcome.stopped else 0
    if outcome.waited:
        print(
            f"ended early: no better model on the server's set in {outcome.waited} rounds (resume --patience goes on)"
        )
    done = outcome.state.round
    before = f" (of round {tested.round})" if tested and tested.round < done else ""
    print(f"after round {done}: {figures(outcome.state.loss, metrics, percent)}{before}  ({summary['seconds']} s)")
    if (kept := outcome.state.kept) is not None:
        handed = ", whose model is handed out (the metrics are its)" if kept.params else ""
        print(f"best on the server's set: round {kept.round}, with {kept.score:.4g}{handed}")
    if summary["handed"] not in (None, LAST, BEST):
        mean = f"a mean over about the last {ABOUT[of]} rounds' models" if (of := summary["handed"]) in ABOUT else of
        print(f"measured and handed out: {mean}")
    if told := privacy_sentence(rounds, read_settings(folder).values()):
        print(told)
    print(f"parameters  sha256 {summary['params_sha256'][:16]}  log sha256 {summary['log_sha256'][:16]}")
    print(f"run folder  {folder}")
    if outcome.stopped:
        print(f"stopped after round {outcome.state.round}; go on with: {how_to_go_on}")
        return STOPPED
    return 0
