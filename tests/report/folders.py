"""Run folders for the report page: real ones, small, and ones written by hand."""

import json

from fedaccord import config
from fedaccord.runtime.build import from_task
from fedaccord.runtime.drive import drive
from fedaccord.runtime.folder import RunFolder
from fedaccord.tasks import find_task

GRID = "lr = 0.01, 0.1, 1 log; steps = 10, 20, 30"


def train(path, **changes):
    """A real run of a few rounds on the digits."""
    task = find_task("digits")
    changes = {"rounds": 8, "test_every": 2, "engine": "serial", **changes}
    setup = from_task(task, config.make(task.defaults("non-iid"), changes))
    with RunFolder.create(path, setup.settings) as folder:
        drive(setup, folder, None)
    return path


def line(t, **changes):
    """A round of an FA+AH run on the grid above, with two clients."""
    policy = {"mu": [0.0, 0.001 * t], "A": [[4.0, 0.0], [0.0, 4.0]], "p": 0.2, "baseline": 0.01, "why": f"sentence {t}"}
    return {
        "round": t,
        "hyper": {"lr": (0.01, 0.1, 1.0)[t % 3], "steps": (10, 20, 30)[t // 3 % 3]},
        "cohort": [0, 1],
        "refused": [],
        "loss": 1 / t,
        "metrics": {"accuracy": 0.5},
        "reward": 0.01,
        "policy": policy,
        "guard": None,
        "clients": {"0": {"examples": 1, "update_norm": 2.0}, "1": {"examples": 3, "update_norm": 1.0}},
        "step_norm": 1.0,
        "seconds": {"train": 1.0, "aggregate": 0.25, "evaluate": 0.5, "policy": 0.25},
        **changes,
    }


def write_run(path, lines, metrics=None, **settings):
    """A run folder with this log; `lines` are rounds, or text as it stands, `metrics` what metrics.json says."""
    path.mkdir(parents=True, exist_ok=True)
    if metrics is not None:
        (path / "metrics.json").write_text(json.dumps(metrics))
    settings = {"method": "FA+AH", "grid": GRID, "clients": 2, "rounds": max(1, len(lines)), **settings}
    (path / "settings.toml").write_text(config.to_toml(config.make(settings)))
    text = (each if isinstance(each, str) else json.dumps(each) + "\n" for each in lines)
    (path / "rounds.jsonl").write_text("".join(text))
    return path
