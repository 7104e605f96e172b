"""A variable of a user's Python file, such as a task or a method."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

from fedaccord.core.errors import SettingsError


def load_variable(path: Path, variable: str, kinds: type | tuple[type, ...], expected: str) -> Any:
    """Run the file and return what the variable holds, which must be of one of these kinds."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise SettingsError(f"{path}: there is no such Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    sys.path.insert(0, str(path.parent.resolve()))  # so that it finds its neighbours, as when it is run
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    found = getattr(module, variable, None)
    if not isinstance(found, kinds):
        raise SettingsError(f"{path}: '{variable}' is {'missing' if found is None else f'not {expected}'}")
    return found
