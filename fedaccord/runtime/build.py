"""Builds an Experiment that is ready to run on this machine from a task and its settings."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from fedaccord.client.optimizers import ClientOptimizer, by_name, check_settings
from fedaccord.client.side import ClientSide
from fedaccord.client.training import Site
from fedaccord.config import FIELDS, OWN, Settings
from fedaccord.core.algorithm import BEST, LAST, Experiment, Guard, Watch
from fedaccord.core.batches import clone
from fedaccord.core.cohorts import cohort_size, times_asked
from fedaccord.core.errors import SettingsError
from fedaccord.core.params import read_params
from fedaccord.core.processes import usable_cores
from fedaccord.core.protocols import CROSS_ENTROPY, Built, Engine, Method, Policy, trained_weights
from fedaccord.core.records import OPTIMIZER, ClientData, Hyper, LossFunction, Metric, Order, Packages, Params
from fedaccord.core.seeds import generator
from fedaccord.core.settings import Setting
from fedaccord.core.travel import Travel, Travels, still_modules, travel_of
from fedaccord.data.prepare import as_stored
from fedaccord.engines.choose import Request, choose
from fedaccord.methods.registry import find
from fedaccord.metrics import metrics_of
from fedaccord.objectives import bounded, classification, objective_of
from fedaccord.policy.grid import HyperGrid
from fedaccord.policy.schedule import FixedSchedule, Passes, Replay
from fedaccord.runtime.changes import code_of
from fedaccord.runtime.checks import check_alone, check_model, find_device, lay_out
from fedaccord.runtime.classes import ByClass, by_class
from fedaccord.runtime.entropy import settle_entropy
from fedaccord.runtime.folder import read_raw, read_rounds, read_settings
from fedaccord.runtime.parts import Parts, by_clients, own_travels, parts_of
from fedaccord.runtime.start import start_model
from fedaccord.server.chain import ServerChain
from fedaccord.server.evaluate import ClientLosses, Evaluator
from fedaccord.server.guard import Rules, guard, late_guard
from fedaccord.server.robust import MEAN, warning
from fedaccord.server.sizes import Sizes
from fedaccord.server.steps import SHORT
from fedaccord.server.stretch import Length, recorded, searched, unmeasured
from fedaccord.tasks import Task


@dataclass(frozen=True)
class Setup:
    """An experiment that is ready to run, and all that there is to say about it."""

    settings: Settings  # nothing left open
    method: Method
    experiment: Experiment
    model: nn.Module  # holds w_1
    engine: str  # its name, and why it was chosen
    entropy: str  # whether the entropy term is on, and why
    travel: Travel
    metrics: tuple[Metric, ...] = ()  # what is measured on the test set
    counts: np.ndarray | None = None  # examples by client and class
    classes: tuple[str, ...] = ()
    remarks: list[str] = field(default_factory=list)  # what a person should know before the first round
    by_class: Callable[..., ByClass | None] = lambda *_: None  # (round, params) -> labels and results by class
    code: dict[str, str] = field(default_factory=dict)  # hashes that tell after a resume whether code has changed

    @property
    def params(self) -> Params:
        """w_1: the tensors of the model that travel."""
        return read_params(self.model, self.travel.names)


def from_task(task: Task, settings: Settings) -> Setup:
    """Build a simulation of a task, whose data is gathered here and divided as the settings say."""
    return simulation_of(parts_of(task, settings))


def simulation_of(parts: Parts) -> Setup:
    """Build server and clients on this machine, with the engine that suits them or was asked for."""
    parts.method.prepare(parts.model, parts.settings.values())
    parts, told_home = settle_home(parts)
    site = site_of(parts, [each for each in (parts.validation, parts.test) if each is not None])
    parts, entropy = settle_entropy(parts)
    site = replace(site, measure=measure_of(parts))
    settings, clients = parts.settings, parts.clients
    unsuited = [*warning(settings["robust"], parts.counts), *parts.method.remarks(parts.counts)]
    remarks = [*told_home, *unsuited, *start_model(parts)]
    start_at_home(site)
    cohort = cohort_size(len(clients), settings.fraction)
    fixed = travel_of(parts.model, travels_of(parts)).fixed
    first = hyper_of(settings, parts.method)
    engine = choose(settings.engine, Request(site, first, cohort, settings.workers, settings.address))
    sizes = Sizes({number: len(own) for number, own in enumerate(site.clients)})
    cores = 1 if engine.name == "serial" else settings.workers or usable_cores()
    experiment = replace(
        experiment_for(parts, engine.engine, len(clients), cores, sizes),
        total_examples=sum(map(len, site.clients)) if settings.weighting == "population" else None,
        data=lambda: (*read_params(parts.model, fixed).values(), *marks_of(clients)),
    )
    told = f"{engine.name}: {engine.why}"
    resolved = replace(settings, engine=engine.name)
    return setup_of(replace(parts, settings=resolved), experiment, told, entropy, remarks)


def marks_of(clients: Sequence[ClientData]) -> Iterator[torch.Tensor]:
    """Yield the tensors by which the clients' data is recognised after a resume."""
    return (tensor for client in clients for tensor in client.marks())


def setup_of(parts: Parts, experiment: Experiment, told: str, entropy: str, remarks: list[str]) -> Setup:
    """Join an experiment with all that there is to say about it.

    `told`: which engine runs the clients, and why; `remarks`: what a person should know before the first round.
    """
    return Setup(
        parts.settings,
        parts.method,
        experiment,
        parts.model,
        told,
        entropy,
        travel_of(parts.model, travels_of(parts)),
        parts.metrics if experiment.metrics is not None or experiment.clients_test else (),
        parts.counts,
        parts.classes,
        remarks,
        partial(by_class, parts),
        code_of(parts.settings, parts.model, parts.loss),
    )


def site_of(parts: Parts, others: Sequence[ClientData] = ()) -> Site:
    """Build the Site that runs these clients, and bring the model into the form in which it runs best."""
    settings, model, clients, prepare = parts.settings, parts.model, parts.clients, parts.prepare
    other = next((part.name for part in parts.method.parts if part.replaces == CROSS_ENTROPY), None)
    if other and parts.loss is not None:
        raise SettingsError(f"{other} replaces {CROSS_ENTROPY}, and this task has a loss of its own")
    device = find_device(settings.device)
    model.to(device)
    check_model(model, clients, others, prepare, parts.loss, device, settings.seed)
    two = next(client[:2] for client in clients if len(client)).to(device)
    example = prepare(clone(two.inputs), None)
    lay_out(model, example)
    travel = travel_of(model, travels_of(parts))
    trained, tests = held_back(clients, settings.client_test, settings.seed)
    check_alone(model, trained, settings.batch_size, prepare, device)
    tuned = frozenset(parts.method.tunes(settings.values()))
    site = Site(
        model,
        ClientSide(parts.method, Built(model, example, settings.values(), travel, tuned)),
        [client.to(device) for client in trained],
        prepare,
        objective_of(parts.loss),
        measure_of(parts),
        settings.seed,
        prepare is as_stored,
        optimizer_of(parts),
        settings.store,
        travel,
        read_params(model, travel.home | (travel.fixed - dict(model.named_parameters()).keys())),
        still_modules(model, travel),
        [client.to(device) for client in tests],
        parts.metrics,
        {name: value.clone() for name, value in model.named_buffers() if name not in model.state_dict()},
        settings.threads,
    )
    site.method.settings = sendable(parts.method)
    site.method.kept.update(site.kept_at_home(model))
    site.method.kept.update(optimizer_state(site, hyper_of(settings, parts.method)))
    return site


def held_back(
    clients: Sequence[ClientData], share: float, seed: int
) -> tuple[Sequence[ClientData], Sequence[ClientData]]:
    """Split each client's data into what it trains on and what it measures the metrics on.

    A client with a single example trains on it.
    """
    if not share:
        return clients, ()
    pairs = []
    for number, client in enumerate(clients):
        order = torch.randperm(len(client), generator=generator(seed, "client-test", 0, number)).numpy()
        cut = min(len(client) - 1, max(1, round(share * len(client)))) if len(client) > 1 else 0
        pairs.append((client.part(np.sort(order[cut:])), client.part(np.sort(order[:cut]))))
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def settle_home(parts: Parts) -> tuple[Parts, list[str]]:
    """Let the clients measure everything if a part of the model is each client's own, since nobody else can.

    Return the parts for that, and what to tell the user.
    """
    home = travel_of(parts.model, travels_of(parts)).home
    if not home:
        return parts, []
    settings = by_clients(parts.settings)
    given = " (sets of the server's are not used)" if parts.validation is not None or parts.test is not None else ""
    stay = "1 of the model's tensors stays" if len(home) == 1 else f"{len(home)} of the model's tensors stay"
    told = (
        f"{stay} with each client: so the clients measure the loss, and the metrics "
        f"on {settings.client_test:.0%} of their data, each with its own part{given}; the model that is handed out has "
        "that part as it started, fedaccord.load(run, client=0) has a client's"
    )
    return replace(parts, settings=settings, validation=None, test=None), [told]


def start_at_home(site: Site) -> None:
    """Let the clients' own part of the model start with the model's first weights, once they are drawn."""
    site.stays.update(read_params(site.model, site.stays))


def optimizer_of(parts: Parts) -> ClientOptimizer:
    """Return the optimizer that the clients step with: the task's own function, or the one that the settings name."""
    settings = parts.settings
    own = parts.optimizer if settings.optimizer == OWN else None
    make = own or by_name(settings.optimizer)
    tuned = parts.method.tunes(settings.values())
    momentum = 1.0 if "momentum" in tuned else settings.momentum
    decay = 1.0 if "weight_decay" in tuned else settings.weight_decay
    check_settings(make, momentum, settings.nesterov, decay)
    return ClientOptimizer(make, settings.nesterov, settings.optimizer_state == "kept")


def optimizer_state(site: Site, hyper: Hyper) -> Packages:
    """Return tensors like those that a client keeps of its optimizer's state, or none if it keeps none."""
    if not site.optimizer.keep:
        return {}
    order = Order(0, (), read_params(site.model, site.names), hyper, down=site.method.down)
    work = site.method.begin(site.objective, site.model, order, hyper, 0, site.seed, {}, site.clients[0])
    beside = [weight for part in work.trained for weight in trained_weights(part).values()]
    own, home = site.trained(site.model)
    return site.optimizer.template([*own.values(), *home.values()], beside, hyper)


def travels_of(parts: Parts) -> Travels:
    """Return the rule for which of the model's tensors travel: the task's own predicate, or what the settings say."""
    return own_travels(parts.travels, parts.settings)


def known_sizes(sizes: Sizes | None, clients: int) -> Mapping[int, int] | None:
    """Return how many examples each client has, or None if that is not known of all."""
    return sizes.known if sizes is not None and sizes.known.keys() >= set(range(clients)) else None


def guard_of(parts: Parts, everyone: bool) -> Guard:
    """Build the guard, which decides what becomes of a round."""
    settings, (method, chosen) = parts.settings, choosing(parts)
    rules = Rules(
        guards=settings.guards,
        minimum=settings.min_replies,
        everyone=everyone,
        tuned="lr" in method.tunes(chosen.values()),
        follows=method.follows(chosen.values()),
    )
    length = length_of(parts, everyone)
    if parts.validation is None:
        return late_guard(rules, length)
    return guard(rules, SHORT if settings["average"] else LAST, length)


def experiment_for(
    parts: Parts, engine: Engine, clients: int, cores: int = 1, sizes: Sizes | None = None
) -> Experiment:
    """Build the server's side: how it chooses hyper-parameters, what it makes of updates, and how it measures a model.

    `sizes`: how many examples each client trains on, as far as the server knows.
    """
    settings, model, validation = parts.settings, parts.model, parts.validation
    size = cohort_size(clients, settings.fraction)
    if settings.min_replies > size:
        raise SettingsError(f"min_replies = {settings.min_replies}, but only {size} clients train in a round")
    device = next(model.parameters()).device
    travel = travel_of(model, travels_of(parts))
    # A liar raises the loss in every round, as clients do whose turn it is not: no round is mended or cut for that.
    everyone = size == clients and settings["robust"] == MEAN
    evaluator = tested = None
    watched = watched_metric(parts)
    if validation is not None:
        wanted = [] if watched is None else [watched]
        measure = measure_of(parts, trusting=settings["robust"] == MEAN)
        evaluator = Evaluator(model, validation.to(device), parts.prepare, measure, wanted, cores)
    if parts.test is not None and parts.metrics:
        tested = Evaluator(model, parts.test.to(device), parts.prepare, None, parts.metrics, cores)
    asked = times_asked(clients, settings.fraction, settings.seed, settings.cohorts == "passes")
    return Experiment(
        engine=engine,
        policy=policy_of(settings, parts.method, known_sizes(sizes, clients)),
        server=ServerChain(parts.method, model, settings.values(), clients, travel, sizes, asked),
        loss=ClientLosses(robust=settings.reports == "median") if evaluator is None else evaluator.loss,
        guard=guard_of(parts, everyone),
        metrics=None if tested is None else tested.metrics,
        clients=clients,
        rounds=settings.rounds,
        fraction=settings.fraction,
        passes=settings.cohorts == "passes",
        seed=settings.seed,
        test_every=settings.test_every,
        clients_report=validation is None,
        paired=settings.paired and validation is None,
        clients_test=settings.client_test > 0,
        own_parts=bool(travel.home),
        watch=watch_of(settings, watched, evaluator),
    )


def watched_metric(parts: Parts) -> Metric | None:
    """Return the metric by which the best model is chosen; None if that is the loss, or no best model is kept."""
    keep = parts.settings.keep
    if keep in (LAST, BEST):
        return None
    try:
        return metrics_of(keep, parts.loss, known=parts.metrics)[0]
    except SettingsError as error:
        raise SettingsError(f"keep = {keep}: expected last, best or a metric: {error}") from None


def watch_of(settings: Settings, metric: Metric | None, evaluator: Evaluator | None) -> Watch | None:
    """Return how the best model is chosen and how long a run waits for a better one; None if neither is asked for."""
    if settings.keep == LAST and not settings.patience:
        return None
    if evaluator is None:
        asked = f"patience = {settings.patience}" if settings.keep == LAST else f"keep = {settings.keep}"
        raise SettingsError(
            f"{asked}: goes by the server's set, and there is none; give it one (evaluate = server; for federate: "
            "validation=...)"
        )
    if metric is None:
        return Watch(settings.patience, settings.keep == BEST)
    return Watch(settings.patience, True, lambda params: evaluator.metrics(params).get(metric.name), metric.higher)


def length_of(parts: Parts, everyone: bool) -> Length | None:
    """Return what chooses the length of the server's step along the clients' mean step; None: just that step.

    To search for it takes the running mean, since by the loss of the last model it would be greedy, and a set of the
    server's, without which the norms of the clients' steps must do. Unless `everyone` trains in every round, a cohort
    may raise the loss only because clients differ, so its step is not shortened for that.
    """
    settings = parts.settings
    if settings.replay:
        lengths = [line.get("stretch") for line in read_rounds(Path(settings.replay))]
        return recorded(lengths) if any(each is not None for each in lengths) else None
    if not parts.method.stretches(settings.values()) or not settings["average"]:
        return None
    return unmeasured if parts.validation is None else searched(0.5 if everyone else 1.0)


def choosing(parts: Parts) -> tuple[Method, Settings]:
    """Return the method that chooses the hyper-parameters, and its settings; in a replay, those of the original run."""
    if parts.settings.replay:
        path = Path(parts.settings.replay)
        read_raw(path)  # raises an error if its settings are damaged
        with contextlib.suppress(SettingsError):  # a user's own method, which no name finds
            settings = read_settings(path)
            return find(settings.method), settings
    return parts.method, parts.settings


def measure_of(parts: Parts, trusting: bool = True) -> LossFunction:
    """Return the loss that L_t is measured by: the clients' own, with the settings' entropy term even if it is tuned.

    `trusting`: no client is expected to unlearn a class in order to spoil it. A user's own loss is taken as it is.
    """
    # PAPER (line 15): "the loss of the aggregate model". HERE: with the entropy term. WHY: without it a model that is
    # just more sure of itself has a smaller loss, and the reward is mostly noise; see docs/deviations.md.
    if parts.loss is not None:
        return parts.loss
    hyper = hyper_of(parts.settings, parts.method)
    plain = parts.settings.yardstick == "cross-entropy"
    measure = classification if trusting else bounded
    return partial(measure, hyper=hyper.but({"entropy_weight": 0.0}) if plain else hyper)


def policy_of(settings: Settings, method: Method, sizes: Mapping[int, int] | None = None) -> Policy:
    """Return the policy for the hyper-parameters: a replay, the method's own, or the settings' fixed schedule."""
    first = hyper_of(settings, method)
    if settings.replay:
        lines = list(read_rounds(Path(settings.replay)))
        if not lines:
            raise SettingsError(f"replay = {settings.replay}: that run has no rounds yet")
        own = ({int(n): c["hyper"] for n, c in line["clients"].items() if "hyper" in c} for line in lines)
        return Replay(first, recorded=tuple(line["hyper"] for line in lines), each=tuple(own))
    policy = method.policy(first, settings.values(), FixedSchedule(first, settings.lr_decay, settings.steps_decay))
    if tuned := method.tunes(settings.values()):
        HyperGrid.parse(settings.grid).obey({name: each for name, each in sendable(method).items() if name in tuned})
    if not settings.epochs:
        return policy
    if "steps" in method.tunes(settings.values()):
        raise SettingsError(
            f"epochs = {settings.epochs:g}: {method.name} chooses steps itself; take steps out of its grid, or "
            "epochs out of the settings"
        )
    if sizes is None:
        raise SettingsError(
            f"epochs = {settings.epochs:g}: in a real federation the server does not know how many examples its "
            "clients have; set steps, or state them all: --examples CLIENT=N"
        )
    return Passes(policy, settings.epochs, sizes, settings.steps_decay)


def sendable(method: Method) -> dict[str, Setting]:
    """Return the settings that are hyper-parameters: they reach the clients, and a policy may choose them."""
    brought = {**FIELDS, **method.settings}
    return {name: each for name, each in brought.items() if each.hyper or name in OPTIMIZER}


def hyper_of(settings: Settings, method: Method) -> Hyper:
    """Return the hyper-parameters with the values that the settings give them."""
    own = {name: settings[name] for name in sendable(method) if name not in OPTIMIZER}
    return Hyper(**{name: settings[name] for name in OPTIMIZER}, own=own)
