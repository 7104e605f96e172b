"""`fedaccord bench tuner` measures by how much tuners miss the best fixed schedule of a search."""

import argparse
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

from fedaccord import config
from fedaccord.cli.options import listed, must_be_there, positive, study_options
from fedaccord.cli.outcome import FAILED, progress
from fedaccord.core.errors import SettingsError


def add_tuner(commands: Any) -> None:
    """Add the parser of bench tuner."""
    from fedaccord.experiments import lab
    from fedaccord.experiments.search import MOST, RUNS

    tuner = commands.add_parser(
        "tuner",
        parents=[study_options()],
        help="regret of tuners against the best fixed schedule of a search",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=filled(
            "Measure the regret of tuners: by how many points of test accuracy they miss the oracle, the best fixed "
            f"schedule of a search. For each problem and client part the search tries at most {MOST} schedules with "
            f"seed {lab.SELECTION} and what is best also with the next {RUNS - 1}, and chooses by the mean loss on the "
            "server's set; the oracle and all candidates then run with the same seeds, and differ in nothing but the "
            "tuner (paper: in the whole server's side, as printed). What is there is not run again, what was cut off "
            "is resumed. The folder then holds regret.md (the tables, also printed), regret.svg, runs.csv, and "
            "beside each problem's runs how its oracle was chosen."
        ),
        epilog=filled(f"problems: {', '.join(lab.PROBLEMS)}\ncandidates: {', '.join((*lab.CANDIDATES, lab.RANDOM))}"),
    )
    tuner.add_argument(
        "--results", type=Path, default=Path("results/tuner"), metavar="FOLDER", help="where all goes (results/tuner)"
    )
    tuner.add_argument("--problems", metavar="NAMES", help="with commas, see below (all)")
    tuner.add_argument("--candidates", metavar="NAMES", help="with commas, see below (all)")
    tuner.add_argument(
        "--candidate", action="append", default=[], metavar="NAME:KEY=VALUE,...",
        help="one more candidate: any settings, as for run, laid over the default; a value may contain spaces and "
        "semicolons, but no comma; may be given several times",
    )  # fmt: skip
    tuner.add_argument(
        "--parts", default=",".join(lab.PARTS), help=f"what the clients do, with commas ({','.join(lab.PARTS)})"
    )
    tuner.add_argument("--seeds", type=positive, default=3, help="how many are reported (3)")
    tuner.add_argument("--first-seed", type=int, default=0, metavar="SEED", help="the first of them (0)")
    tuner.add_argument("--search-only", action="store_true", help="only find the oracles")
    tuner.set_defaults(command=tuner_command)


def filled(text: str) -> str:
    """Wrap each paragraph for --help, without breaking names at their hyphens."""
    return "\n\n".join(textwrap.fill(line, 80, break_on_hyphens=False) for line in text.splitlines())


def tuner_command(options: argparse.Namespace) -> int:
    """Run what is missing of the lab, then print the tables of what is there, and write them and the picture."""
    from fedaccord.core.files import write_durably
    from fedaccord.experiments import lab, runner
    from fedaccord.report import regret

    folder = options.results
    work = lab_of(options)
    failures = []
    if folder.is_dir():
        progress(f"reading the logs in {folder}")
    if options.no_run:
        must_be_there(folder)
    else:
        failures = work.run(options.lanes, print)
    work.record()
    results, oracles = list(work.results()), list(work.oracles())
    if options.search_only:
        print(regret.oracle_table(oracles))
    else:
        text = regret.markdown(results, oracles, work.seeds)
        if set(work.seeds) & set(lab.SEARCHED):
            text = f"For choosing, no report: seeds {lab.SEARCHED[0]} to {lab.SEARCHED[-1]} are the search's.\n\n{text}"
        print(text)
        if oracles:
            write_durably(folder / "regret.md", text.encode())
            write_durably(folder / "runs.csv", regret.as_csv(results).encode())
        if results:
            regret.draw(results, folder / "regret.svg")
        progress(f"written to {folder}" if oracles else "nothing to write yet")
    if failures:
        print(f"fedaccord: {runner.summary(failures)}", file=sys.stderr)
    return FAILED if failures else 0


def lab_of(options: argparse.Namespace) -> Any:
    """Return the lab that the options describe."""
    from fedaccord.experiments import lab
    from fedaccord.methods.registry import find

    known = {**lab.CANDIDATES, lab.RANDOM: {}}
    given = dict(map(candidate, options.candidate))
    if taken := given.keys() & known:
        raise SettingsError(f"--candidate {min(taken)}: there is a candidate of that name; choose another")
    problems, parts = listed(options.problems or ",".join(lab.PROBLEMS)), listed(options.parts)
    candidates = listed(options.candidates or ",".join(known))
    for what, names, among in (("problem", problems, lab.PROBLEMS), ("candidate", candidates, known | given)):
        if unknown := [name for name in names if name not in among]:
            raise SettingsError(f"bench tuner: unknown {what} '{unknown[0]}'; there are {', '.join(among)}")
    for part in parts:
        find(part)  # says what is wrong with a name
    if options.first_seed < 0:
        raise SettingsError(f"--first-seed {options.first_seed}: expected 0 or more")
    return lab.Lab(
        options.results,
        [lab.PROBLEMS[name] for name in problems],
        parts,
        {name: known[name] for name in candidates if name in known} | given,
        range(options.first_seed, options.first_seed + options.seeds),
        options.search_only,
    )


def candidate(text: str) -> tuple[str, dict[str, Any]]:
    """Parse a candidate's name and settings from NAME:KEY=VALUE,KEY=VALUE."""
    name, _, rest = text.partition(":")
    settings = {}
    for pair in rest.split(","):
        key, sign, value = pair.partition("=")
        if not sign or not re.fullmatch(r"[\w.+-]+", name):
            raise SettingsError(f"--candidate {text}: expected NAME:KEY=VALUE,KEY=VALUE")
        key = key.strip().replace("-", "_")
        settings[key] = config.known(key, config.table()).parse(value.strip())
    return name, settings
