"""`fedaccord export` writes a run's model for other programs."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def add(commands: Any, words: Sequence[str]) -> None:
    """Add the parser of export."""
    export = commands.add_parser(
        "export",
        help="write a run's model for other programs",
        description="Write the model that a run hands out. The name of the file says how: .safetensors (the weights "
        "alone), .pt2 (torch.export: the whole model, runs without its Python code), .onnx (for other runtimes; extra: "
        "export). Its inputs are those that the model sees, after the task's prepare. In Python: fedaccord.load(RUN).",
    )
    export.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    export.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help=".safetensors, .pt2 or .onnx")
    export.add_argument(
        "--client", type=int, metavar="N", help="put in this client's part, where a part of the model is its own"
    )
    export.add_argument(
        "--which",
        choices=("last", "best"),
        help="the model of the last round, or the best one (what the run hands out)",
    )
    export.set_defaults(command=export_command)


def export_command(options: argparse.Namespace) -> int:
    """Write a run's model to a file and say what is in it."""
    from fedaccord.runtime.weights import export

    print(f"{options.output}: {export(options.run, options.output, options.client, options.which)}")
    return 0
