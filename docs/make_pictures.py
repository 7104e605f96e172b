"""Make the pictures of the README: `make pictures`."""

import re
from pathlib import Path

from rich.console import Console

from fedaccord import config
from fedaccord.live import LiveView
from fedaccord.report import curves, evolution
from fedaccord.report.split import draw
from fedaccord.session import drive
from fedaccord.simulation import from_task
from fedaccord.tasks import find_task

DOCS = Path(__file__).parent


class Recorder(LiveView):
    """The live view without the terminal: only its last picture is kept."""

    def begin(self, done):
        self.logs = list(done)

    def end(self):
        self.live.console.print(self.picture())


def main() -> None:
    task = find_task("digits")
    simulation = from_task(task, config.make(task.defaults("non-iid"), {"task": "digits"}))
    console = Console(record=True, width=92, file=open("/dev/null", "w"), force_terminal=True)
    drive(simulation, None, Recorder(simulation, console))
    svg = console.export_svg(title="make run")
    # the picture must not fetch a font from the network
    (DOCS / "live.svg").write_text(re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL))

    skewed = from_task(
        task, config.make(task.defaults("dirichlet"), {"split": "dirichlet", "alpha": 0.1, "clients": 20})
    )
    assert skewed.counts is not None
    matching_curves()
    evolution_curves()
    draw(skewed.counts, skewed.classes, "digits, split dirichlet, alpha 0.1, 20 clients", DOCS / "split.svg")


def matching_curves() -> None:
    """FA, FA+WD and FA+RM on one-class clients, from the logs in results/."""
    results = DOCS.parent / "results"

    def runs(task: str, method: str) -> list[Path]:
        return sorted(results.glob(f"{task}-non-iid-{method}-C1.0-s*"))

    titles = {
        "mnist": "MNIST, 5 steps a round, 3 seeds",
        "cifar10": "CIFAR-10, 20 steps a round, 1 seed",
        "kws16": "keywords, quarter width, 20 steps, 1 seed",
    }
    panels = {
        title: {method: found for method in ("FA", "FA+WD", "FA+RM") if (found := runs(task, method))}
        for task, title in titles.items()
    }
    curves.draw(panels, DOCS / "matching.svg")


def evolution_curves() -> None:
    """FA+AH on MNIST, three seeds: where the tuner's mean went."""
    results = DOCS.parent / "results"
    columns = {
        f"MNIST, C = {fraction}": {
            split: sorted(results.glob(f"mnist-{split}-FA+AH-C{fraction}-s*")) for split in ("iid", "non-iid")
        }
        for fraction in ("1.0", "0.5")
    }
    evolution.draw(columns, DOCS / "evolution.svg")


if __name__ == "__main__":
    main()
