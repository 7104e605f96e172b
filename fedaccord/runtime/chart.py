"""Charts of a run for notebooks: the loss and the test metrics by round, live or when it is over."""

import io
import itertools
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from fedaccord.core.errors import SettingsError
from fedaccord.core.records import Metric, RoundLog
from fedaccord.runtime.attendance import Attendance, attendance
from fedaccord.runtime.build import Setup
from fedaccord.runtime.live import View, figures, percentages

COLOURS = ("#bc6c25", "#2a6f97", "#588157", "#7b2cbf", "#c1121f", "#444444")
SECONDS = 1.0
"""A live chart is drawn anew at most once in so many seconds."""


def curves(logs: Sequence[RoundLog], metrics: Sequence[Metric], title: str = "") -> Any:
    """Draw a matplotlib Figure with one panel for the loss and one for each metric that was measured."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError:
        raise SettingsError("charts need the notebook extra: pip install 'fedaccord[notebook]'") from None
    points = {"loss": [(log.round, log.loss) for log in logs if log.loss is not None]}
    for metric in metrics:
        scale = 100 if metric.percent else 1
        name = f"test {metric.name}{', %' if metric.percent else ''}"
        points[name] = [(log.round, scale * log.metrics[metric.name]) for log in logs if metric.name in log.metrics]
    panels = {name: found for name, found in points.items() if found} or {"loss": []}
    figure = Figure(figsize=(0.6 + 3.8 * len(panels), 3.0), layout="constrained")
    FigureCanvasAgg(figure)  # no window, and none of pyplot's global state
    row = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, colour, (name, found) in zip(row, itertools.cycle(COLOURS), panels.items(), strict=False):
        axes.plot([round for round, _ in found], [value for _, value in found], color=colour, marker=".", markersize=4)
        axes.set(title=name, xlabel="round")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title)
    vars(figure)["_repr_png_"] = partial(png, figure)  # what a notebook shows; its own way needs pyplot
    return figure


def png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=100)
    return buffer.getvalue()


class NotebookView(View):
    """One chart below the cell that is redrawn in place, and a line for every client that stops or starts to count."""

    def __init__(self, setup: Setup):
        self.setup = setup
        self.percent = percentages(setup)
        self.logs: list[RoundLog] = []
        self.attendance = Attendance()
        self.drawn = 0.0
        self.handle: Any = None

    def begin(self, done: Sequence[RoundLog]) -> None:
        self.logs = list(done)
        self.attendance = attendance(done)
        self.draw()

    def show(self, log: RoundLog) -> None:
        self.logs.append(log)
        for sentence in self.attendance.add(log):
            print(sentence, flush=True)
        if time.monotonic() - self.drawn >= SECONDS:
            self.draw()

    def end(self) -> None:
        self.draw()

    def draw(self) -> None:
        from IPython.display import Image, display

        title = self.title()
        picture = Image(data=png(curves(self.logs, self.setup.metrics, title)), alt=title)
        if self.handle is None:
            self.handle = display(picture, display_id=True)
        else:
            self.handle.update(picture)
        self.drawn = time.monotonic()

    def title(self) -> str:
        """Say in one line where the run stands."""
        if not self.logs:
            return "the first round is under way ..."
        last, rounds = self.logs[-1], self.setup.settings.rounds
        metrics = next((log.metrics for log in reversed(self.logs) if log.metrics), {})
        return f"round {last.round}/{rounds}  {figures(last.loss, metrics, self.percent)}"
