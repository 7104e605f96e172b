"""`fedaccord run` trains a task, and `fedaccord resume` goes on with a run that was cut off."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedaccord.cli.options import add_grouped_settings, add_json, settings_of
from fedaccord.cli.outcome import carry_on, say
from fedaccord.config import FIELDS
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
        "task", nargs="?", help="digits (default), mnist, fashion_mnist, cifar10, cifar10_lenet, kws, "
        "shakespeare, diabetes, breast_cancer; a folder of pictures by class; an .npz file; or file.py:name"
    )  # fmt: skip
    run.add_argument("--config", type=Path, metavar="FILE", help="a TOML file of settings")
    run.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any setting by its name")
    run.add_argument("--runs", type=Path, default=Path("runs"), metavar="FOLDER", help="where run folders go (runs/)")
    run.add_argument("--name", help="name of the run folder (made from date, task, method, split and seed)")
    add_json(run)
    run.add_argument(
        "--paper",
        action="store_true",
        help="as the paper prints it (docs/deviations.md): random cohorts, its weights, no guards, plain ascent ...",
    )
    if words[:1] == ["run"]:
        add_grouped_settings(run, words)
    run.set_defaults(command=run_command)

    resume = commands.add_parser("resume", help="resume a run", description="Go on from a run's last checkpoint.")
    resume.add_argument("run", type=Path, help="the run folder")
    resume.add_argument(
        "--rounds", help="so many in all: a finished run goes on, with the weights of one that had them from the start"
    )
    resume.add_argument("--patience", help="another patience (0: never stop early)")
    resume.add_argument(
        "--anyway",
        action="store_true",
        help="although the code of task, method or model has changed since it began",
    )
    add_json(resume)
    resume.set_defaults(command=resume_command)


def run_command(options: argparse.Namespace) -> int:
    """Train a task in a new run folder."""
    from fedaccord.runtime.build import from_task
    from fedaccord.runtime.changes import other_settings
    from fedaccord.runtime.folder import SETTINGS, RunFolder, free_name, read_raw

    task, settings = settings_of(options)
    say(options, f"task {settings.task}, method {settings.method}: loading the data")
    setup = from_task(task, settings)
    say(options, f"engine {setup.engine}")
    name = options.runs / options.name if options.name else free_name(options.runs, setup.settings)
    if (name / SETTINGS).is_file() and (told := other_settings(read_raw(name), setup.settings)):
        raise RunError(f"{name}: holds a run with other settings: {'; '.join(told)}; choose another name")
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
        for name in ("rounds", "patience"):
            if (text := getattr(options, name)) is not None:
                settings = settings.but({name: FIELDS[name].parse(text)})
        say(options, f"task {settings.task}, method {settings.method}: loading the data")
        setup = from_task(find_task(settings.task, settings.image_size), settings)
        return carry_on(options, setup, folder)
