"""Views of a run as it goes on: a picture in a terminal, a chart in a notebook, plain lines elsewhere."""

import dataclasses
import importlib.util
import json
import time
from collections.abc import Collection, Mapping, Sequence

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedaccord.core.algorithm import out_of_patience
from fedaccord.core.records import RoundLog
from fedaccord.runtime.attendance import Attendance, attendance
from fedaccord.runtime.build import Setup

BLOCKS = "▁▂▃▄▅▆▇█"
SHOWN_CLIENTS = 12
QUIET_SECONDS = 2.0
POINTS = 1000
"""The most values of a curve that are held."""


class View:
    """An observer that is told how a run goes. Override what is needed."""

    def begin(self, done: Sequence[RoundLog]) -> None:
        """Prepare for the rounds to come; after a resume, `done` holds all those that were done before."""

    def show(self, log: RoundLog) -> None:
        """Take in a round, as soon as it is done."""

    def end(self) -> None:
        """Finish, however the run has ended."""


def choose(setup: Setup, as_json: bool) -> View:
    if as_json:
        return JsonView()
    console = Console()
    if console.is_jupyter and importlib.util.find_spec("matplotlib"):
        from fedaccord.runtime.chart import NotebookView

        return NotebookView(setup)
    return LiveView(setup, console) if console.is_terminal else LineView(setup)


class JsonView(View):
    """A view that prints every round as JSON, with the fields of rounds.jsonl, on standard output."""

    def show(self, log: RoundLog) -> None:
        print(json.dumps(dataclasses.asdict(log)), flush=True)


class LineView(View):
    """A view that prints a line every few seconds, for a file or a pipe."""

    def __init__(self, setup: Setup):
        self.rounds = setup.settings.rounds
        self.percent = percentages(setup)
        self.last = 0.0
        self.metrics: dict[str, float] = {}
        self.tested = 0  # the round in which they were measured
        self.attendance = Attendance()

    def begin(self, done: Sequence[RoundLog]) -> None:
        self.last = time.monotonic()
        self.attendance = attendance(done)

    def show(self, log: RoundLog) -> None:
        if log.metrics:
            self.metrics, self.tested = log.metrics, log.round
        news = [*([log.guard] if log.guard else []), *self.attendance.add(log)]
        now = time.monotonic()
        if now - self.last >= QUIET_SECONDS or log.round in (1, self.rounds) or news:
            self.last = now
            parts = [
                figures(log.loss, self.metrics, self.percent),
                f"(round {self.tested})" if self.metrics and self.tested < log.round else "",
                chosen(log),
                best_so_far(log),
                self.attendance.now(),
            ]
            print("  ".join([f"round {log.round}/{self.rounds}", *filter(None, parts)]), flush=True)
            for sentence in news:
                print(f"  {sentence}", flush=True)


class Curve:
    """The values of a curve; if there are too many, every other one is dropped, so that memory stays bounded."""

    def __init__(self) -> None:
        self.kept: list[float] = []
        self.every, self.seen, self.last = 1, 0, 0.0

    def add(self, value: float) -> None:
        if self.seen % self.every == 0:
            self.kept.append(value)
        if len(self.kept) > POINTS:
            self.kept, self.every = self.kept[::2], 2 * self.every
        self.seen, self.last = self.seen + 1, value

    def values(self) -> list[float]:
        """Return the values that are kept, at equal distances, and the last one."""
        ends = (len(self.kept) - 1) * self.every == self.seen - 1
        return self.kept if ends else [*self.kept, self.last]


class LiveView(View):
    """A picture that changes in place: the curves, and every client with what it holds and what it did."""

    def __init__(self, setup: Setup, console: Console):
        self.setup = setup
        self.percent = percentages(setup)
        self.last: RoundLog | None = None
        self.losses = Curve()
        self.tested: dict[str, Curve] = {}  # metric -> its values
        self.measured: list[str] = []  # the metrics that were measured last
        self.attendance = Attendance()
        self.began = time.monotonic()
        self.shown = 0  # rounds since then
        self.live = Live(console=console, refresh_per_second=8, get_renderable=self.picture)

    def begin(self, done: Sequence[RoundLog]) -> None:
        for log in done:
            self.show(log)
        self.began, self.shown = time.monotonic(), 0
        self.live.start()

    def show(self, log: RoundLog) -> None:
        self.attendance.add(log)
        if log.loss is not None:
            self.losses.add(log.loss)
        for name, value in log.metrics.items():
            self.tested.setdefault(name, Curve()).add(value)
        self.measured = list(log.metrics) or self.measured
        self.shown += 1
        self.last = log

    def end(self) -> None:
        self.live.refresh()
        self.live.stop()

    def picture(self) -> Panel:
        settings, log = self.setup.settings, self.last
        # names are a user's own and no markup, so they are shown as Text
        words = settings.task, settings.method, settings.split, f"C={settings.fraction:g}", f"seed {settings.seed}"
        title = Text("  ".join(words))
        if log is None:
            return Panel("the first round is under way ...", title=title, expand=False)
        losses = self.losses.values()
        curves = Table.grid(padding=(0, 2))
        for name in self.measured:
            tested = self.tested[name].values()
            percent = name in self.percent
            line = sparkline(tested, 0.0, 1.0) if percent else sparkline(tested)
            curves.add_row(Text(f"test {name}"), Text(line, "green"), shown(tested[-1], percent))
        curves.add_row("loss", Text(sparkline(losses), "yellow"), f"{losses[-1]:.3f}" if losses else "")
        pace = (time.monotonic() - self.began) / max(1, self.shown)
        left = pace * (settings.rounds - log.round)
        early = out_of_patience(settings.patience, log.round, log.best)
        progress = Table.grid(padding=(0, 2))
        progress.add_row(
            f"round {log.round}/{settings.rounds}",
            ProgressBar(total=settings.rounds, completed=log.round, width=30),
            "done" if log.round == settings.rounds or early else f"{left:.0f} s left",
            Text("  ".join(filter(None, (chosen(log), best_so_far(log))))),
        )
        notes = [Text(log.guard, style="yellow")] if log.guard else []
        return Panel(Group(progress, curves, self.clients(log), *notes), title=title, expand=False)

    def clients(self, log: RoundLog) -> Table:
        table = Table(box=None, padding=(0, 1), header_style="dim")
        for heading in ("client", "holds", "examples", "loss", "step"):
            table.add_column(heading, justify="right" if heading in ("client", "loss") else "left")
        counts = self.setup.counts
        total = self.setup.experiment.clients
        sizes = {int(client): entry["examples"] for client, entry in log.clients.items()}
        if counts is not None:
            sizes = dict(enumerate(counts.sum(axis=1).tolist()))
        most = max(sizes.values(), default=1) or 1
        steps = [entry["update_norm"] for entry in log.clients.values()]
        longest = max(steps, default=1.0) or 1.0
        for client in range(min(SHOWN_CLIENTS, total)):
            entry = log.clients.get(str(client))
            size = sizes.get(client, 0)
            row = [Text(str(client)), Text(self.holds(client)), bar(size / most, f"{size:,}", "cyan")]
            if (gone := self.attendance.absent.get(client)) is not None:
                table.add_row(*row, "", Text(f"not since round {gone.since}: {gone.why}"[:60], "red"))
            elif entry is None:
                table.add_row(*row, "", "rests", style="dim")
            else:
                loss = "" if entry["loss"] is None else f"{entry['loss']:.3f}"
                table.add_row(*row, loss, bar(entry["update_norm"] / longest, f"{entry['update_norm']:.3f}", "magenta"))
        if total > SHOWN_CLIENTS:
            more = sum(client >= SHOWN_CLIENTS for client in self.attendance.absent)
            missing = Text(f"{more:,} of them do not count", "red") if more else ""
            table.add_row("...", f"and {total - SHOWN_CLIENTS:,} more", "", "", missing)
        return table

    def holds(self, client: int) -> str:
        counts, names = self.setup.counts, self.setup.classes
        if counts is None:
            return ""
        held = [names[c] for c in counts[client].argsort(kind="stable")[::-1] if counts[client][c]]
        if len(held) == 1:
            return f"only {held[0]}"
        return " ".join(held[:4]) + (" ..." if len(held) > 4 else "")


def percentages(setup: Setup) -> set[str]:
    """Return the names of the metrics that are shown as percentages."""
    return {metric.name for metric in setup.metrics if metric.percent}


def figures(loss: float | None, metrics: Mapping[str, float], percent: Collection[str]) -> str:
    parts = [] if loss is None else [f"loss {loss:.4f}"]
    return "  ".join(parts + [f"{name} {shown(value, name in percent)}" for name, value in metrics.items()])


def shown(value: float, percent: bool) -> str:
    return f"{100 * value:.2f} %" if percent else f"{value:.4g}"


def chosen(log: RoundLog) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in log.hyper.items())


def best_so_far(log: RoundLog) -> str:
    return "" if log.best is None else f"best {log.best}"


def sparkline(values: Sequence[float], low: float | None = None, high: float | None = None, width: int = 60) -> str:
    """Draw the values as a row of blocks, thinned to the width."""
    if not values:
        return ""
    shown = [values[i * len(values) // min(width, len(values))] for i in range(min(width, len(values)))]
    shown[-1] = values[-1]
    low = min(shown) if low is None else low
    high = max(shown) if high is None else high
    span = (high - low) or 1.0
    return "".join(BLOCKS[min(7, max(0, int((value - low) / span * 8)))] for value in shown)


def bar(share: float, label: str, style: str, width: int = 12) -> Text:
    full = round(max(0.0, min(1.0, share)) * width)
    return Text.assemble(("━" * full, style), ("─" * (width - full), "dim"), f" {label}")
