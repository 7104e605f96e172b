"""The field as tables: by how much each method misses the best of all, and what matching and the tuner add to it."""

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from fedaccord.report.regret import ABOVE_CHANCE, as_table


@dataclass(frozen=True)
class Entry:
    """The result of one run; its accuracy is the mean of its last tests, in percent."""

    problem: str
    method: str
    variant: str  # what was joined to the method: "", "+RM", "+AH", "+RM+AH"
    seed: int
    accuracy: float
    client_steps: int
    chance: float
    diverged: bool = False  # it ended because no update could be used any more, and counts as chance

    @property
    def name(self) -> str:
        return self.method + self.variant


Means = Mapping[str, Mapping[str, float]]
"""Method with its variant -> problem -> mean accuracy over the seeds."""


def means_of(entries: Sequence[Entry]) -> dict[str, dict[str, float]]:
    runs: dict[str, dict[str, list[float]]] = {}
    for each in entries:
        runs.setdefault(each.name, {}).setdefault(each.problem, []).append(each.accuracy)
    return {name: {p: statistics.fmean(values) for p, values in rows.items()} for name, rows in runs.items()}


def regrets_of(means: Means) -> dict[str, dict[str, float]]:
    """Return by how much each method misses the best of all, by problem."""
    problems = {problem for rows in means.values() for problem in rows}
    best = {problem: max(rows[problem] for rows in means.values() if problem in rows) for problem in problems}
    return {name: {problem: best[problem] - value for problem, value in rows.items()} for name, rows in means.items()}


def markdown(entries: Sequence[Entry], problems: Sequence[str], seeds: Sequence[int], more: Sequence[str] = ()) -> str:
    """Return the tables of methods and of gains as Markdown; `more`: sentences to stand below the first table."""
    if not entries:
        return "No run is finished yet\n"
    return (
        f"Test accuracy in % (the mean of the last five tests), {seeds_in_words(seeds)}, and by how many points a "
        "method misses the best of all: on average over the problems and at worst; the smallest average first; *: a "
        "run at chance\n\n"
        f"{table(entries, problems, len(seeds))}\n{notes(entries, more)}"
        "What is gained by joining matching or the tuner, in points on average over the problems that both have; in "
        "brackets the smallest and the largest gain\n\n"
        f"{gains(means_of(entries))}"
    )


def seeds_in_words(seeds: Sequence[int]) -> str:
    if len(seeds) == 1:
        return f"seed {seeds[0]}"
    whole = len(seeds) == seeds[-1] - seeds[0] + 1
    return f"seeds {seeds[0]} to {seeds[-1]}" if whole else f"seeds {', '.join(map(str, seeds))}"


def notes(entries: Sequence[Entry], more: Sequence[str]) -> str:
    """Return what one must know to read the table, in a paragraph for each note."""
    said = []
    if any(each.diverged for each in entries):
        said.append(
            "†: a run that diverged: it ended early because no client's update could be used any more, and counts as "
            "chance. It is not tried again unless its folder is removed."
        )
    return "".join(f"{each}\n\n" for each in (*said, *more))


def table(entries: Sequence[Entry], problems: Sequence[str], seeds: int) -> str:
    """Return a table with a row for each method and variant, the smallest average regret first.

    Those that lack problems come last, since their averages are of fewer.
    """
    means, lines = means_of(entries), []
    regrets = regrets_of(means)
    order = sorted(means, key=lambda name: (-len(means[name]), statistics.fmean(regrets[name].values())))
    for name in order:
        mine = regrets[name]
        worst = max(mine, key=lambda problem: mine[problem])
        cells = [cell([e for e in entries if (e.name, e.problem) == (name, p)], seeds) for p in problems]
        lines.append([name, f"{statistics.fmean(mine.values()):.1f}", f"{mine[worst]:.1f} ({worst})", *cells])
    return as_table(["", "misses on average", "at worst", *problems], lines)


def cell(runs: Sequence[Entry], seeds: int) -> str:
    """Return the mean accuracy of some runs, with a star if one is at chance and a dagger if one diverged.

    If some runs are missing, it also says how many there are.
    """
    if not runs:
        return "–"
    star = "*" if any(each.accuracy < ABOVE_CHANCE * each.chance and not each.diverged for each in runs) else ""
    star += "†" if any(each.diverged for each in runs) else ""
    few = f" ({len(runs)} of {seeds})" if len(runs) < seeds else ""
    return f"{statistics.fmean(each.accuracy for each in runs):.1f}{star}{few}"


JOINED = {"+RM": ("", "+RM"), "+AH": ("", "+AH"), "+RM beside +AH": ("+AH", "+RM+AH")}
"""Column -> the two variants that it compares, before and after."""


def gains(means: Means) -> str:
    """Return a table of gains with a row for each method and a column for each part that is joined to it."""
    methods = [name for name in means if not name.endswith(("+RM", "+AH"))]
    lines = [[name, *(gain(means, name + old, name + new) for old, new in JOINED.values())] for name in methods]
    return as_table(["", *JOINED], lines)


def gain(means: Means, before: str, after: str) -> str:
    both = means.get(before, {}).keys() & means.get(after, {}).keys()
    found = [means[after][problem] - means[before][problem] for problem in both]
    return f"{statistics.fmean(found):+.1f} ({min(found):+.1f} to {max(found):+.1f})" if found else "–"


def as_csv(entries: Sequence[Entry]) -> str:
    """Return the results as CSV, one line per run."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(Entry.__dataclass_fields__), lineterminator="\n")
    writer.writeheader()
    writer.writerows({**asdict(each), "accuracy": f"{each.accuracy:.4f}"} for each in entries)
    return text.getvalue()
