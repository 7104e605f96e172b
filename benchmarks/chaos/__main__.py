"""Make trouble of every kind and print what was tried and what was lost.

python -m benchmarks.chaos                     # a sample of each part, about 20 minutes on two cores
python -m benchmarks.chaos --full              # all of docs/reliability.md: hours; what was cut off goes on
python -m benchmarks.chaos --parts parsers-png --attempts 3
python -m benchmarks.chaos --no-run --results results/chaos    # the table of docs/reliability.md again
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.chaos import (
    capture,
    checkpoints,
    disk,
    endurance,
    federation,
    kills,
    order,
    orders,
    parsers,
    stalls,
    updates,
)
from benchmarks.chaos.part import Outcome, Part

MODULES = (kills, order, checkpoints, disk, endurance, federation, updates, orders, capture, stalls, parsers)
PARTS: Mapping[str, Part] = {part.name: part for module in MODULES for part in module.PARTS}
"""All parts by name, in the order of the table. Each module lists its own; a new module has to be added to MODULES."""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--full", action="store_true", help="all attempts, not a sample")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"with commas ({', '.join(PARTS)})")
    parser.add_argument("--attempts", type=int, help="so many of each part")
    parser.add_argument(
        "--results", type=Path, default=Path("build/chaos"), help="where outcomes are kept, a line each (build/chaos)"
    )
    parser.add_argument("--no-run", action="store_true", help="only print the table of what is there")
    options = parser.parse_args()
    names = options.parts.split(",")
    if unknown := [name for name in names if name not in PARTS]:
        parser.error(f"unknown part '{unknown[0]}'; there are {', '.join(PARTS)}")
    files = {name: options.results / f"{name}.jsonl" for name in names}
    if options.no_run:
        outcomes = {name: list(found.values()) for name, file in files.items() if (found := read(file))}
    else:
        options.results.mkdir(parents=True, exist_ok=True)
        outcomes = {}
        for name, file in files.items():
            part = PARTS[name]
            outcomes[name] = go_on(part, options.attempts or (part.full if options.full else part.sample), file)
    print(table(outcomes))
    return 1 if any(each.lost for several in outcomes.values() for each in several) else 0


def go_on(part: Part, count: int, file: Path) -> list[Outcome]:
    """Return the outcomes of the first `count` attempts; those that the file lacks are made now and added to it."""
    known = read(file)
    before = time.monotonic()
    for number in range(count):
        if number in known:
            continue
        with tempfile.TemporaryDirectory(prefix="chaos-") as scratch:
            known[number] = part.attempt(number, Path(scratch))
        with file.open("a") as lines:
            lines.write(json.dumps({"number": number, **asdict(known[number])}) + "\n")
        if (lost := known[number]).lost or time.monotonic() - before > 2:
            before = time.monotonic()
            fate = f"LOST {lost.lost}: {lost.told}" if lost.lost else "nothing lost"
            print(f"{part.name} {number + 1}/{count}: {fate}", file=sys.stderr, flush=True)
    return [known[number] for number in range(count)]


def read(file: Path) -> dict[int, Outcome]:
    """Return the outcomes in a file by the attempt's number; a last line that was cut off is removed from it."""
    if not file.exists():
        return {}
    text = file.read_text()
    if not text.endswith("\n"):
        text = text[: text.rfind("\n") + 1]
        file.write_text(text)
    return {line.pop("number"): Outcome(**line) for line in map(json.loads, text.splitlines())}


def table(outcomes: Mapping[str, Sequence[Outcome]]) -> str:
    """Return a Markdown table with a row for each part: the trials, the losses and the largest of each figure."""
    lines = ["| part | what | tried | lost | at most |", "|---|---|---|---|---|"]
    for name, several in outcomes.items():
        figures: dict[str, float] = {}
        for each in several:
            for key, value in each.figures.items():
                figures[key] = max(value, figures.get(key, value))
        told = ", ".join(f"{key} {value:,.4g}" for key, value in figures.items())
        tried, lost = (f"{sum(getattr(each, field) for each in several):,}" for field in ("tried", "lost"))
        unmade = {each.told for each in several if not each.tried and each.told}
        told = "; ".join(filter(None, (told, *sorted(unmade))))
        lines.append(f"| {name} | {PARTS[name].what} | {tried} | {lost} | {told} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
