"""`fedaccord data` lists, fetches and verifies data sets, and shows how one would be divided."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedaccord.cli.options import add_settings, settings_of
from fedaccord.config import FIELDS


def add(commands: Any, words: Sequence[str]) -> None:
    """Add the parsers of data list, fetch, verify and split."""
    data = commands.add_parser("data", help="list, fetch, verify and divide data").add_subparsers(
        required=True, metavar="WHAT"
    )
    data.add_parser("list", help="the data sets, and where they are").set_defaults(command=list_command)
    fetch = data.add_parser("fetch", help="get a data set into the cache folder")
    fetch.add_argument("name")
    fetch.add_argument(
        "--from", dest="wavs", type=Path, metavar="FOLDER", help="speech_commands: folders of recordings"
    )
    fetch.set_defaults(command=fetch_command)
    verify = data.add_parser("verify", help="check a data set's files byte by byte, and read them")
    verify.add_argument("name")
    verify.set_defaults(command=verify_command)
    split = data.add_parser("split", help="show who would hold what", description="Draw the label x client picture.")
    split.add_argument("task", help="as for run")
    split.add_argument("-o", "--output", type=Path, metavar="FILE", help="also as a picture (.png, .svg, .pdf)")
    dividing = (
        "split", "clients", "seed", "classes_per_client", "alpha", "shards_per_client", "min_examples", "allow_empty",
    )  # fmt: skip
    add_settings(split, (FIELDS[name] for name in (*dividing, "validation_per_class", "image_size")))
    split.set_defaults(command=split_command)


def list_command(options: argparse.Namespace) -> int:
    """Print every known data set and where it is on this machine."""
    from fedaccord.data.catalog import CATALOG, where

    for name, entry in CATALOG.items():
        print(f"{name:<16} {entry.about:<52} {where(name)}")
    return 0


def fetch_command(options: argparse.Namespace) -> int:
    """Get a data set into the cache folder."""
    from fedaccord.data import catalog

    print(f"{options.name}: {catalog.fetch(options.name, options.wavs)}")
    return 0


def verify_command(options: argparse.Namespace) -> int:
    """Check a data set's files byte by byte, and read them."""
    from fedaccord.data import catalog

    for line in catalog.verify(options.name):
        print(line)
    return 0


def split_command(options: argparse.Namespace) -> int:
    """Print how many examples of each label each client would hold, and draw it if there is a file for it."""
    from fedaccord.data.partition import counts
    from fedaccord.report.split import draw, print_table
    from fedaccord.runtime.parts import divide, labels_of, resolve, whole_set

    task, settings = settings_of(options)
    data = whole_set(task, settings)
    settings = resolve(task, settings, data)
    validation, train, owner = divide(settings, data)
    classes = data.classes or ("examples",)  # data without classes has one column
    table = counts(owner, labels_of(replace(data, train=train)), settings.clients or 0, len(classes))
    kept = 0 if validation is None else len(validation)
    title = f"{settings.task}, split {settings.split}, {settings.clients} clients, seed {settings.seed}"
    print_table(table, classes, f"{title}; the server keeps {kept:,} examples")
    if options.output:
        draw(table, classes, title, options.output)
        print(f"picture: {options.output}")
    return 0
