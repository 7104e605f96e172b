"""The run's settings: one frozen, typed, validated object, with a sentence for each field.

The command line, --set, the TOML files and the run folder all speak in these names. A method brings settings of its
own; they stand beside the others everywhere.
"""

import dataclasses
import difflib
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from fedaccord.core import settings as core
from fedaccord.core.errors import SettingsError
from fedaccord.core.files import read_up_to
from fedaccord.core.settings import LENGTH, NUMERICS, OBSERVATION, OPERATION, SERVER, Setting

if TYPE_CHECKING:
    from fedaccord.core.protocols import Method

LONGEST, DOTS = 1 << 16, 512
"""The most bytes in a settings file, and dots in a line of it: tomllib takes gigabytes for a key of many parts."""
OURS = ("weighting", "yardstick", "guards")
"""Settings in which 0.1 already departed from the paper; in all that are newer, it did what the paper prints."""
VERSION = 2
"""The version of the run folder's format. Folders without one are of 0.1; they can still be read."""
RECOMMENDED = "FA+RM+AH"
"""The method that is used where none is named."""
GRID = "lr = 0.001..1/25 log; steps = 1, 2, 3, 5, 8, 13, 20, 32, 50, 80 log"
OTHER = {"lr": 0.001, "grid": GRID.replace("0.001..1/25", "0.00001..0.1/33")}
"""Defaults for optimizers other than SGD: Adam and its kin step by about the rate itself, whatever the gradient."""
OWN = "own"
"""The value that the settings record for an optimizer or a predicate that was given as a function."""
ALL_DATA = "all"
"""The value of the setting `alone` that asks for one client that holds all data."""
ENGINES = "auto, serial, pool, stacked, ray"
ELSEWHERE = {
    "batch": "batch_size", "global_rounds": "rounds", "learning_rate": "lr", "local_epochs": "epochs",
    "local_steps": "steps", "num_epochs": "epochs", "num_clients": "clients", "num_rounds": "rounds",
    "optim": "optimizer",
}  # fmt: skip
"""Other libraries' names for some settings, each with ours."""
LIKE = 0.75
"""How alike two names must be (difflib's ratio) for one to count as a misspelling of the other."""
SPLITS = (
    "iid", "non-iid", "classes", "classes-random", "dirichlet", "dirichlet-capped", "shards", "quantity", "sorted",
    "natural",
)  # fmt: skip


def declared(made: Setting) -> Any:
    """Return a dataclass field that carries the setting, which takes its name and type from the field."""
    return field(default=made.default, metadata={"setting": made})


def setting(default: Any, help: str, **more: Any) -> Any:
    return declared(core.setting("", default, help, **more))


def one_of(default: str, choices: tuple[str, ...], help: str, **more: Any) -> Any:
    return declared(core.one_of(choices, "", default, help, **more))


def at_least(low: float, default: Any, help: str, **more: Any) -> Any:
    return declared(core.at_least(low, "", default, help, **more))


def above(low: float, default: Any, help: str, **more: Any) -> Any:
    return declared(core.above(low, "", default, help, **more))


def share(default: float, help: str, **more: Any) -> Any:
    return declared(core.share("", default, help, **more))


def below_one(default: float, help: str, **more: Any) -> Any:
    return declared(core.below_one("", default, help, **more))


@dataclass(frozen=True)
class Settings:
    """Every setting of a run: those that any run has, and in `own` those that its method and server steps bring.

    Tasks bring their own defaults for some; a run folder's settings.toml shows all.
    """

    task: str = setting("digits", "A named task, a folder of pictures by class, an .npz file, or file.py:name.")
    method: str = setting(RECOMMENDED, "What clients and server do: a name such as FA+RM+AH, or file.py:name.")
    split: str = one_of("non-iid", SPLITS, "How the data is divided among the clients; non-iid: one class a client")
    clients: int | None = at_least(
        1, None, "Number of clients, K (10; natural split: one for each owner, or owners grouped at random into K)."
    )
    fraction: float = share(1.0, "Share of the clients that train in a round, C.")
    cohorts: str = one_of(
        "passes",
        ("passes", "random"),
        "Who trains: everyone once in 1/C rounds, in ever new orders, or at random",
        printed="random",
    )
    rounds: int = at_least(1, 100, "Number of rounds, T.", role=LENGTH)
    patience: int = at_least(
        0, 0, "Stop after so many rounds without a better model on the server's set (0: never).", role=LENGTH
    )
    keep: str = setting(
        "last", "Which model is handed out: that of the last round; best: the one with the smallest loss on the "
        "server's set; or the best there by a metric, such as accuracy.", role=SERVER,
    )  # fmt: skip
    seed: int = at_least(0, 0, "Seed of everything random: start, split, cohorts, mini-batches, augmentation.")
    init: str = one_of(
        "as-given", ("as-given", "he", "unit-variance"),
        "First weights of Linear layers and convolutions: the model's own, He's draw, or that draw scaled on examples",
        printed="as-given",
    )  # fmt: skip

    lr: float = above(0, 0.1, "Learning rate of the first round (fixed schedule).")
    lr_decay: float = share(1.0, "Factor on the learning rate after each round (fixed schedule).")
    steps: int = at_least(1, 10, "SGD iterations of a client in the first round (fixed schedule).")
    steps_decay: float = share(1.0, "Factor on the SGD iterations after each round (fixed schedule).")
    epochs: float = at_least(
        0, 0.0, "Passes over its own data that a client makes in a round, in place of steps (0: steps count); in a "
        "simulation, where the server knows how much everyone has.",
    )  # fmt: skip
    readers: int = at_least(
        0, 0, "Processes that read a client's Dataset ahead while it trains (0: none). If it draws at random, it draws "
        "otherwise there.", role=NUMERICS,
    )  # fmt: skip
    batch_size: int = at_least(1, 64, "Examples in a mini-batch; a client with fewer uses all it has.")
    travels: str = setting(
        "all", "What is sent and averaged: all, trainable (the rest is frozen), no-norm (normalisation stays at home), "
        "names with wildcards and commas, !name: all but this. What does not travel is frozen or each client's own.",
    )  # fmt: skip
    optimizer: str = setting(
        "sgd", "The clients' optimizer: sgd, or one of torch.optim by name, such as adam or adamw."
    )
    optimizer_state: str = one_of(
        "fresh", ("fresh", "kept"), "Whether the optimizer's state (momentum ...) starts anew each round or is kept"
    )
    momentum: float = below_one(0.0, "Momentum of the clients' SGD.")
    nesterov: bool = setting(False, "Nesterov's momentum in place of the plain one.")
    weight_decay: float = at_least(0, 0.0, "Weight decay of the clients' optimizer.")
    clip_gradient: float = at_least(0, 0.0, "Longest gradient of a client's step; longer ones are cut (0: any length).")
    entropy_min: float | None = at_least(0, None, "H_min of Eq. 8 in nats (0.87 ln K for K classes).", hyper=True)
    entropy_weight: float | None = at_least(
        0, None, "Weight of the entropy term, Eq. 8 (if a task leaves it open: 0 where the clients' first steps agree, "
        "otherwise 1).",
        hyper=True, printed=1.0,
    )  # fmt: skip
    weighting: str = one_of(
        "cohort",
        ("cohort", "population"),
        "N of line 14: the cohort's data, or all data as printed",
        printed="population",
    )

    grid: str = setting(
        GRID,
        "What a tuner chooses from: name = low..high/count [log]; name = value, value, ...",
        printed="lr = 0.05..0.5/9 log; steps = 5..45/9",
    )
    start: str = setting("", "Where a tuner starts, such as: lr = 0.1, steps = 20 (the middle of the grid if empty).")
    replay: str = setting("", "A run folder whose hyper-parameters are used again, round by round.")
    guards: bool = setting(True, "Clip rewards, shorten or roll back a round that blew up.", printed=False)

    classes_per_client: int = at_least(1, 2, "Classes a client, for split = classes and classes-random.")
    alpha: float = above(0, 0.5, "Concentration, for split = dirichlet(-capped) and quantity; smaller is more uneven.")
    shards_per_client: int = at_least(1, 2, "Shards a client, for split = shards.")
    alone: str = setting(
        "", "Train a single client, without a federation: its number, with the data that it has in this split, or all: "
        "one that holds everything.",
        check=lambda v: v in ("", ALL_DATA) or v.isdecimal(), expected="a client's number, or all",
    )  # fmt: skip
    min_examples: int = at_least(
        0, 0, "Draw split = dirichlet(-capped) or quantity anew until every client has so many examples."
    )
    allow_empty: bool = setting(False, "Allow clients without data (they never train).")
    validation_per_class: int = at_least(
        0, 64, "Examples a class that the server keeps to measure L_t; never trained on."
    )
    evaluate: str = one_of("server", ("server", "clients"), "Who measures L_t: the server on its set, or the clients")
    yardstick: str = one_of(
        "objective",
        ("objective", "cross-entropy"),
        "What L_t is: the clients' loss with its entropy term, or without",
        printed="cross-entropy",
    )
    reports: str = one_of("mean", ("mean", "median"), "How the clients' losses are averaged; the median resists liars")
    paired: bool = setting(
        False, "Clients measure the model before as well, on the same examples (evaluate = clients)."
    )

    width: int = at_least(0, 0, "Width of the task's network, if it has one (0: the paper's).")
    augment: bool | None = setting(None, "Random crops and flips of the training pictures (CIFAR-10: on, others: off).")
    image_size: int = at_least(0, 0, "Resize the pictures of a folder to this many pixels a side (0: as they are).")

    engine: str = setting(
        "auto", f"Who runs the clients: {ENGINES}; auto: what suits, and it says which and why.", role=NUMERICS
    )
    workers: int | None = at_least(
        1, None, "Processes or threads that run clients (as many as usable cores).", role=OPERATION
    )
    address: str = setting("", "A Ray cluster's address, such as 10.0.0.1:6379 (engine = ray).", role=OPERATION)
    store: str = one_of(
        "auto", ("auto", "memory", "disk"), "Where clients keep things; auto: on disk if it would not fit",
        role=OPERATION,
    )  # fmt: skip
    min_replies: int = at_least(1, 1, "Usable updates without which a round is skipped.", role=SERVER)
    deadline: float = above(0, 600.0, "Seconds that a round waits for its clients (a real federation).", role=OPERATION)
    partial: bool = setting(
        False, "At the deadline, take what a client has done by then, by its share (a real federation).", role=SERVER
    )
    device: str = setting("cpu", "Where to compute: cpu, cuda, cuda:1 ...", role=NUMERICS)
    threads: int = setting(
        1, "Torch threads; another number may give other last bits.", role=NUMERICS, check=lambda v: 1 <= v <= 1024,
        expected="1 to 1024",
    )  # fmt: skip
    test_every: int = at_least(
        1, 10, "Measure the test metrics every so many rounds (and after the last).", role=OBSERVATION
    )
    metrics: str = setting(
        "", "What is measured on the test set, with commas: accuracy, f1, auc, perplexity, bits, mae, mse, r2 (as the "
        "task says if empty); the first is the one to judge by.", role=OBSERVATION,
    )  # fmt: skip
    client_test: float = below_one(
        0.0,
        "Share of its examples that a client keeps to measure the metrics on (0.2 if a part of the model is its own).",
    )
    tensorboard: bool = setting(False, "Also write TensorBoard's event files (extra: trackers).", role=OPERATION)
    mlflow: bool = setting(False, "Also log to MLflow, or into the run folder (extra: trackers).", role=OPERATION)
    wandb: bool = setting(
        False, "Also write Weights & Biases' files; WANDB_MODE=online: send them (extra: trackers).", role=OPERATION
    )
    checkpoint_every: int = at_least(
        1, 1, "Write a checkpoint every so many rounds (and after the last).", role=OBSERVATION
    )

    own: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, each in FIELDS.items():
            each.validate(getattr(self, name))

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name) if name in FIELDS else self.own[name]

    def values(self) -> dict[str, Any]:
        """Return every setting by name, those in `own` included."""
        return {**{name: getattr(self, name) for name in FIELDS}, **self.own}

    def but(self, values: Mapping[str, Any]) -> "Settings":
        """Return a copy of the settings with these values, each of which may be a field's or one in `own`."""
        own = {name: value for name, value in values.items() if name not in FIELDS}
        base: dict[str, Any] = {name: value for name, value in values.items() if name in FIELDS}
        return replace(self, **base, own={**self.own, **own})


def kind_of(item: "dataclasses.Field[Any]") -> tuple[type, bool]:
    """Return the field's plain type, and whether it may be left open (None)."""
    kind = item.type
    if isinstance(kind, types.UnionType):
        plain = next(part for part in typing.get_args(kind) if part is not type(None))
        return plain, True
    assert isinstance(kind, type)
    return kind, False


def fields_of(items: Iterable["dataclasses.Field[Any]"]) -> dict[str, Setting]:
    found = {}
    for item in items:
        if "setting" in item.metadata:
            kind, optional = kind_of(item)
            found[item.name] = replace(item.metadata["setting"], name=item.name, kind=kind, optional=optional)
    return found


FIELDS: dict[str, Setting] = fields_of(dataclasses.fields(Settings))
"""The settings that any run has."""


def table(method: "Method | None" = None) -> dict[str, Setting]:
    """Return every setting there is: those of any run, of the server's steps, of all known methods, and of this one."""
    from fedaccord.methods.registry import PARTS  # imported only here, because it loads torch
    from fedaccord.server.steps import SERVER_SETTINGS

    of_parts = {each.name: each for part in PARTS.values() for each in part.settings}
    own = {} if method is None else method.settings
    return {**FIELDS, **{each.name: each for each in SERVER_SETTINGS}, **of_parts, **own}


def brought(method: "Method") -> dict[str, Setting]:
    """Return the settings of a run with this method, by name."""
    from fedaccord.server.steps import SERVER_SETTINGS

    return {**FIELDS, **{each.name: each for each in SERVER_SETTINGS}, **method.settings}


def printed(method: "Method") -> dict[str, Any]:
    """Return what --paper sets: the paper's value, or what stands for it, where the default is another."""
    return {name: each.printed for name, each in brought(method).items() if each.printed is not None}


def known(name: str, among: Mapping[str, Setting]) -> Setting:
    if name in among:
        return among[name]
    close = difflib.get_close_matches(name, among, n=1, cutoff=LIKE)
    meant = ELSEWHERE.get(name) or (close[0] if close else None)
    hint = f"did you mean '{meant}'?" if meant else "`fedaccord run --help-all` lists all settings"
    raise SettingsError(f"unknown setting '{name}'; {hint}")


def parse_assignment(text: str, among: Mapping[str, Setting]) -> tuple[str, Any]:
    """Split key=value, as given to --set, into the setting's name and its value."""
    name, sign, value = text.partition("=")
    name = name.strip().replace("-", "_")
    if not sign:
        raise SettingsError(f"--set {text}: expected key=value")
    return name, known(name, among).parse(value.strip())


def load_toml(path: Path) -> dict[str, Any]:
    """Return the values in a TOML file; raise SettingsError if it cannot be read."""
    try:
        data = read_up_to(path, LONGEST)
        check_size(data, path)
        values = tomllib.loads(data.decode())
        check_whole_numbers(values)
        return values
    except FileNotFoundError:
        raise SettingsError(f"{path}: there is no such file") from None
    except RecursionError:
        raise SettingsError(f"{path}: values within values, too deep to read") from None
    except (OSError, ValueError) as error:  # of TOML, of UTF-8, or of a number with thousands of digits
        raise SettingsError(f"{path}: {error}") from None


def check_size(data: bytes, path: Path) -> None:
    """Raise SettingsError for a settings file that would take too much memory to parse."""
    if len(data) > LONGEST:
        raise SettingsError(f"{path}: has more than {LONGEST:,} bytes, too many for settings")
    if any(line.count(b".") > DOTS for line in data.splitlines()):
        raise SettingsError(f"{path}: a line has more than {DOTS} points, too many for a setting")


def check_whole_numbers(value: Any) -> None:
    """Raise ValueError for a whole number of more than 64 bits: nobody could compute with it."""
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            check_whole_numbers(each)
    elif isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise ValueError("a whole number of more than 64 bits")


def read_toml(path: Path) -> dict[str, Any]:
    """Return the settings in a TOML file, of this version or an earlier one.

    A number without a decimal point is accepted where a float is wanted.
    """
    from fedaccord.methods.registry import RENAMED, find

    values = load_toml(path)
    version = values.pop("version", 1)
    if not isinstance(version, int) or version > VERSION:
        raise SettingsError(f"{path}: is of version {version!r}; this fedaccord reads up to {VERSION}")
    # a run folder of 0.1 has every setting, under the old names; a person's file has a few
    folder_of_0_1 = version == 1 and "task" in values and not RENAMED.keys().isdisjoint(values)
    values = {RENAMED.get(name, name): value for name, value in values.items()}
    try:
        method = values.get("method")
        found = find(method if isinstance(method, str) else RECOMMENDED)
        if folder_of_0_1:
            new = {name: value for name, value in printed(found).items() if name not in OURS}
            values = {**new, **values}
        there = table(found)
        for name, value in values.items():
            if known(name, there).kind is float and type(value) is int:
                values[name] = float(value)
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from None
    return values


def make(*layers: Mapping[str, Any], method: "Method | None" = None) -> Settings:
    """Build and check the settings from layers of values, of which later ones override earlier ones.

    `method`: the method itself, where its name would not find it.
    """
    from fedaccord.methods.registry import find
    from fedaccord.server.steps import SERVER_SETTINGS

    merged: dict[str, Any] = {}
    for layer in layers:
        if layer.get("optimizer", merged.get("optimizer", "sgd")) != merged.get("optimizer", "sgd"):
            merged.pop("lr", None)  # it was meant for another optimizer
        merged.update(layer)
    if method is None:
        FIELDS["method"].validate(merged.get("method", RECOMMENDED))
        method = find(merged.get("method", RECOMMENDED))
    if merged.get("optimizer", "sgd") != "sgd":
        merged = {**OTHER, **merged}
    taken = {*FIELDS, *(each.name for each in SERVER_SETTINGS)} & {*method.settings}
    if taken:
        raise SettingsError(f"method {method.name} brings a setting '{min(taken)}', but every run has one of that name")
    there = table(method)
    own = {each.name: each.default for each in (*method.settings.values(), *SERVER_SETTINGS)}
    for name in merged:
        merged[name] = known(name, there).checked(merged[name])
        if name not in FIELDS:
            own[name] = merged[name]
    return Settings(**{name: value for name, value in merged.items() if name in FIELDS}, own=own)


def refuse_tuned(given: Iterable[str], settings: Settings, method: "Method") -> None:
    """Raise SettingsError for a given value that the method's tuner chooses itself, since it would have no effect."""
    values = settings.values()
    tuned = method.tunes(values)
    for name in given:
        chosen = "steps" if name == "epochs" else name.removesuffix("_decay")
        if chosen not in tuned or (name == chosen and method.begins(values)):
            continue
        rest = "+".join(part.name for part in method.parts if not part.tunes(values)) or "FA"
        begins = f', with start = "{chosen} = ..." the tuner begins there'
        raise SettingsError(
            f"{name}: {method.name} chooses {chosen} itself, so this would have no effect; with method {rest} it is as "
            f"you say{begins if all(part.takes_start for part in method.parts) else ''}"
        )


def to_toml(settings: Settings) -> str:
    """Return the settings as TOML; those that are left open (None) are omitted."""
    return tomli_w.dumps({"version": VERSION, **{k: v for k, v in settings.values().items() if v is not None}})
