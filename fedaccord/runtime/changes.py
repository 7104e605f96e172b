"""What has changed since a run began: its settings, the code of its task, method and model, and the package."""

import hashlib
import inspect
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from fedaccord import __version__, config
from fedaccord.config import Settings
from fedaccord.core.records import LossFunction
from fedaccord.core.settings import LENGTH, OPERATION
from fedaccord.methods.registry import is_file, words_of
from fedaccord.runtime.identity import LATER, try_to_find

PACKAGE = "fedaccord"
OURS = (PACKAGE, "torch")
"""Packages whose classes are not a user's own code."""


def code_of(settings: Settings, model: nn.Module, loss: LossFunction | None) -> dict[str, str]:
    """Return what identifies a run's code: the package's version, and a hash for each piece of a user's own code.

    These are the files of task and method, the model's form and the source of its classes, and the source of the loss.
    Code whose source cannot be found, such as a class that was typed into a prompt, or a lambda, is left out.
    """
    found = {PACKAGE: __version__}
    for kind, name in (("task", settings.task), ("method", settings.method)):
        for file in [Path(word.rpartition(":")[0]) for word in words_of(name) if is_file(word)]:
            if file.is_file():
                found[f"the {kind} file {file.name}"] = sha256(file.read_bytes())
    classes = {type(module) for module in model.modules()}
    own = sorted(source_of(each) for each in classes if each.__module__.partition(".")[0] not in OURS)
    form = re.sub(r"0x[0-9a-f]+", "", repr(model))  # without addresses in memory
    found["the model"] = sha256("\n".join([form, *own]).encode())
    if loss is not None and (source := source_of(loss)):
        found["the loss"] = sha256(source.encode())
    return found


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def source_of(code: Any) -> str:
    """Return the source of a class or a named function, or an empty string if it cannot be found."""
    if getattr(code, "__name__", "<lambda>") == "<lambda>":  # its lines may hold other things too
        return ""
    try:
        return inspect.getsource(code)
    except (OSError, TypeError):
        return ""


def other_code(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Name the code that has changed since the run began; what an older run did not note counts as unchanged."""
    told = [name for name in before if name != PACKAGE and name in now and now[name] != before[name]]
    version = before.get(PACKAGE, now[PACKAGE])
    return [*told, *([f"fedaccord (it was {version}, this is {now[PACKAGE]})"] if version != now[PACKAGE] else [])]


def other_settings(before: Mapping[str, Any], settings: Settings) -> list[str]:
    """Name the settings that must stay and differ from those in a run folder's file, each with both values."""
    now = tomllib.loads(config.to_toml(settings))
    brought = config.table(try_to_find(settings.method))
    told = []
    for name in dict.fromkeys([*before, *now]):
        role = brought[name].role if name in brought else None
        was, is_ = (alike(name, each.get(name, LATER.get(name))) for each in (before, now))
        if was != is_ and role not in (LENGTH, OPERATION):
            told.append(f"{name} = {shown(was)} there, {shown(is_)} here")
            if name == "method":  # the other differences come with it
                return told[-1:]
    return told


def alike(name: str, value: Any) -> Any:
    """Return the value by which a setting is compared: the same word for engines that give the same bits."""
    return "serial" if name == "engine" and value != "stacked" else value


def shown(value: Any) -> str:
    return "nothing" if value is None else repr(value)
