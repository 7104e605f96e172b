"""`fedaccord bench` measures speed on this machine; `bench tuner` and `bench field` have files of their own."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedaccord.cli.field import add_field
from fedaccord.cli.options import listed
from fedaccord.cli.outcome import progress
from fedaccord.cli.tuner import add_tuner
from fedaccord.core.errors import SettingsError
from fedaccord.core.files import make_folder

ACCURACY = {"tuner": add_tuner, "field": add_field}


def add(commands: Any, words: Sequence[str]) -> None:
    """Add the parser of bench, or that of `bench tuner` or `bench field` if the words begin so."""
    if words[:1] == ["bench"] and words[1:2] and words[1] in ACCURACY:
        ACCURACY[words[1]](commands.add_parser("bench").add_subparsers(required=True))
        return
    bench = commands.add_parser(
        "bench",
        help="measure speed on this machine, the regret of tuners, or all methods side by side",
        description="Measure speed on this machine, as ratios: shares (of the matrix-product peak, and against a bare "
        "PyTorch loop), methods (the paper's run-time table), rounds (time and bytes of every method), scaling (10 to "
        "10,000 clients). `fedaccord bench tuner` (regret of tuners) and `fedaccord bench field` (all methods) measure "
        "accuracy instead, and have options of their own: see `fedaccord bench tuner --help`.",
    )
    bench.add_argument("parts", nargs="*", metavar="PART", help="shares, methods, rounds, scaling (all)")
    bench.add_argument("--tasks", default="mnist", help="with commas: digits, mnist, cifar10, kws (mnist)")
    bench.add_argument("--repeats", type=int, default=7, help="the median of this many repeats counts (7)")
    bench.add_argument("--workers", type=int, help="processes (as many as usable cores)")
    bench.add_argument(
        "-o", "--output", type=Path, metavar="FOLDER", help="bench.json, bench.md and bench.svg go there"
    )
    bench.set_defaults(command=bench_command)


def bench_command(options: argparse.Namespace) -> int:
    """Measure the parts that were asked for, print them as a table, and keep them if there is a folder for it."""
    from fedaccord.experiments import bench
    from fedaccord.report import speed

    tasks = listed(options.tasks)
    unknown = [part for part in options.parts if part not in bench.PARTS]
    unknown += [task for task in tasks if task not in bench.STEPS]
    if unknown:
        raise SettingsError(
            f"bench: unknown '{unknown[0]}'; parts are {', '.join(bench.PARTS)}, tasks {', '.join(bench.STEPS)}"
        )
    if options.repeats < 1:
        raise SettingsError(f"--repeats {options.repeats}: expected 1 or more")
    if options.output:
        make_folder(options.output)
    found = bench.run(options.parts or list(bench.PARTS), tasks, options.repeats, options.workers, progress)
    print(speed.table(found))
    if options.output:
        (options.output / "bench.json").write_text(json.dumps(found, indent=1) + "\n")
        (options.output / "bench.md").write_text(speed.table(found))
        if "shares" in found:
            speed.draw(found["shares"], options.output / "bench.svg")
        print(f"written to {options.output}", file=sys.stderr)
    return 0
