"""The two ends of a real federation, built from a task and its settings.

What travels between them, and the processes that they run in, are in fedaccord/flower.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedaccord.config import Settings
from fedaccord.core.batches import clone
from fedaccord.core.errors import SettingsError
from fedaccord.core.logs import attached
from fedaccord.core.params import read_params
from fedaccord.core.travel import travel_of
from fedaccord.runtime.build import experiment_for, settle_home, setup_of, site_of, start_at_home, travels_of
from fedaccord.runtime.checks import find_device, lay_out, settle_sizes
from fedaccord.runtime.classes import by_class, labels_of
from fedaccord.runtime.drive import Outcome, drive
from fedaccord.runtime.entropy import settle_entropy
from fedaccord.runtime.folder import SETTINGS, RunFolder
from fedaccord.runtime.identity import experiment_of
from fedaccord.runtime.live import LineView
from fedaccord.runtime.monitor import LogView, Roster
from fedaccord.runtime.parts import Parts, client_parts, clients_of, parts_of, server_parts
from fedaccord.runtime.start import start_model
from fedaccord.server.robust import warning
from fedaccord.server.sizes import SIZES, Sizes
from fedaccord.tasks import PRESETS, Task

if TYPE_CHECKING:  # the command line must be able to say that Flower is not installed
    from fedaccord.flower.node import Limits, Member


def federation_settings(settings: Settings) -> Settings:
    """Return the settings as both ends see them: a real federation has Flower for an engine."""
    if settings.alone:
        raise SettingsError(f"alone = {settings.alone}: is for a simulation; a federation has all its clients")
    if settings.weighting == "population":
        raise SettingsError("weighting = population: the server of a real federation does not know all clients' data")
    if settings.device != "cpu":
        raise SettingsError(f"device = {settings.device}: a node cannot use a GPU for now; use device = cpu")
    if settings.threads != 1:
        raise SettingsError(f"threads = {settings.threads}: a node trains with one; use threads = 1")
    return replace(settings, engine="flower", workers=None)


def member_of_task(
    task: Task,
    settings: Settings,
    client: int,
    folder: Path,
    limits: "Limits",
    simulate: bool = False,
    share_labels: bool = False,
) -> "Member":
    """Build a client of this task, with this machine's data.

    `simulate`: every client divides the same data set alike, as the settings say, and takes only its own part.
    `share_labels`: the server may know how many examples of each class this client has.
    """
    settings = federation_settings(settings)
    if settings.clients is not None:
        refuse_beyond(client, settings.clients)
    parts, _, _ = settled(parts_of(task, settings) if simulate else client_parts(*own(task, settings), client))
    refuse_beyond(client, clients_of(parts.settings))
    from fedaccord.flower.node import Member

    mine = parts.clients[client if simulate else 0]
    alone = replace(parts, clients=[mine.part(slice(0))] * client + [mine])
    site = site_of(alone)
    if site.travel is not None and site.travel.home:  # the server sends none of it, so it is drawn here too
        if alone.settings.init == "unit-variance":
            raise SettingsError("init = unit-variance: a part of the model is each client's own; use init = he")
        start_model(alone)
        start_at_home(site)
    labels = labels_of(mine) if share_labels else None
    if share_labels and labels is None:
        raise SettingsError("--share-labels: this client's targets are no class numbers that could be counted")
    told = () if labels is None else np.bincount(labels).tolist()
    return Member(client, site, folder, experiment_of(alone.settings), limits, told)


def refuse_beyond(client: int, count: int) -> None:
    """Raise SettingsError if there is no client of this number."""
    if not 0 <= client < count:
        raise SettingsError(f"--client {client}: there are 0 to {count - 1}")


def serve_task(
    task: Task,
    settings: Settings,
    grid: Any,
    folder: Path,
    choose_view: Callable[..., Any] = LineView,
    simulate: bool = False,
    sizes: Mapping[int, int] | None = None,
) -> Outcome:
    """Run the server of this task, which has its own validation and test set, and no client's data.

    It goes on from the folder's last checkpoint if there is one. `sizes`: how many examples clients may claim, by
    number; a client that is not in it is registered with what its node says first, and the run folder keeps that.
    """
    from fedaccord.flower.server import FlowerEngine

    settings = federation_settings(settings)
    parts, told_home, entropy = settled(parts_of(task, settings) if simulate else server_parts(*own(task, settings)))
    settings, model = parts.settings, parts.model
    model.to(find_device(settings.device))
    examples = parts.validation if parts.validation is not None else parts.test
    example = None if examples is None else parts.prepare(clone(examples[:2].inputs), None)
    settle_sizes(model, example, settings.seed)
    if example is not None:
        lay_out(model, example)
    unsuited = [*warning(settings["robust"], parts.counts), *parts.method.remarks(parts.counts)]
    remarks = [*told_home, *unsuited, *start_model(parts)]  # only here: the clients receive w_1
    travel = travel_of(model, travels_of(parts))
    keeps = bool(parts.method.slots("client") or travel.home) or settings.optimizer_state == "kept"
    fixed, measured = read_params(model, travel.fixed), [metric.name for metric in parts.metrics]
    registered = Sizes(sizes)
    engine = FlowerEngine(
        grid, experiment_of(settings), settings.deadline, settings.min_replies, keeps, fixed, measured, registered,
        settings.partial,
    )  # fmt: skip
    experiment = experiment_for(parts, engine, clients_of(settings), sizes=registered)
    experiment = replace(experiment, data=lambda: fixed.values())
    setup = setup_of(parts, experiment, "flower: a real federation", entropy, remarks)
    setup = replace(setup, by_class=partial(by_class, parts, told=engine.labels))
    opened = RunFolder(folder) if (folder / SETTINGS).is_file() else RunFolder.create(folder, settings)
    with opened as place, attached(Roster(folder)):
        registered.keep_in(folder / SIZES)
        # a server may be restarted unattended, so changed code is reported but does not stop it
        return drive(setup, place, choose_view(setup), [LogView(settings.rounds)], anyway=True)


def settled(parts: Parts) -> tuple[Parts, list[str], str]:
    """Settle all that both ends of a federation must settle alike, in the order in which a simulation does.

    That is the method's own changes of the model, what stays with each client, and the entropy term. Return the settled
    parts, and what there is to say of the last two.
    """
    parts.method.prepare(parts.model, parts.settings.values())
    parts, told_home = settle_home(parts)
    parts, entropy = settle_entropy(parts)
    return parts, told_home, entropy


def own(task: Task, settings: Settings) -> tuple[Task, Settings]:
    """Return task and settings; raise SettingsError for a preset, whose data is the same on every machine."""
    if task.name in PRESETS:
        raise SettingsError(
            f"task {task.name} is the same data set on every machine: --simulate divides it among the clients as the "
            "settings say; for a client's own data, bring a task with load_my_data (docs/deploy.md)"
        )
    return task, settings
