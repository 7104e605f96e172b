"""`fedaccord report` writes a page about runs, and `fedaccord watch` serves it while they go on."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def add(commands: Any, words: Sequence[str]) -> None:
    """Add the parsers of report and watch."""
    report = commands.add_parser(
        "report", help="a page that shows what happened and why", description="One self-contained page about the runs."
    )
    report.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="run folders; several are laid over each other"
    )
    report.add_argument("-o", "--output", type=Path, default=Path("report.html"), metavar="FILE", help="(report.html)")
    report.set_defaults(command=report_command)

    watch = commands.add_parser(
        "watch", help="the same page, live", description="Serve the page on this machine while the runs go on."
    )
    watch.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folders")
    watch.add_argument("--port", type=int, default=0, help="(any free one)")
    watch.set_defaults(command=watch_command)


def report_command(options: argparse.Namespace) -> int:
    """Write the page about the runs that were named."""
    write_report(options.runs, options.output)
    return 0


def write_report(runs: Sequence[Path], path: Path) -> None:
    """Write one page about these runs and print where it is; without any run there is no page."""
    from fedaccord.report.page import write_page

    if runs:
        write_page(runs, path)
        print(f"page: {path}")


def watch_command(options: argparse.Namespace) -> int:
    """Serve the page about the runs that were named until the user stops it."""
    from fedaccord.report.watch import serve

    serve(options.runs, options.port)
    return 0
