"""NIID-Bench's CIFAR-10 rows (Li et al., "Federated learning on non-IID data silos", ICDE 2022), as a study.

Taken from the paper and its public code: ten parties that all train in every round, fifty rounds of ten local epochs,
mini-batches of 64, SGD with momentum that starts anew each round, the mean weighted by examples, the accuracy of the
last global model on the test set. Where our protocol differs in any detail, docs/results.md says so.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedaccord.core.errors import SettingsError
from fedaccord.experiments import comparison, runner
from fedaccord.experiments import study as studies
from fedaccord.experiments.study import Row, Study
from fedaccord.report import grid, tables

TASK = "cifar10_lenet"
FOLDER = "niid-bench"
METHODS = ("FA", "FA+WD", "SCAFFOLD", "FedNova")
ROUNDS = 50
CHANCE = 10.0
"""The accuracy of guessing, in percent."""

PROTOCOL: dict[str, Any] = {
    "clients": 10,
    "epochs": 10,
    "batch_size": 64,
    "lr": 0.01,
    "momentum": 0.9,
    "weight_decay": 1e-5,
    "augment": True,
    "init": "as-given",
    "entropy_weight": 0.0,
    "evaluate": "clients",  # the server keeps no examples: all 50,000 are trained on
    "average": False,  # the last model is tested, not a running mean
    "guards": False,
    "test_every": 1,
}


@dataclass(frozen=True)
class Skew:
    """A row of NIID-Bench's table: how the data is divided, and the published figures in the order of METHODS."""

    label: str
    settings: dict[str, Any]
    published: tuple[float, ...]
    mu: float  # of FedProx, the best of those that NIID-Bench tried


SKEWS = {
    "dirichlet": Skew(
        "Dirichlet 0.5",
        {"split": "dirichlet-capped", "alpha": 0.5, "min_examples": 10},
        (68.2, 67.9, 69.8, 66.8),
        0.001,
    ),
    "labels": Skew(
        "two labels a party",
        {"split": "classes-random", "classes_per_client": 2},
        (49.8, 50.7, 49.1, 46.5),
        0.01,
    ),
    "quantity": Skew(
        "quantity 0.5",
        {"split": "quantity", "alpha": 0.5, "min_examples": 10},
        (72.0, 71.2, 62.4, 10.0),
        0.001,  # not known
    ),
}
ROWS = ("dirichlet", "labels")
"""The label-skew rows, which are run unless others are named."""

CAPTION = (
    "NIID-Bench (Li et al., ICDE 2022), CIFAR-10, LeNet: test accuracy in % after the last of {rounds} rounds, SEEDS; "
    "10 parties, all in every round, 10 local epochs, mini-batches of 64, SGD with rate 0.01 and momentum 0.9 (anew "
    "each round), weight decay 1e-5; augmentation: crops of 32 x 32 from pictures padded by 4 with reflection, and "
    "flips; pixels from 0 to 1. FA+WD is FedProx, mu = {mu}. The published figures are means of three runs"
)


def study_of(
    rows: Sequence[str] = ROWS,
    methods: Sequence[str] = METHODS,
    seeds: int = 1,
    rounds: int = ROUNDS,
    device: str = "cpu",
) -> Study:
    """Return the study of these rows and methods; if it is not as long as published, it has other run folders."""
    for name, known, option in [(r, SKEWS, "rows") for r in rows] + [(m, METHODS, "methods") for m in methods]:
        if name not in known:
            raise SettingsError(f"niid-bench: --{option} {name}: there are {', '.join(known)}")
    if seeds < 1 or rounds < 1:
        raise SettingsError("niid-bench: --seeds and --rounds want 1 or more")
    mu = ", ".join(f"{SKEWS[name].mu:g} ({SKEWS[name].label})" for name in rows)
    tag = "" if rounds == ROUNDS else f"-{rounds}rounds"
    found = tuple(
        row_of(SKEWS[name], tuple(methods), seeds, {"rounds": rounds, "device": device}, tag) for name in rows
    )
    return Study(TASK, found, CAPTION.format(rounds=rounds, mu=mu))


def row_of(skew: Skew, methods: tuple[str, ...], seeds: int, also: dict[str, Any], tag: str) -> Row:
    """Return a skew as a row of the study.

    FedProx's term is mu / 2 ||w - w_t||^2, ours wd_weight ||w - w_t||^2, so wd_weight is half of its mu.
    """
    settings = {**PROTOCOL, **skew.settings, **also}
    published = {name: (figure, None) for name, figure in zip(METHODS, skew.published, strict=True) if name in methods}
    tuned = {"FA+WD": {"wd_weight": skew.mu / 2}}
    return Row(settings.pop("split"), 1.0, methods, seeds, settings, tuned, tag, skew.label, published)


def with_all(study: Study, folder: Path) -> Study:
    """Return the study extended by every row, method and seed of which the folder has a run of this length."""
    (row, *_), tag = study.rows, study.rows[0].tag
    rounds, device = row.settings["rounds"], row.settings["device"]
    runs = [re.fullmatch(rf".*-C1\.0{tag}-s(\d+)", path.name) for path in folder.glob("*")]
    seeds = max([row.seeds, *(1 + int(found[1]) for found in runs if found)])
    everything = study_of(tuple(SKEWS), METHODS, seeds, rounds, device)
    there = [cell for cell in studies.cells(everything) if studies.ended(cell, folder)]
    labels = {each.label for each in (*study.rows, *(cell.row for cell in there))}
    wanted = {*row.methods, *(cell.method for cell in there)}
    rows = [name for name, skew in SKEWS.items() if skew.label in labels]
    return study_of(rows, [name for name in METHODS if name in wanted], seeds, rounds, device)


def reproduce(study: Study, folder: Path, run: bool, lanes: int | None) -> tuple[tables.Table, grid.Grid, list[str]]:
    """Run what is missing, if `run`, and write the tables of all that is there, in every form, beside the runs.

    Return both tables and a sentence for each run that failed. A run that diverged did not fail: it counts as chance.
    """
    with_all(study, folder)  # complains about a run that was another experiment before any starts
    failures = runner.run_rest(list(studies.cells(study)), folder, lanes) if run else []
    table, spent = comparison.compare(with_all(study, folder), folder, chance=CHANCE)
    tag = study.rows[0].tag
    studies.write_tables(table, folder / f"table{tag}")
    studies.write_tables(spent, folder / f"spent{tag}", grid.FORMS)
    return table, spent, failures
