"""`fedaccord bench field` puts every method side by side on problems of the lab."""

import argparse
import sys
from pathlib import Path
from typing import Any

from fedaccord.cli.options import lasting, listed, must_be_there, positive, study_options
from fedaccord.cli.outcome import FAILED, progress
from fedaccord.cli.tuner import filled
from fedaccord.core.errors import SettingsError


def add_field(commands: Any) -> None:
    """Add the parser of bench field."""
    from fedaccord.experiments import field, lab

    parser = commands.add_parser(
        "field",
        parents=[study_options()],
        help="every method, as published and with matching and the tuner",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=filled(
            "Put methods side by side on problems of the lab: each with its published settings and the task's default "
            "schedule, with matching (+RM), with the tuner (+AH) and with both. What is there is not run again, what "
            "was cut off is resumed. The folder then holds field.md (the tables of all runs that it has, also "
            "printed) and runs.csv."
        ),
        epilog=filled(f"problems: {', '.join(lab.PROBLEMS)}\nmethods: {', '.join(field.METHODS)}"),
    )
    parser.add_argument(
        "--results", type=Path, default=field.FOLDER, metavar="FOLDER", help=f"where all goes ({field.FOLDER})"
    )
    parser.add_argument(
        "--problems",
        metavar="NAMES",
        default=",".join(field.PROBLEMS),
        help=f"with commas ({','.join(field.PROBLEMS)})",
    )
    parser.add_argument(
        "--methods", metavar="NAMES", default=",".join(field.METHODS), help="with commas, without +RM and +AH (all)"
    )
    parser.add_argument("--seeds", type=positive, default=1, help="how many (1)")
    parser.add_argument("--first-seed", type=int, default=0, metavar="SEED", help="the first of them (0)")
    parser.set_defaults(command=field_command)


def field_command(options: argparse.Namespace) -> int:
    """Run what is missing of the field, then print the tables of what is there, and leave them in the folder."""
    from fedaccord.core.files import write_durably
    from fedaccord.experiments import field, runner
    from fedaccord.report import field as report

    work, folder = field_of(options), options.results
    failures = []
    if options.no_run:
        must_be_there(folder)
    else:
        work.whole().check()  # before any of them starts
        failures = work.run(options.lanes, print)
    whole = work.whole()
    entries = list(whole.entries())
    seeds = sorted({each.seed for each in entries})
    notes = [note for name, note in field.NOTES.items() if any(each.method == name for each in entries)]
    text = report.markdown(entries, [problem.name for problem in whole.problems], seeds, notes)
    print(text)
    if entries:
        write_durably(folder / "field.md", text.encode())
        write_durably(folder / "runs.csv", report.as_csv(entries).encode())
        progress(f"written to {folder}")
    if failures:
        print(f"fedaccord: {runner.summary(failures)}", file=sys.stderr)
    return FAILED if failures else 0


def field_of(options: argparse.Namespace) -> Any:
    """Return the field that the options describe."""
    from fedaccord.experiments import field, lab
    from fedaccord.methods.registry import find

    problems, methods = listed(options.problems), list(map(lasting, listed(options.methods)))
    if not problems or not methods:
        raise SettingsError("bench field: --problems and --methods want at least one each")
    if unknown := [name for name in problems if name not in lab.PROBLEMS]:
        raise SettingsError(f"bench field: unknown problem '{unknown[0]}'; there are {', '.join(lab.PROBLEMS)}")
    for name in methods:
        if beside := {part.name for part in find(name).parts} & set(field.BESIDE):
            raise SettingsError(f"bench field: {name}: leave out {min(beside)}, which is joined to every method here")
    if options.first_seed < 0:
        raise SettingsError(f"--first-seed {options.first_seed}: expected 0 or more")
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    return field.Field(options.results, [lab.PROBLEMS[name] for name in problems], methods, seeds)
