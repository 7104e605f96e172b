"""Regret: by how much candidates miss the oracle, as tables and as a picture."""

import csv
import io
import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from fedaccord.core.seeds import numpy_generator
from fedaccord.report.canvas import colours_of, new_figure, save, tidy

DRAWS = 10_000
MARKERS = "osD^vPX"  # not as many as colours, so that more than seven candidates still differ
TICKS = (-80, -30, -10, -3, -1, 0, 1, 3, 10, 30, 80)
DEFAULT = "default"
"""The candidate that the others are compared with."""
BUDGET = 1.2
"""At equal client steps, the steps that a run may have spent, as a multiple of the oracle's."""
ABOVE_CHANCE = 1.5
"""A run is at chance below this multiple of the accuracy of guessing."""


@dataclass(frozen=True)
class Result:
    """A candidate's run beside the oracle's run of the same problem, client part and seed; accuracies in percent."""

    part: str
    problem: str
    candidate: str
    seed: int
    oracle: float
    accuracy: float
    equal: float  # the candidate's accuracy when it had spent about as many client steps as the oracle
    client_steps: int
    oracle_steps: int
    chance: float
    best: float  # the best accuracy of all fixed schedules that were tried, with any seed

    @property
    def regret(self) -> float:
        return self.oracle - self.accuracy

    @property
    def equal_regret(self) -> float:
        return self.oracle - self.equal

    @property
    def at_chance(self) -> bool:
        """Whether the run is at chance where some fixed schedule learns; its seed's oracle may itself have failed."""
        return self.accuracy < ABOVE_CHANCE * self.chance < self.best


@dataclass(frozen=True)
class Oracle:
    """The fixed schedule that a search chose for a problem, and how it did with the seeds that are reported."""

    part: str
    problem: str
    lr: float
    lr_decay: float
    steps: int
    steps_decay: float
    loss: float  # by which it was chosen
    tried: Mapping[str, float]  # schedule -> test accuracy with the first seed of the search; nothing is chosen by it
    chosen: str  # its name among these
    at_edge: bool
    accuracies: tuple[float, ...]
    client_steps: tuple[int, ...]


Regrets = Mapping[str, Sequence[float]]
"""Problem -> regret of each seed, in points."""


def mean_over_problems(regrets: Regrets, clipped: bool) -> float:
    """Return the mean over the problems of the mean over their seeds; `clipped`: a problem's below 0 counts as 0."""
    means = [statistics.fmean(values) for values in regrets.values()]
    return statistics.fmean(max(0.0, mean) if clipped else mean for mean in means)


def interval(regrets: Regrets, clipped: bool) -> tuple[float, float]:
    """Return the middle 95 % of the mean over problems, if problems and then their seeds are drawn with replacement."""
    count = np.array([len(values) for values in regrets.values()])
    table = np.zeros((len(count), count.max()))  # (problems, seeds)
    for row, values in zip(table, regrets.values(), strict=True):
        row[: len(values)] = values
    draw = numpy_generator(0, "bootstrap")
    problems = draw.integers(len(count), size=(DRAWS, len(count)))
    seeds = (draw.random((*problems.shape, count.max())) * count[problems][..., None]).astype(int)
    used = np.arange(count.max()) < count[problems][..., None]  # (draws, problems, seeds)
    means = (table[problems[..., None], seeds] * used).sum(-1) / count[problems]
    found = (np.maximum(means, 0) if clipped else means).mean(-1)
    low, high = np.quantile(found, (0.025, 0.975))
    return float(low), float(high)


def regrets_of(results: Sequence[Result], equal: bool = False) -> dict[str, list[float]]:
    """Return the regrets of each problem, in the order of the results."""
    found: dict[str, list[float]] = {}
    for each in results:
        found.setdefault(each.problem, []).append(each.equal_regret if equal else each.regret)
    return found


# --- tables ---


def markdown(results: Sequence[Result], oracles: Sequence[Oracle], seeds: Sequence[int]) -> str:
    """Return the tables of regrets and of oracles as Markdown."""
    told = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
    texts = [f"Regret in short, at equal rounds\n\n{summary(results)}"] if results else []
    for part in dict.fromkeys(each.part for each in results):
        mine = [each for each in results if each.part == part]
        texts.append(
            f"Regret with {part} at the clients, {told}: points of test accuracy below the best fixed schedule of the "
            f"search, at equal rounds, by the mean of the last five tests\n\n{table(mine, len(seeds))}"
        )
        texts.append(
            f"Regret with {part} at equal client steps: when a run had spent at most {BUDGET:g} times those of the "
            f"oracle (in brackets: those of the whole run as a multiple of the oracle's)\n\n"
            f"{table(mine, len(seeds), equal=True)}"
        )
    if not results:
        texts.append("Regret: no finished run of a candidate beside a finished run of the oracle yet\n")
    texts.append(
        f"The oracles: fixed schedules, chosen by their mean loss on the server's set at the end, with seeds of the "
        f"search's own; test accuracy in the search, beside the best of all that were tried, and with {told}\n\n"
        f"{oracle_table(oracles)}"
    )
    return "\n".join(texts)


def summary(results: Sequence[Result]) -> str:
    """Return a table with a row for each candidate and client part: its regret over all problems that it was run on."""
    head = ["", "client part", "problems", "mean, negatives as 0", "more than the default there", "worst", "at chance"]
    lines = []
    for part in dict.fromkeys(each.part for each in results):
        columns = by_candidate([each for each in results if each.part == part])
        standard = regrets_of(columns.get(DEFAULT, ()))
        for name, mine in columns.items():
            regrets = regrets_of(mine)
            more = "" if name == DEFAULT else more_than(standard, regrets)
            found = [str(len(regrets)), estimate(regrets, clipped=True), more, worst(regrets), at_chance(mine)]
            lines.append([name, part, *found])
    return as_table(head, lines)


def by_candidate(results: Sequence[Result]) -> dict[str, list[Result]]:
    columns: dict[str, list[Result]] = {}
    for each in results:
        columns.setdefault(each.candidate, []).append(each)
    return columns


def table(results: Sequence[Result], seeds: int, equal: bool = False) -> str:
    """Return a table with a row for each problem, a column for each candidate, and summary rows below."""
    columns = by_candidate(results)
    problems = dict.fromkeys(each.problem for each in results)
    lines = [
        [problem, *(cell([r for r in mine if r.problem == problem], seeds, equal) for mine in columns.values())]
        for problem in problems
    ]
    standard = regrets_of(columns.get(DEFAULT, ()), equal)
    below: dict[str, Callable[[Sequence[Result]], str]] = {
        "problems": lambda mine: f"{len(regrets_of(mine))} of {len(problems)}",
        "mean, negatives as 0": lambda mine: estimate(regrets_of(mine, equal), clipped=True),
        "more than the default": lambda mine: more_than(standard, regrets_of(mine, equal)),
        "mean": lambda mine: estimate(regrets_of(mine, equal), clipped=False),
        "worst": lambda mine: worst(regrets_of(mine, equal)),
        "runs at chance": at_chance,
    }
    if equal:
        del below["runs at chance"]
    if all(len(regrets_of(mine)) == len(problems) for mine in columns.values()):
        del below["problems"]
    if len(columns) == 1 or not standard:
        del below["more than the default"]
    lines += [[f"**{name}**", *(tell(mine) for mine in columns.values())] for name, tell in below.items()]
    return as_table(["", *columns], lines)


def cell(results: Sequence[Result], seeds: int, equal: bool) -> str:
    """Return the mean regret over the seeds, negatives as they are, and how many seeds there are if some are missing.

    At equal client steps, it also says how many the whole runs made, as a multiple of the oracle's.
    """
    if not results:
        return "–"
    (regrets,) = regrets_of(results, equal).values()
    notes = [f"{len(results)} of {seeds} seeds"] if len(results) < seeds else []
    if equal:
        times = [each.client_steps / each.oracle_steps for each in results if each.oracle_steps]
        notes.insert(0, f"{statistics.fmean(times):.2g}x" if times else "the oracle made none")
    return f"{statistics.fmean(regrets):z.1f}" + (f" ({', '.join(notes)})" if notes else "")


def more_than(standard: Regrets, regrets: Regrets) -> str:
    """Return the mean regret less that of the default, both with negatives as 0, on the problems that both have."""
    both = [problem for problem in regrets if problem in standard]
    if not both:
        return "–"
    own, others = (mean_over_problems({name: each[name] for name in both}, True) for each in (regrets, standard))
    return f"{own - others:z.2f}"


def estimate(regrets: Regrets, clipped: bool) -> str:
    """Return the mean over the problems as text, with its interval unless that would rest on a single run."""
    text = f"{mean_over_problems(regrets, clipped):z.2f}"
    if sum(map(len, regrets.values())) == 1:
        return text
    low, high = interval(regrets, clipped)
    return f"{text} [{low:z.2f}, {high:z.2f}]"


def at_chance(results: Sequence[Result]) -> str:
    return f"{sum(each.at_chance for each in results)} of {len(results)}"


def worst(regrets: Regrets) -> str:
    means = {problem: statistics.fmean(values) for problem, values in regrets.items()}
    problem = max(means, key=lambda name: means[name])
    return f"{means[problem]:z.1f} ({problem})"


def oracle_table(oracles: Sequence[Oracle]) -> str:
    head = ["", "client part", "rate x decay", "iterations x decay", "loss", "tried", "in the search, % (best tried)"]
    head += ["accuracy, %", "client steps"]
    lines = []
    for each in oracles:
        spread = f" ± {statistics.stdev(each.accuracies):.2f}" if len(each.accuracies) > 1 else ""
        lines.append(
            [
                each.problem,
                each.part,
                f"{each.lr:g} x {each.lr_decay:g}",
                f"{each.steps} x {each.steps_decay:g}",
                f"{each.loss:.4g}",
                f"{len(each.tried)}{', the best at an edge' if each.at_edge else ''}",
                f"{each.tried[each.chosen]:.1f} ({max(each.tried.values()):.1f})",
                f"{statistics.fmean(each.accuracies):.1f}{spread}" if each.accuracies else "–",
                f"{statistics.fmean(each.client_steps):,.0f}" if each.client_steps else "–",
            ]
        )
    return as_table(head, lines) if lines else "No search is finished yet\n"


def as_table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(line)} |\n" for line in (head, ["---"] * len(head), *lines))


def as_csv(results: Sequence[Result]) -> str:
    """Return the results as CSV, one line per run."""
    text = io.StringIO()
    names = [*Result.__dataclass_fields__, "regret", "equal_regret"]
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    for each in results:
        figures = {**asdict(each), "regret": each.regret, "equal_regret": each.equal_regret}
        writer.writerow({k: f"{v:.4f}" if isinstance(v, float) else v for k, v in figures.items()})
    return text.getvalue()


# --- picture ---


def draw(results: Sequence[Result], path: Path) -> None:
    """Draw a panel for each client part, with a row for each problem and a colour for each candidate.

    A marker shows a candidate's mean, small dots its seeds. The scale is linear up to one point either way, then
    logarithmic: a single point matters, and a failure is at eighty.
    """
    parts = list(dict.fromkeys(each.part for each in results))
    problems = list(dict.fromkeys(each.problem for each in results))
    names = list(dict.fromkeys(each.candidate for each in results))
    colours = colours_of({"": names})
    least, most = (extreme(each.regret for each in results) for extreme in (min, max))
    left = max((tick for tick in TICKS if tick <= least), default=TICKS[0])
    right = min((tick for tick in TICKS if tick >= most), default=TICKS[-1])
    ticks = [tick for tick in TICKS if min(left, -1) <= tick <= max(right, 1)]
    figure = new_figure(1.8 + 4.2 * len(parts), 1.4 + 0.34 * len(problems))
    grid = figure.subplots(1, len(parts), squeeze=False, sharey=True, sharex=True)[0]
    for axes, part in zip(grid, parts, strict=True):
        for number, (name, marker) in enumerate(zip(names, itertools.cycle(MARKERS), strict=False)):
            mine = regrets_of([each for each in results if (each.part, each.candidate) == (part, name)])
            shift = 0.5 * ((number + 0.5) / len(names) - 0.5)
            rows = {problem: problems.index(problem) + shift for problem in mine}
            for problem, values in mine.items():
                axes.plot(values, [rows[problem]] * len(values), "o", color=colours[name], markersize=2.5, alpha=0.5)
            means = [statistics.fmean(values) for values in mine.values()]
            axes.plot(means, list(rows.values()), marker, color=colours[name], markersize=5, label=name)
        axes.axvline(0, color="#444444", linewidth=0.8)
        axes.set_xscale("symlog", linthresh=1)
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
        axes.set_yticks(range(len(problems)), problems)
        axes.set_ylim(len(problems) - 0.5, -0.5)
        tidy(
            axes,
            legend=False,
            title=f"{part} at the clients",
            xlabel="regret, points of test accuracy (left of 0: better than the search)",
        )
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(6, len(labels)), frameon=False, fontsize=8)
    save(figure, path)
