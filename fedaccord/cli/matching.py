"""`fedaccord matching` shows what representation matching does to a task's model."""

import argparse
from collections.abc import Sequence
from typing import Any

from fedaccord.cli.options import add_settings, settings_of
from fedaccord.config import FIELDS


def add(commands: Any, words: Sequence[str]) -> None:
    """Add the parser of matching."""
    matching = commands.add_parser(
        "matching",
        help="show what representation matching does to a model",
        description="The layers of interest of a task's model, the matching layers f_j built for them, size and cost.",
    )
    matching.add_argument("task", help="as for run")
    add_settings(matching, (FIELDS[name] for name in ("width", "image_size")))
    if words[:1] == ["matching"]:
        from fedaccord.methods.matching.part import RepresentationMatching

        add_settings(matching, RepresentationMatching.settings, "settings of matching")
    matching.set_defaults(command=matching_command)


def matching_command(options: argparse.Namespace) -> int:
    """Print the layers of interest, their matching layers, and what they cost."""
    from fedaccord.methods.matching.part import RepresentationMatching
    from fedaccord.runtime.parts import fitting_model

    task, settings = settings_of(options)
    model, inputs = fitting_model(task, settings)
    part = RepresentationMatching()
    values = {each.name: each.default for each in part.settings} | settings.values()
    print(part.explain(model, inputs, values))
    return 0
