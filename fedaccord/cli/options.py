"""Several commands share these options, and read settings from them in the same way."""

import argparse
import contextlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from fedaccord import config
from fedaccord.config import FIELDS, RECOMMENDED, Settings
from fedaccord.core.errors import FedAccordError, RunError
from fedaccord.core.settings import Setting

USUAL = {
    "what is trained": ("method", "split", "clients", "fraction"),
    "for how long": ("rounds", "patience", "keep"),
    "how a client trains (where no tuner chooses it)": ("lr", "steps", "batch_size", "optimizer"),
    "how it is run": ("seed", "device"),
}
"""The settings that most people need, under the headings of the short help; --help-all shows all."""


def add_settings(
    parser: argparse.ArgumentParser, settings: Iterable[Setting], title: str = "settings", hidden: bool = False
) -> None:
    """Add an option for each setting, with the setting's own sentence as its help; `hidden`: --help leaves it out."""
    group = parser.add_argument_group(title)
    for each in settings:
        if each.name != "task":
            default = "" if each.default in (None, "") else f" [{each.default}]"
            text = argparse.SUPPRESS if hidden else (each.help + default).replace("%", "%%")
            group.add_argument(f"--{each.name.replace('_', '-')}", metavar=each.kind.__name__.upper(), help=text)


def add_grouped_settings(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Add an option for every setting there is; without --help-all, the help shows only the usual ones."""
    parser.add_argument("--help-all", action="help", help="the same with all settings")
    owners = settings_by_owner(words)
    for title, names in USUAL.items():
        add_settings(parser, [FIELDS[name] for name in names], title)
    shown = {name for names in USUAL.values() for name in names}
    for title, settings in owners.items():
        rest = [each for each in settings if each.name not in shown]
        add_settings(parser, rest, f"other {title}" if title == "settings" else title, "--help-all" not in words)


def settings_by_owner(words: Sequence[str]) -> dict[str, list[Setting]]:
    """Return all settings there are, also those of a method in a file that the words name, under --help's headings.

    The words may name the method itself, or a --config file that does.
    """
    from fedaccord.methods.registry import PARTS, find
    from fedaccord.server.steps import SERVER_SETTINGS

    found = {"settings": list(FIELDS.values()), "settings of the server's step": list(SERVER_SETTINGS)}
    seen = {each.name for group in found.values() for each in group}
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    # wrong use is reported by the whole parser
    early.add_argument("--method", nargs="?")
    early.add_argument("--config", nargs="?")
    named = early.parse_known_args(words)[0]
    with contextlib.suppress(FedAccordError):
        if not named.method and named.config and Path(named.config).is_file():  # a pipe can be read once only
            named.method = config.read_toml(Path(named.config)).get("method")
    for part in (*PARTS.values(), *find(named.method or RECOMMENDED).parts):
        new = [each for each in part.settings if each.name not in seen]
        seen |= {each.name for each in new}
        if new:
            found[f"settings of methods with {part.name}"] = new
    return found


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add --json, which replaces the live view by lines for programs."""
    parser.add_argument("--json", action="store_true", help="one JSON line a round, and one at the end")


def study_options() -> argparse.ArgumentParser:
    """Return a parent parser with the options of every command that makes tables from many runs."""
    study = argparse.ArgumentParser(add_help=False)
    study.add_argument("--lanes", type=positive, help="runs at a time (as many as usable cores)")
    study.add_argument("--no-run", action="store_true", help="only make the tables from what is there")
    return study


def positive(text: str) -> int:
    """Parse an integer of at least 1."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected 1 or more")
    return int(text)


def listed(text: str) -> list[str]:
    """Split a list with commas, and keep each entry once."""
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def given(options: argparse.Namespace) -> dict[str, Any]:
    """Return the settings that were typed; --set wins over a setting's own option."""
    from fedaccord.methods.registry import find

    there = config.table()
    methods = [find(method) for method in methods_of(options)] or [find(RECOMMENDED)]
    for method in methods:
        there |= method.settings
    typed = {
        name: each.parse(text)
        for name, each in there.items()
        if name != "task" and isinstance(text := getattr(options, name, None), str)
    }
    if getattr(options, "paper", False):
        typed = {name: value for method in methods for name, value in config.printed(method).items()} | typed
    typed |= dict(config.parse_assignment(text, there) for text in getattr(options, "set", []))
    return from_anywhere(typed)


def methods_of(options: argparse.Namespace) -> list[str]:
    """Return the methods that the options name, whose settings may be given too."""
    pairs = (text.partition("=") for text in getattr(options, "set", []))
    named = [value.strip() for name, _, value in pairs if name.strip() == "method"]
    others = ("all", *getattr(options, "yardsticks", ()))
    listed_ = [name for name in listed(getattr(options, "methods", None) or "") if name not in others]
    typed = [*named, *filter(None, [getattr(options, "method", None)]), *listed_]
    file = {} if typed else in_file(options)
    return [file["method"]] if "method" in file else typed


def given_or_in_file(options: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of the --config file, if there is one, and those that were typed, which win."""
    return in_file(options) | given(options)


def in_file(options: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of the --config file, if there is one; it is read once, since it may be standard input."""
    if getattr(options, "config", None) and not isinstance(options.config, dict):
        options.config = from_anywhere(config.read_toml(options.config))
    return dict(getattr(options, "config", None) or {})


def settings_of(options: argparse.Namespace) -> tuple[Any, Settings]:
    """Return the task and its settings, without those that can only be derived from the data."""
    from fedaccord.methods.registry import find
    from fedaccord.tasks import find_task

    merged = given_or_in_file(options)
    name = options.task or merged.get("task", "digits")
    config.make(merged)  # complain about a wrong value before loading anything
    task = find_task(name, merged.get("image_size", 0))
    split = merged.get("split", task.settings.get("split", "non-iid"))
    settings = config.make(task.defaults(split), merged, {"task": lasting(name)})
    config.refuse_tuned(given(options), settings, find(settings.method))
    return task, settings


def from_anywhere(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings in which the paths of the method and of a run to replay are absolute."""
    paths = {"method": lasting, "replay": lambda path: str(Path(path).resolve())}
    return settings | {name: absolute(settings[name]) for name, absolute in paths.items() if settings.get(name)}


def lasting(name: str) -> str:
    """Return a task's or method's name with its paths made absolute, so that a run can be resumed from anywhere."""
    from fedaccord.methods.registry import PARTS, is_file, words_of
    from fedaccord.tasks import PRESETS

    words = words_of(name)
    if any(map(is_file, words)):
        return "+".join(str(Path(word).resolve()) if is_file(word) else word for word in words)
    path, known = Path(name), name in PRESETS or name in PARTS
    return str(path.resolve()) if path.suffix == ".npz" or os.sep in name or (path.is_dir() and not known) else name


def must_be_there(folder: Path) -> None:
    """Raise RunError if the results folder from which --no-run makes tables does not exist."""
    if not folder.is_dir():
        raise RunError(f"{folder}: no such folder, so there is nothing to make tables from")
