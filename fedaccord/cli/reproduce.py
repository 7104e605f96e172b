"""`fedaccord reproduce` makes the paper's tables and figures, and a table of somebody else's."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedaccord.cli.options import listed, must_be_there, positive, study_options
from fedaccord.core.errors import RunError, SettingsError

NIID = "niid-bench"


def add(commands: Any, words: Sequence[str]) -> None:
    """Add the parser of reproduce."""
    reproduce = commands.add_parser(
        "reproduce",
        parents=[study_options()],
        help="the paper's tables and figures, and NIID-Bench's",
        description="Make the paper's tables and figures, with its own figures beside ours: mnist, cifar10, kws "
        "(tables and curves), search (the fixed schedules that were tried), steps (accuracy by local steps a round), "
        "overhead (run time), evolution (of the tuner), choices (what leaving the default is worth; with --budget "
        "paper), or all of these. niid-bench: the label-skew rows of NIID-Bench "
        "(Li et al., 2022) on CIFAR-10, with the published figures and the difference; a run takes about an hour on "
        "one core. The same command resumes what was cut off.",
    )
    reproduce.add_argument(
        "parts",
        nargs="+",
        metavar="PART",
        help="mnist cifar10 kws search steps overhead evolution choices all, niid-bench",
    )
    reproduce.add_argument(
        "--budget", choices=("cpu", "paper"), default="cpu",
        help="cpu: a few rounds, with the tuner as it was before; paper: mnist, cifar10 and kws as long as we believe "
        "the paper trained, with the default tuner and searched schedules: days on two cores (cpu)",
    )  # fmt: skip
    reproduce.add_argument("--device", default="cpu", help="where to compute: cpu, cuda, ... (cpu)")
    reproduce.add_argument("--results", type=Path, default=Path("results"), metavar="FOLDER", help="(results)")
    some = reproduce.add_argument_group("what is to be run of --budget paper and of niid-bench")
    some.add_argument(
        "--rows", help="with commas: iid-C1, non-iid-C1, iid-C0.5, non-iid-C0.5 (all); niid-bench: dirichlet, labels, "
        "quantity (dirichlet,labels)",
    )  # fmt: skip
    some.add_argument(
        "--methods", help="with commas, first things first (all); niid-bench: FA, FA+WD (FedProx), SCAFFOLD, FedNova "
        "(all four)",
    )  # fmt: skip
    some.add_argument("--seeds", type=positive, help="how many, from 0 on (3; niid-bench: 1)")
    some.add_argument("--rounds", type=positive, help="niid-bench: fewer than the published 50, for a first look (50)")
    reproduce.set_defaults(command=reproduce_command)


def reproduce_command(options: argparse.Namespace) -> int:
    """Make the parts that were asked for, in the order in which they were named."""
    from fedaccord.experiments import long, paper, runner

    for part in options.parts:
        if part not in (*paper.PARTS, "all", NIID):
            raise SettingsError(f"reproduce: unknown '{part}'; there are {', '.join(paper.PARTS)}, all and {NIID}")
    if "choices" in options.parts and options.budget == "cpu":
        raise SettingsError("reproduce: choices are looked at with --budget paper")
    for name in ("rows", "methods", "seeds", "rounds"):
        if getattr(options, name) is None or NIID in options.parts:
            continue
        if name == "rounds":
            raise SettingsError(
                f"reproduce: --rounds is an option of {NIID}; the paper's tables have rounds of their own"
            )
        if options.budget == "cpu":
            raise SettingsError(f"reproduce: --{name} is for {NIID}, and for the paper's tables with --budget paper")
    if options.no_run:
        must_be_there(options.results)
    chosen = long.Wanted(listed(options.rows or ""), listed(options.methods or ""), options.seeds or long.SEEDS)
    work = paper.Reproduction(
        options.results, options.budget, not options.no_run, options.lanes, options.device, print, chosen
    )
    wanted = [part for part in options.parts if part not in ("all", NIID)]
    for part in paper.PARTS if "all" in options.parts else wanted:
        work.part(part)
    failures = work.failures + (niid_bench(options) if NIID in options.parts else [])
    if failures:
        raise RunError(runner.summary(failures))
    return 0


def niid_bench(options: argparse.Namespace) -> list[str]:
    """Run what is missing of NIID-Bench's table, print what is there, and return a sentence for each failed run."""
    from fedaccord.experiments import niid_bench as bench
    from fedaccord.report import grid, tables

    study = bench.study_of(
        listed(options.rows or "") or bench.ROWS,
        listed(options.methods or "") or bench.METHODS,
        options.seeds or 1,
        options.rounds or bench.ROUNDS,
        options.device,
    )
    folder = options.results / bench.FOLDER
    table, spent, failures = bench.reproduce(study, folder, not options.no_run, options.lanes)
    print(f"{tables.markdown(table)}\n{grid.markdown(spent)}")
    return failures
