"""Reads the lines of a run's log, which anybody may have written: a line without the form of a round is refused."""

import dataclasses
import math
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from fedaccord.core.errors import RunError
from fedaccord.core.files import NOTE, parse_json
from fedaccord.core.records import RoundLog

LINE = NOTE
"""The most bytes in a line; each client takes about 200."""
UNPACKED, RATIO = 1 << 24, 16
"""A packed log may unpack to so many bytes, or so many times its size if that is more: a real one has five times."""

CLIENT = re.compile("[0-9]{1,18}")
DIGITS = re.compile(rb"[0-9]{19}")
"""Finds lines that may have a whole number of more than 64 bits: most have none, and are long to look through."""

FIELDS = {each.name for each in dataclasses.fields(RoundLog)}
NEEDED, OPEN = ("round", "hyper", "cohort", "refused", "metrics", "policy", "clients"), ("loss", "reward", "guard")
"""Fields that every round has; those in OPEN may be None."""
NUMBERS, OBJECTS = ("metrics", "method", "seconds"), ("hyper", "policy", "clients", "metrics", "method", "seconds")
NUMBER = ("loss", "reward", "step_norm", "last_loss", "stretch", "score")
TEXT, WHOLE, LISTS = ("guard", "handed"), ("round", "best", "bytes"), ("cohort", "refused")
OF_CLIENT = {"examples": int, "update_norm": float, "moved": float, "metrics": dict, "hyper": dict}


def rounds_in(stream: IO[bytes], file: Path, most: float = math.inf) -> Iterator[dict[str, Any]]:
    """Yield the entries of a log's complete lines; one that was cut off is not there yet.

    `most`: the bytes that they may have together.
    """
    for number, line in enumerate(lines_in(stream, file, most), 1):
        yield read_line(line, number, file)


def end_of(stream: IO[bytes], file: Path, most: float = math.inf) -> tuple[int, dict[str, Any] | None]:
    """Return how many complete lines a log has, and the entry of the last; the others are only counted."""
    number, line = 0, b""
    for number, line in enumerate(lines_in(stream, file, most), 1):  # noqa: B007 (the last one counts)
        pass
    return number, read_line(line, number, file) if number else None


def lines_in(stream: IO[bytes], file: Path, most: float) -> Iterator[bytes]:
    number = total = 0
    while True:
        try:
            line = stream.readline(LINE + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise RunError(f"{file}: {getattr(error, 'strerror', None) or f'damaged: {error}'}") from None
        if not line.endswith(b"\n"):
            if len(line) > LINE:
                raise RunError(f"{file}: line {number + 1} is damaged: it does not end")
            return
        number, total = number + 1, total + len(line)
        if total > most:
            raise RunError(f"{file}: unpacks to more than {most:,} bytes; unpack it by hand if it is no mistake")
        yield line


def read_line(line: bytes, number: int, file: Path) -> dict[str, Any]:
    """Return the entry of one line; raise RunError with its place if anything is wrong with it."""
    try:
        return entry_of(line)
    except ValueError as error:
        raise RunError(f"{file}: line {number} is not a round's: {error}") from None


def entry_of(line: bytes) -> dict[str, Any]:
    """Return the round in a line, in today's form; raise ValueError unless what is there is of the right types."""
    entry = parse_json(line, LINE)
    if not isinstance(entry, dict) or type(entry.get("round")) is not int:
        raise ValueError("it has no round")
    if DIGITS.search(line):
        check_numbers(entry)
    entry = modern(entry)
    check_form(entry)
    return entry


def round_of(entry: Mapping[str, Any], file: Path) -> RoundLog:
    """Return the RoundLog of an entry; raise RunError unless it has all that a round has, and nothing else."""
    if fault := damage(entry):
        raise RunError(f"{file}: the line of round {entry['round']} is damaged: {fault}")
    return RoundLog(**entry)


def damage(entry: Mapping[str, Any]) -> str:
    """Say what keeps an entry from being a whole round; return an empty string if nothing does."""
    for name in (*NEEDED, *OPEN):
        if name not in entry or (entry[name] is None and name in NEEDED):
            return f"it has no {name}"
    if unknown := sorted(entry.keys() - FIELDS):
        return f"it has {unknown[0][:40]!r}"
    if not all(type(client) is int for client in entry["cohort"]):
        return "a client of the cohort has no number"
    if not all(type(said.get("client")) is int and isinstance(said.get("why"), str) for said in entry["refused"]):
        return "a refusal has no client or no reason"
    if not all(CLIENT.fullmatch(client) and told is not None for client, told in entry["clients"].items()):
        return "a client has no number"
    return ""


def modern(entry: dict[str, Any]) -> dict[str, Any]:
    """Bring an entry of the log into today's form: 0.1 had one metric, the accuracy."""
    if "accuracy" in entry and "metrics" not in entry:
        accuracy = entry.pop("accuracy")
        entry["metrics"] = {} if accuracy is None else {"accuracy": accuracy}
    return entry


def check_numbers(value: Any) -> None:
    """Raise ValueError for a whole number that no array could hold."""
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            check_numbers(each)
    elif isinstance(value, int) and abs(value) >= 2**63:
        raise ValueError("a number has more than 64 bits")


def check_form(entry: Mapping[str, Any]) -> None:
    """Raise ValueError for a field of another type than a round's; fields may be missing, and there may be others."""
    forms = {dict: OBJECTS, float: NUMBER, str: TEXT, int: WHOLE, list: LISTS}
    for kind, names in forms.items():
        for name in names:
            check_type(name, entry.get(name), kind)
    for name in NUMBERS:
        for value in (entry.get(name) or {}).values():
            check_type(name, value, float)
    for said in entry.get("refused") or ():
        check_type("refused", said, dict)
    for client, told in (entry.get("clients") or {}).items():
        check_type(f"client {client}"[:40], told, dict)
        for name, kind in OF_CLIENT.items():
            check_type(name, (told or {}).get(name), kind)
        for value in ((told or {}).get("metrics") or {}).values():
            check_type("metrics", value, float)


def check_type(name: str, value: Any, kind: type) -> None:
    """Raise ValueError unless the value is of this type, or None, which stands for a figure that nobody knows."""
    right = (int, float) if kind is float else kind
    if value is not None and (not isinstance(value, right) or isinstance(value, bool)):
        raise ValueError(f"{name} is of the wrong type")
