"""The run's settings: one frozen, typed, validated object, with a sentence for each field.

The command line, --set, the TOML files and the run folder all speak in these names.
"""

import dataclasses
import difflib
import math
import tomllib
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from fedaccord.core.errors import SettingsError

METHODS = ("FA", "FA+WD", "FA+RM", "FA+AH", "FA+RM+AH")
GRID = "lr = 0.05..0.5/9 log; steps = 5..45/9"
ENGINES = ("auto", "serial", "pool", "stacked", "ray", "flower")
SPLITS = ("iid", "non-iid", "classes", "dirichlet", "shards", "quantity", "natural")


def setting(default: Any, help: str, check: Callable[[Any], bool] | None = None, expected: str = "") -> Any:
    """A field with its sentence and, where not every value of the type will do, the rule and how to say it."""
    return field(default=default, metadata={"help": help, "check": check, "expected": expected})


def one_of(default: str, choices: tuple[str, ...], help: str) -> Any:
    return setting(default, f"{help} ({', '.join(choices)})", lambda v: v in choices, f"one of {', '.join(choices)}")


def at_least(low: float, default: Any, help: str) -> Any:
    return setting(default, help, lambda v: v >= low, f"{low} or more")


def above(low: float, default: Any, help: str) -> Any:
    return setting(default, help, lambda v: v > low, f"more than {low}")


def share(default: float, help: str) -> Any:
    return setting(default, help, lambda v: 0 < v <= 1, "more than 0, at most 1")


@dataclass(frozen=True)
class Settings:
    """Every setting of a run. Tasks bring their own defaults for some; a run folder's settings.toml shows all."""

    task: str = setting("digits", "A named task, a folder of pictures by class, an .npz file, or file.py:name.")
    method: str = one_of("FA", METHODS, "What clients and server do, in the paper's words")
    split: str = one_of("non-iid", SPLITS, "How the data is divided among the clients; non-iid: one class a client")
    clients: int | None = at_least(1, None, "Number of clients, K (10; natural split: as many as the data names).")
    fraction: float = share(1.0, "Share of the clients that train in a round, C.")
    rounds: int = at_least(1, 100, "Number of rounds, T.")
    seed: int = at_least(0, 0, "Seed of everything random: start, split, cohorts, mini-batches, augmentation.")

    lr: float = above(0, 0.1, "Learning rate of the first round (fixed schedule).")
    lr_decay: float = share(1.0, "Factor on the learning rate after each round (fixed schedule).")
    steps: int = at_least(1, 10, "SGD iterations of a client in the first round (fixed schedule).")
    steps_decay: float = share(1.0, "Factor on the SGD iterations after each round (fixed schedule).")
    batch_size: int = at_least(1, 64, "Examples in a mini-batch; a client with fewer uses all it has.")
    momentum: float = setting(0.0, "Momentum of the clients' SGD, reset each round.", lambda v: 0 <= v < 1, "in [0, 1)")
    server_lr: float = above(0, 1.0, "Factor on the server's step towards the clients' mean (1: FedAvg).")
    entropy_min: float | None = at_least(0, None, "H_min of Eq. 8 in nats (0.87 ln K for K classes).")
    entropy_weight: float = at_least(0, 1.0, "Weight of the entropy term, Eq. 8; 0 turns it off.")
    weighting: str = one_of(
        "cohort", ("cohort", "population"), "N of line 14: the cohort's data, or all data as printed"
    )

    wd_weight: float = at_least(0, 0.1, "Weight of the weight-divergence term (methods with WD).")
    rm_weight: float = at_least(0, 1e-4, "Weight of the matching loss, Eq. 1 (methods with RM).")
    rm_layers: str = setting("", "Layers of interest by name, with commas (found if empty; see `fedaccord matching`).")
    rm_kernel: int = at_least(0, 0, "Size of the matching convolutions (0: that of the layer they reverse).")
    rm_batch: int = at_least(0, 0, "Examples of a mini-batch that are matched (0: all).")
    rm_memory: str = one_of("persistent", ("persistent", "fresh"), "Whether theta_i is kept or starts anew each round")
    rm_store: str = one_of(
        "auto", ("auto", "memory", "disk"), "Where theta_i is kept; auto: on disk if it would not fit"
    )

    grid: str = setting(GRID, "What AH tunes: name = low..high/count [log]; name = value, value, ...; any of Hyper.")
    start: str = setting("", "Where AH starts, such as: lr = 0.1, steps = 20 (the middle of the grid if empty).")
    hyper_lr: float = at_least(0, 0.01, "eta_H, the rate at which AH learns.")
    interval: int = at_least(1, 5, "Z, how many rounds back AH looks.")
    precision: float = setting(85.0, "A_1 = precision * I.", lambda v: 5 <= v <= 400, "5 to 400")
    diagonal: bool = setting(False, "Keep A diagonal: cheaper for many hyper-parameters, no correlations.")
    baseline: str = one_of(
        "causal", ("causal", "centred"), "Baseline of the reward: Eq. 7, which the paper uses, or Eq. 6"
    )
    replay: str = setting("", "A run folder whose hyper-parameters are used again, round by round.")
    guards: bool = setting(True, "Clip rewards, roll back a round that blew up; --paper turns it off.")

    classes_per_client: int = at_least(1, 2, "Classes a client, for split = classes.")
    alpha: float = above(0, 0.5, "Concentration, for split = dirichlet and quantity; smaller is more uneven.")
    shards_per_client: int = at_least(1, 2, "Shards a client, for split = shards.")
    allow_empty: bool = setting(False, "Allow clients without data (they never train).")
    validation_per_class: int = at_least(
        0, 64, "Examples a class that the server keeps to measure L_t; never trained on."
    )
    evaluate: str = one_of("server", ("server", "clients"), "Who measures L_t: the server on its set, or the clients")
    yardstick: str = one_of(
        "objective", ("objective", "cross-entropy"), "What L_t is: the clients' loss with its entropy term, or without"
    )
    reports: str = one_of("mean", ("mean", "median"), "How the clients' losses are averaged; the median resists liars")
    paired: bool = setting(
        False, "Clients measure the model before as well, on the same examples (evaluate = clients)."
    )

    width: int = at_least(0, 0, "Width of the task's network, if it has one (0: the paper's).")
    augment: bool | None = setting(None, "Random crops and flips of the training pictures (CIFAR-10: on, others: off).")
    image_size: int = at_least(0, 0, "Resize the pictures of a folder to this many pixels a side (0: as they are).")

    engine: str = one_of(
        "auto", ENGINES, "Who runs the clients; auto: what suits model and machine, and it says which and why"
    )
    workers: int | None = at_least(1, None, "Processes or threads that run clients (as many as usable cores).")
    address: str = setting("", "A Ray cluster's address, such as 10.0.0.1:6379 (engine = ray; empty: this machine).")
    min_replies: int = at_least(1, 1, "Usable updates without which a round is skipped.")
    deadline: float = above(0, 600.0, "Seconds that a round waits for its clients (a real federation).")
    device: str = setting("cpu", "Where to compute: cpu, cuda, cuda:1 ...")
    threads: int = setting(
        1, "Torch threads; another number may give other last bits.", lambda v: 1 <= v <= 1024, "1 to 1024"
    )
    test_every: int = at_least(1, 10, "Measure the test accuracy every so many rounds (and after the last).")
    tensorboard: bool = setting(False, "Also write TensorBoard's event files, into the run folder (extra: trackers).")
    mlflow: bool = setting(False, "Also log to MLflow: where it is set to, else into the run folder (extra: trackers).")
    checkpoint_every: int = at_least(1, 1, "Write a checkpoint every so many rounds (and after the last).")

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            check_value(item, getattr(self, item.name))


def check_value(item: "dataclasses.Field[Any]", value: Any) -> None:
    kind, optional = kind_of(item)
    if value is None and optional:
        return
    right = isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool)
    if kind is float:
        right = isinstance(value, float | int) and not isinstance(value, bool) and math.isfinite(value)
    if not right:
        raise SettingsError(f"{item.name} = {value!r}: expected {NAMES[kind]}")
    check = item.metadata["check"]
    if check is not None and not check(value):
        raise SettingsError(f"{item.name} = {value!r}: expected {item.metadata['expected']}")


NAMES = {int: "a whole number", float: "a number", str: "a word", bool: "true or false"}


def kind_of(item: "dataclasses.Field[Any]") -> tuple[type, bool]:
    """The field's plain type, and whether it may be left open (None)."""
    kind = item.type
    if isinstance(kind, types.UnionType):
        plain = next(part for part in typing.get_args(kind) if part is not type(None))
        return plain, True
    assert isinstance(kind, type)
    return kind, False


FIELDS = {item.name: item for item in dataclasses.fields(Settings)}


def parse_value(name: str, text: str) -> Any:
    """A value as written on the command line, in the field's type."""
    kind, _ = kind_of(known(name))
    if kind is str:
        return text
    if kind is bool:
        if text.lower() in ("true", "yes", "on", "1"):
            return True
        if text.lower() in ("false", "no", "off", "0"):
            return False
        raise SettingsError(f"{name} = {text!r}: expected true or false")
    try:
        return kind(text)
    except ValueError:
        raise SettingsError(f"{name} = {text!r}: expected {NAMES[kind]}") from None


def parse_assignment(text: str) -> tuple[str, Any]:
    """key=value, as given to --set."""
    name, sign, value = text.partition("=")
    name = name.strip().replace("-", "_")
    if not sign:
        raise SettingsError(f"--set {text}: expected key=value")
    return name, parse_value(name, value.strip())


def known(name: str) -> "dataclasses.Field[Any]":
    if name in FIELDS:
        return FIELDS[name]
    close = difflib.get_close_matches(name, FIELDS, n=1)
    hint = f"did you mean '{close[0]}'?" if close else "`fedaccord run --help` lists all settings"
    raise SettingsError(f"unknown setting '{name}'; {hint}")


def read_toml(path: Path) -> dict[str, Any]:
    """The settings in a file; numbers written without a point are accepted where a float is wanted."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingsError(f"{path}: there is no such file") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{path}: {error}") from None
    for name, value in values.items():
        try:
            if kind_of(known(name))[0] is float and type(value) is int:
                values[name] = float(value)
        except SettingsError as error:
            raise SettingsError(f"{path}: {error}") from None
    return values


def make(*layers: Mapping[str, Any]) -> Settings:
    """Later layers win."""
    merged: dict[str, Any] = {}
    for layer in layers:
        merged.update(layer)
    for name in merged:
        known(name)
    return Settings(**merged)


def to_toml(settings: Settings) -> str:
    """Every setting that has a value; the open ones (None) are left out."""
    return tomli_w.dumps({k: v for k, v in dataclasses.asdict(settings).items() if v is not None})
