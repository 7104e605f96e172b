"""Loading a variable, such as a task or a method, from a user's Python file."""

import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from fedaccord.core.errors import FedAccordError, SettingsError, first_line

RUN: dict[Path, tuple[int, ModuleType]] = {}
"""The files that were run: when each was last changed by then, and its module."""


def load_variable(path: Path, variable: str, kinds: type | tuple[type, ...], expected: str) -> Any:
    """Return the value of a variable of a Python file; raise SettingsError unless it is of one of these kinds.

    The file is run once, and again only when it has changed.
    """
    if not path.is_file():
        raise SettingsError(f"{path}: there is no such Python file")
    file, changed = path.resolve(), path.stat().st_mtime_ns
    if RUN.get(file, (None,))[0] != changed:
        RUN[file] = changed, run(path)
    module = RUN[file][1]
    sys.modules[path.stem] = module  # another file may have the same name
    found = getattr(module, variable, None)
    if not isinstance(found, kinds):
        right = [name for name, value in vars(module).items() if isinstance(value, kinds)]
        hint = f"; there is {', '.join(f'{path}:{name}' for name in right)}" if right else ""
        wrong = "is missing" if found is None else f"is {described(found)}, not {expected}"
        raise SettingsError(f"{path}: '{variable}' {wrong}{hint}")
    return found


def run(path: Path) -> ModuleType:
    """Run a Python file and return its module; raise SettingsError with the place if it fails."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise SettingsError(f"{path}: this is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    own = str(path.parent.resolve())
    sys.path.insert(0, own)  # so that it finds its neighbours, as when it is run
    try:
        spec.loader.exec_module(module)
    except FedAccordError:
        raise
    except (Exception, SystemExit) as error:  # whatever a user's file raises
        raise SettingsError(f"{place_of(error, path)}: {type(error).__name__}: {told_by(error)}") from error
    finally:
        sys.path.remove(own)  # the first of that name; the file may have inserted others
    return module


def described(value: object) -> str:
    """Describe in a few words what kind of value this is, such as "an int" or "the class Task"."""
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {', '.join(type(part).__name__ for part in value[:3]) or 'nothing'}"
    if isinstance(value, type) or value is None:
        return "None" if value is None else f"the class {value.__name__}"
    name = type(value).__name__
    return f"an {name}" if name[0] in "AEIOaeio" else f"a {name}"


def told_by(error: BaseException) -> str:
    """Return an error's message in one line, and for a missing package what to do about it."""
    if isinstance(error, ModuleNotFoundError):
        return f"{error.msg}; install it into this environment ({sys.prefix})"
    return error.msg if isinstance(error, SyntaxError) else first_line(error)


def place_of(error: BaseException, path: Path) -> str:
    """Return the file and line at which a user's file, or a neighbour that it imports, went wrong."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    own = path.resolve().parent
    frames = [each for each in traceback.extract_tb(error.__traceback__) if own in Path(each.filename).parents]
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else str(path)
