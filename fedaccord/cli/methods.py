"""`fedaccord methods` lists the methods: what each does, sends, keeps and costs."""

import argparse
from collections.abc import Sequence
from typing import Any

from fedaccord.cli.options import add_settings, settings_of
from fedaccord.config import FIELDS


def add(commands: Any, words: Sequence[str]) -> None:
    """Add the parser of methods."""
    methods = commands.add_parser(
        "methods",
        help="list the methods: what each does, sends, keeps and costs",
        description="Every part that a method's name may join by +, such as FA+RM+AH or MOON+AH: what it does; the "
        "bytes that each client of a task sends up, is sent down and keeps to itself, in one round; and what a "
        "client's step costs, roughly, as a multiple of a plain one.",
    )
    methods.add_argument("task", nargs="?", default="digits", help="whose model the bytes are of (digits)")
    add_settings(methods, (FIELDS[name] for name in ("width", "image_size")))
    methods.set_defaults(command=methods_command)


def methods_command(options: argparse.Namespace) -> int:
    """Print a table of all parts of methods: what each does, sends, keeps and costs."""
    from rich.console import Console
    from rich.table import Table

    from fedaccord.methods.registry import PARTS
    from fedaccord.runtime.parts import fitting_model

    task, settings = settings_of(options)
    model, inputs = fitting_model(task, settings)
    table = Table("part", "what it does", box=None, padding=(0, 2, 0, 0))
    for head in ("up", "down", "kept", "cost"):
        table.add_column(head, justify="right")
    for part in PARTS.values():
        table.add_row(part.name, part.about, *sizes(part, model, inputs, settings.values()), f"{part.cost:g}")
    Console().print(f"bytes of each client and round, for the model of {task.name}", highlight=False)
    Console().print(table)
    return 0


def sizes(part: Any, model: Any, inputs: Any, values: dict[str, Any]) -> list[str]:
    """Return the bytes that a client sends, is sent and keeps, or dashes if the part does not work on this model."""
    from fedaccord.client.side import ClientSide
    from fedaccord.core.errors import FedAccordError
    from fedaccord.core.protocols import Built, Method
    from fedaccord.core.records import size_of

    known = {each.name: each.default for each in part.settings} | values
    try:
        side = ClientSide(Method(part.name, (part,)), Built(model, inputs, known))
    except FedAccordError:
        return ["–"] * 3
    whole = size_of(model.state_dict())
    beside = [sum(map(size_of, slots.values())) for slots in (side.up, side.down, side.kept)]
    return [f"{size:,}" for size in (whole + beside[0], whole + beside[1], beside[2])]
