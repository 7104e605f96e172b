"""`fedaccord compare` runs methods, splits, fractions and seeds against each other and prints one table."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedaccord.cli.options import given_or_in_file, lasting, listed, must_be_there, study_options
from fedaccord.cli.outcome import FAILED
from fedaccord.cli.report import write_report
from fedaccord.config import FIELDS
from fedaccord.core.errors import SettingsError

OVERLAID = 12
"""More runs than this on one page would be a tangle."""
YARDSTICKS = ("central", "local")
EQUAL = ("rounds", "steps", "bytes", "seconds")


def add(commands: Any, words: Sequence[str]) -> None:
    """Add the parser of compare."""
    compare = commands.add_parser(
        "compare",
        parents=[study_options()],
        help="methods x splits x fractions x seeds, as one table",
        description="Run what is missing, resume what was cut off, and print mean ± standard deviation of the "
        "first metric on the test set, the best of a row marked. A second table has the mean of the last five tests, "
        "the difference to FA with the same seeds (95 % confidence interval), and the rounds, client steps, bytes and "
        "seconds that each method spent. Both (.md, .csv, .tex) go to the results folder, and a page, if there are no "
        "more than 12 runs.",
        epilog="Two yardsticks may be named among the methods, and make as many client steps in all as the federation: "
        "central, the same network on all data in one place; local, each client alone with its own data (its spread "
        "over the clients stands below the table).",
    )
    compare.add_argument("--task", default="digits", help="as for run (digits)")
    compare.add_argument(
        "--methods",
        default="FA,FA+RM+AH",
        help="with commas, also central and local; all: all methods there are (FA,FA+RM+AH)",
    )
    compare.add_argument("--splits", default="non-iid", help="with commas (non-iid)")
    compare.add_argument("--fractions", default="1.0", help="C, with commas (1.0)")
    compare.add_argument("--seeds", type=int, default=1, help="how many, from 0 on (1)")
    compare.add_argument(
        "--equal", choices=tuple(EQUAL), default="rounds",
        help="what the methods may spend alike (rounds): every run is read at its last test within what the cheapest "
        "method of the row spent",
    )  # fmt: skip
    compare.add_argument("--budget", type=float, metavar="NUMBER", help="another budget instead, such as 5e6 bytes")
    compare.add_argument("--config", type=Path, metavar="FILE", help="a TOML file of settings for all runs")
    compare.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any setting, for all runs")
    compare.add_argument("--results", type=Path, metavar="FOLDER", help="where runs and tables go (runs/compare-TASK)")
    compare.add_argument("--format", choices=("md", "csv", "tex"), default="md", help="what is printed (md)")
    compare.add_argument("--keep", action="store_true", help="keep the weights of finished runs too")
    compare.set_defaults(command=compare_command, yardsticks=YARDSTICKS)


def compare_command(options: argparse.Namespace) -> int:
    """Run what is missing of the study, then write and print the tables of what is there."""
    from fedaccord.experiments import comparison, runner
    from fedaccord.experiments import study as studies
    from fedaccord.experiments.yardsticks import LOCAL
    from fedaccord.report import grid, tables

    study = study_of(options)
    name = Path(study.task.replace(":", "-")).name
    folder = options.results or Path("runs") / f"compare-{name}"
    failures = []
    if options.no_run:
        must_be_there(folder)
    else:
        failures = runner.run_missing(list(studies.cells(study)), folder, options.lanes, options.keep)
    table, spent = comparison.compare(study, folder, options.equal, options.budget)
    studies.write_tables(table, folder / "table")
    studies.write_tables(spent, folder / "spent", grid.FORMS)
    print(tables.FORMS[options.format](table))
    print(grid.FORMS[options.format](spent))
    shown = [cell for cell in studies.cells(study) if cell.method != LOCAL]  # a curve a client would hide the others
    there = [folder / cell.name for cell in shown if studies.finished(cell, folder)]
    if len(there) > OVERLAID:
        print(f"no page: {len(there)} runs on one would be a tangle; `fedaccord report` takes those you choose")
    else:
        write_report(there, folder / "report.html")
    if failures:
        print(f"fedaccord: {runner.summary(failures)}", file=sys.stderr)
    return FAILED if failures else 0


def study_of(options: argparse.Namespace) -> Any:
    """Return the study that the options describe: a row for each fraction and split."""
    from fedaccord.experiments.study import Row, Study
    from fedaccord.methods.registry import METHODS

    own = given_or_in_file(options)
    fixed = {"task", "method", "split", "fraction", "seed"} & own.keys()
    if fixed:
        raise SettingsError(f"compare: {sorted(fixed)[0]} has an option of its own, see --help")
    methods = METHODS if options.methods == "all" else tuple(map(lasting, listed(options.methods)))
    fractions = dict.fromkeys(FIELDS["fraction"].parse(text) for text in listed(options.fractions))
    rows = tuple(
        Row(split, fraction, methods, options.seeds, own) for fraction in fractions for split in listed(options.splits)
    )
    if not methods or not rows:
        raise SettingsError("compare: --methods, --splits and --fractions want at least one each")
    if options.budget is not None and not options.budget > 0:
        raise SettingsError(f"--budget {options.budget:g}: expected more than 0")
    if options.seeds < 1:
        raise SettingsError(f"--seeds {options.seeds}: expected 1 or more")
    return Study(lasting(options.task), rows)
