"""`fedaccord run` trains a task, and `fedaccord resume` goes on with a run that was cut off."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedaccord.cli.options import add_grouped_settings, add_json, settings_of
from fedaccord.cli.outcome import carry_on, say
from fedaccord.core.errors import RunError


def add(commands: Any, words: Sequence[str]) -> None:
    """Add the parsers of run and resume."""
    run = commands.add_parser(
        "run",
        help="train a task",
        usage="fedaccord run [TASK] [--SETTING VALUE ...]",
        description="Train a task, with a run folder that can be resumed.",
        epilog="A value is looked for in --set and the options, then in --config, then in the task's own defaults.",
    )
    run.add_argument(
        "task", nargs="?", help="digits (default), mnist, fashion_mnist, cifar10, kws, shakespeare, diabetes, "
        "breast_cancer; a folder of pictures by class; an .npz file; or file.py:name"
    )  # fmt: skip
    run.add_argument("--config", type=Path, metavar="FILE", help="a TOML file of settings")
    run.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any setting by its name")
    run.add_argument("--runs", type=Path, default=Path("runs"), metavar="FOLDER", help="where run folders go (runs/)")
    run.add_argument("--name", help="name of the run folder (made from date, task, method, split and seed)")
    add_json(run)
    run.add_argument(
        "--paper",
        action="store_true",
        help="everything as the paper prints it: random cohorts, its weights, no guards, plain ascent ...",
    )
    if words[:1] == ["run"]:
        add_grouped_settings(run, words)
    run.set_defaults(command=run_command)

    resume = commands.add_parser("resume", help="go on with a run", description="Go on from a run's last checkpoint.")
    resume.add_argument("run", type=Path, help="the run folder")
    add_json(resume)
    resume.set_defaults(command=resume_command)


def run_command(options: argparse.Namespace) -> int:
    """Train a task in a new run folder."""
    from fedaccord.runtime.build import from_task
    from fedaccord.runtime.folder import RunFolder, free_name

    task, settings = settings_of(options)
    say(options, f"task {settings.task}, method {settings.method}: loading the data")
    setup = from_task(task, settings)
    say(options, f"engine {setup.engine}")
    name = options.runs / options.name if options.name else free_name(options.runs, setup.settings)
    with RunFolder.create(name, setup.settings) as folder:
        return carry_on(options, setup, folder)


def resume_command(options: argparse.Namespace) -> int:
    """Go on from the last checkpoint of a run folder."""
    from fedaccord.runtime.build import from_task
    from fedaccord.runtime.folder import RunFolder
    from fedaccord.tasks import find_task

    with RunFolder(options.run) as folder:
        settings = folder.settings()
        if settings.engine == "flower":
            raise RunError(f"{options.run}: is a real federation's; start its parts again and it goes on")
        if settings.task == "python":
            raise RunError(f"{options.run}: was started by federate(); call it again with folder={str(options.run)!r}")
        say(options, f"task {settings.task}, method {settings.method}: loading the data")
        setup = from_task(find_task(settings.task, settings.image_size), settings)
        return carry_on(options, setup, folder)
