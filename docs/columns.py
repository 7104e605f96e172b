"""A griffe extension: what our docstrings explain in two columns, the site shows as a list."""

import re
from typing import Any

from griffe import Extension, Object

ENTRY = re.compile(r"^(\w+) {2,}(\S.*(?:\n {2,}\S.*)*)$", re.MULTILINE)
"""A name, two spaces or more, and its explanation, whose further lines are indented."""


def as_list(text: str) -> str:
    return ENTRY.sub(lambda found: f"- `{found[1]}`: {' '.join(found[2].split())}", text)


class Columns(Extension):
    def on_instance(self, *, obj: Object, **more: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_list(obj.docstring.value)
