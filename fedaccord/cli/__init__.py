"""The command line is made of one file per command; each file adds its own parsers."""

import argparse
import os
import sys
from collections.abc import Sequence

from fedaccord import __version__
from fedaccord.cli import bench, compare, data, export, federation, matching, methods, report, reproduce, run
from fedaccord.cli.outcome import FAILED, STOPPED, WRONG_USE
from fedaccord.config import known, table
from fedaccord.core.errors import FedAccordError

COMMANDS = (run, compare, reproduce, report, export, federation, methods, matching, bench, data)
"""The files of the commands, in the order in which --help lists them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; a user's mistake is told in one line."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        parser = make_parser(words)
        options, unknown = parser.parse_known_args(words)
        if unknown:
            if words[0] == "run" and unknown[0].startswith("--"):
                known(unknown[0].removeprefix("--").partition("=")[0].replace("-", "_"), table())  # says what was meant
            parser.error(f"unrecognized arguments: {' '.join(unknown)}")
        return int(options.command(options))
    except FedAccordError as error:
        print(f"fedaccord: {error}", file=sys.stderr)
        return WRONG_USE
    except KeyboardInterrupt as stop:
        print("; ".join(["fedaccord: stopped", *map(str, stop.args)]), file=sys.stderr)
        return STOPPED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader left: nothing more to say
        return FAILED


def make_parser(words: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Return the parser of all commands; each one sets `command` to the function that runs it.

    Only the command that `words` begin with gets the options that methods bring: to know them, torch must be loaded.
    """
    parser = argparse.ArgumentParser(
        prog="fedaccord", description="Federated learning that stays on track when clients' data differ wildly."
    )
    parser.add_argument("--version", action="version", version=f"fedaccord {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add(commands, words)
    return parser
