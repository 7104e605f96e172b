"""`fedaccord reproduce` makes the paper's tables and figures."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedaccord.cli.options import must_be_there, study_options
from fedaccord.core.errors import SettingsError


def add(commands: Any, words: Sequence[str]) -> None:
    """Add the parser of reproduce."""
    reproduce = commands.add_parser(
        "reproduce",
        parents=[study_options()],
        help="the paper's tables and figures",
        description="Make the paper's tables and figures, with its own figures beside ours: mnist, cifar10, kws "
        "(tables and curves), search (the fixed schedules that were tried), steps (accuracy by local steps a round), "
        "overhead (run time), evolution (of the tuner), or all.",
    )
    reproduce.add_argument(
        "parts", nargs="+", metavar="PART", help="mnist cifar10 kws search steps overhead evolution all"
    )
    reproduce.add_argument(
        "--budget", choices=("cpu", "paper"), default="cpu",
        help="cpu: fewer rounds, for two cores; paper: what we believe the paper ran, for a GPU (cpu)",
    )  # fmt: skip
    reproduce.add_argument("--device", default="cpu", help="where to compute: cpu, cuda, ... (cpu)")
    reproduce.add_argument("--results", type=Path, default=Path("results"), metavar="FOLDER", help="(results)")
    reproduce.set_defaults(command=reproduce_command)


def reproduce_command(options: argparse.Namespace) -> int:
    """Make the parts that were asked for, in the order in which they were named."""
    from fedaccord.experiments import paper

    for part in options.parts:
        if part not in (*paper.PARTS, "all"):
            raise SettingsError(f"reproduce: unknown '{part}'; there are {', '.join(paper.PARTS)} and all")
    if options.no_run:
        must_be_there(options.results)
    work = paper.Reproduction(options.results, options.budget, not options.no_run, options.lanes, options.device, print)
    for part in paper.PARTS if "all" in options.parts else options.parts:
        work.part(part)
    return 0
