"""Benchmarks of speed, as ratios: each repeat measures everything once, in turn, and the median over repeats counts.

shares    useful FLOP/s of whole rounds as a share of this machine's matrix-product peak, and against a bare loop
methods   the paper's run-time table: 30 mini-batches of one client with each method
rounds    whole rounds of every method there is: time and bytes
scaling   10 to 10,000 clients: time per client-round, memory, start-up
"""

import contextlib
import copy
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy, log_softmax
from torch.utils.flop_counter import FlopCounterMode

from fedaccord import config
from fedaccord.client.training import minibatches, train
from fedaccord.core import algorithm
from fedaccord.core.params import read_params
from fedaccord.core.processes import usable_cores
from fedaccord.core.records import Hyper, Observation, Order, Params
from fedaccord.core.seeds import generator
from fedaccord.experiments import field
from fedaccord.experiments.scaling import scaling
from fedaccord.methods.registry import find
from fedaccord.objectives import default_entropy_min
from fedaccord.report.paper import METHODS
from fedaccord.runtime.build import Setup, from_task, hyper_of
from fedaccord.tasks import find_task

PLAIN = METHODS[0]
"""The method that all others are compared with."""

STEPS = {"digits": 50, "mnist": 50, "cifar10": 10, "kws": 5}
"""Steps of a client in a measured round, as many as in training: its fixed cost per round then has its usual weight."""
Measures = dict[str, list[float]]


def machine() -> dict[str, Any]:
    """Return what the figures depend on: processor, cores, memory, load, and the versions of Python and torch."""
    return {
        "processor": processor_name(),
        "cores": usable_cores(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def processor_name() -> str:
    """Return the processor's name as Linux gives it, or what there is elsewhere."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()


def seconds(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def in_turn(works: dict[str, Callable[[], float]], repeats: int, say: Callable[[str], None]) -> Measures:
    """Run each work once per repeat, in turn, and return the seconds that it reports, by its name."""
    found: Measures = {name: [] for name in works}
    for repeat in range(repeats):
        for name, work in works.items():
            found[name].append(work())
        say(f"repeat {repeat + 1} of {repeats}")
    return found


def peak(threads: int, size: int = 2048) -> float:
    """Return the FLOP/s of a product of two square float32 matrices, the best of three."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        a, b, c = torch.randn(size, size), torch.randn(size, size), torch.empty(size, size)
        torch.mm(a, b, out=c)
        best = min(seconds(lambda: torch.mm(a, b, out=c)) for _ in range(3))
    finally:
        torch.set_num_threads(before)
    return 2 * size**3 / best


def prepared(task_name: str, method: str, **settings: Any) -> Setup:
    task = find_task(task_name)
    split = settings.pop("split", "iid")
    return from_task(
        task,
        config.make(task.defaults(split), {"task": task_name, "split": split, "method": method}, settings),
    )


def tunes(method: str) -> bool:
    """Return whether the server tunes hyper-parameters in this method."""
    return bool(find(method).tunes(config.make({"method": method}).values()))


def step_flops(setup: Setup) -> int:
    """Return the FLOPs of one mini-batch: forward, backward and what the method adds.

    They are as torch counts them: those of products and convolutions.
    """
    site = setup.experiment.engine.site  # type: ignore[attr-defined]
    hyper = replace(hyper_of(setup.settings, setup.method), steps=1)
    order = Order(1, (0,), read_params(site.model), hyper)
    with FlopCounterMode(display=False) as counter:
        train(site, copy.deepcopy(site.model), order, 0, {})
    return int(counter.get_total_flops())


def round_of(setup: Setup, steps: int) -> Callable[[], float]:
    """Return a function that runs a round of all clients, training and averaging, and returns its seconds.

    A first round, which is not counted, starts the workers.
    """
    engine, server = setup.experiment.engine, setup.experiment.server
    engine.open(None)
    model = server.start(setup.params)
    hyper = replace(hyper_of(setup.settings, setup.method), steps=steps)
    cohort = tuple(range(setup.experiment.clients))
    number = iter(range(1, 10**9))

    def run() -> float:
        order = Order(next(number), cohort, model.params, hyper, down=server.to_send(model))
        return seconds(lambda: server.aggregate(order.round, model, engine.train(order), hyper, None, order.cohort, {}))

    run()
    return run


def bare_loop(setup: Setup, steps: int, threads: int) -> Callable[[], float]:
    """Return a function that runs a round in plain PyTorch, as one would write it, and returns its seconds.

    It has the clients and mini-batches of the setup, and uses torch.optim.SGD, autograd and a mean.
    """
    site = setup.experiment.engine.site  # type: ignore[attr-defined]
    hyper = replace(hyper_of(setup.settings, setup.method), steps=steps)
    task = find_task(setup.settings.task)
    model = task.build_model(setup.settings.width)
    start = setup.params

    def run() -> float:
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            return seconds(lambda: plain_round(model, site, start, hyper))
        finally:
            torch.set_num_threads(before)

    run()
    return run


def plain_round(model: nn.Module, site: Any, start: Params, hyper: Hyper) -> Params:
    total = sum(len(client) for client in site.clients)
    mean = {name: torch.zeros_like(value) for name, value in start.items()}
    for number, client in enumerate(site.clients):
        model.load_state_dict(start)
        optimiser = torch.optim.SGD(model.parameters(), lr=hyper.lr)
        draw = generator(site.seed, "augment", 1, number)
        for index in minibatches(site, Order(1, (number,), start, hyper), number):
            optimiser.zero_grad()
            logits = model(site.prepare(client.inputs[index], draw).contiguous())  # torch's default memory format
            log_p = log_softmax(logits, dim=1)
            entropy = -(log_p.exp() * log_p).sum(dim=1)
            loss = cross_entropy(logits, client.targets[index])
            lowest = default_entropy_min(logits.shape[1])
            loss = loss + hyper["entropy_weight"] * torch.clamp(lowest - entropy, min=0).mean()
            loss.backward()
            optimiser.step()
        for name, value in model.state_dict().items():
            mean[name] += value * (len(client) / total)
    return mean


def shares(tasks: Sequence[str], repeats: int, workers: int | None, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure, by task, each method's share of the peak, and how much faster FA is than a bare loop on all cores."""
    cores = usable_cores()
    result: dict[str, Any] = {}
    for task in tasks:
        works: dict[str, Callable[[], float]] = {"peak": lambda: peak(cores)}
        flops, engines, opened = {}, {}, []
        for method in sorted((name for name in METHODS if not tunes(name)), key=len):
            setup = prepared(task, method, workers=workers)
            flops[method] = step_flops(setup)
            engines[method] = setup.engine
            works[method] = round_of(setup, STEPS[task])
            opened.append(setup)
        works["bare loop"] = bare_loop(opened[0], STEPS[task], cores)
        say(f"{task}: engine {engines[PLAIN]}")
        found = in_turn(works, repeats, lambda text, task=task: say(f"{task}: {text}"))  # type: ignore[misc]
        for setup in opened:
            setup.experiment.engine.close()
        work = 10 * STEPS[task]
        of_peak = {
            method: [flops[method] * work / (s * p) for s, p in zip(found[method], found["peak"], strict=True)]
            for method in flops
        }
        bare = [flops[PLAIN] * work / (s * p) for s, p in zip(found["bare loop"], found["peak"], strict=True)]
        result[task] = {
            "engine": engines[PLAIN],
            "peak_gflops": round(statistics.median(found["peak"]) / 1e9, 1),
            "flops_a_step": flops,
            "ms_a_client_step": {name: median(found[name], 1e3 / work) for name in (*flops, "bare loop")},
            "share_of_peak": {name: median(values) for name, values in (*of_peak.items(), ("bare loop", bare))},
            "times_the_bare_loop": median([b / a for a, b in zip(found[PLAIN], found["bare loop"], strict=True)]),
            "times_the_plain": {
                method: median([a / b for a, b in zip(found[method], found[PLAIN], strict=True)]) for method in flops
            },
            "times_the_plain_in_flops": {method: round(flops[method] / flops[PLAIN], 3) for method in flops},
        }
    return result


def methods(tasks: Sequence[str], repeats: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure the paper's run-time table: 30 mini-batches of one client with each method, as ratios to FA.

    All as printed: RM matches whole mini-batches, and with AH the time of a round's tuning counts too.
    """
    result: dict[str, Any] = {}
    for task in tasks:
        works = {m: one_client(prepared(task, m, engine="serial", **config.printed(find(m)))) for m in METHODS}
        found = in_turn(works, repeats, lambda text, task=task: say(f"{task}: {text}"))  # type: ignore[misc]
        result[task] = {
            method: {
                "seconds": median(found[method]),
                "deviation": float(f"{statistics.pstdev(found[method]):.2g}"),
                "to_FA": median([a / b for a, b in zip(found[method], found[PLAIN], strict=True)]),
            }
            for method in METHODS
        }
    return result


def one_client(setup: Setup, steps: int = 30) -> Callable[[], float]:
    """Return a function that runs mini-batches of client 0 and a round's tuning, and returns their seconds.

    Tuning costs the server a draw, a loss and a step of psi.
    """
    experiment = setup.experiment
    site = experiment.engine.site  # type: ignore[attr-defined]
    model, params = copy.deepcopy(site.model), setup.params
    order = Order(1, (0,), params, replace(hyper_of(setup.settings, setup.method), steps=steps))
    first = replace(order, hyper=replace(order.hyper, steps=1))
    _, kept = train(site, model, first, 0, {})
    tuned = tunes(setup.settings.method)
    nothing = Observation(1, 0.0, True, 1.0, {}, {}, None, 0.0, None, None, None, None, 0.0, None, 0, {})

    def tune() -> None:
        _, psi = experiment.policy.propose(experiment.policy.start(), 1, (0,), torch.Generator())
        experiment.loss(params, [])
        experiment.policy.learn(psi, nothing)

    def run() -> float:
        train(site, model, first, 0, kept)  # so that no method pays for the memory that the one before touched
        spent = seconds(lambda: train(site, model, order, 0, kept))
        return spent + (seconds(tune) if tuned else 0.0)

    return run


def rounds(tasks: Sequence[str], repeats: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure the time and bytes of whole rounds of ten clients on one core with every method, as ratios to FA's.

    Tuning is included. All methods make the same number of steps, so policies choose the learning rate alone: what is
    compared is the cost of a round.
    """
    result: dict[str, Any] = {}
    for task in tasks:
        sent: dict[str, int] = {}
        every = (*field.METHODS, *(name for name in METHODS if name not in field.METHODS))
        same = {"workers": 1, "steps": STEPS[task], "steps_decay": 1.0, "grid": "lr = 0.001..1/25 log"}
        works = {method: whole_round(prepared(task, method, **same), sent) for method in every}
        found = in_turn(works, repeats, lambda text, task=task: say(f"{task}: {text}"))  # type: ignore[misc]
        result[task] = {
            method: {
                "seconds": median(found[method]),
                "to_FA": median([a / b for a, b in zip(found[method], found[PLAIN], strict=True)]),
                "bytes": sent[method],
                "bytes_to_FA": round(sent[method] / sent[PLAIN], 4),
            }
            for method in every
        }
    return result


def whole_round(setup: Setup, sent: dict[str, int]) -> Callable[[], float]:
    """Return a function that makes a run's next round, untested, returns its seconds and notes its bytes in `sent`.

    A first round, which is not counted, warms up.
    """
    experiment = replace(setup.experiment, rounds=10**9, test_every=10**9)
    experiment.engine.open(None)
    state = algorithm.start(experiment, setup.params)

    def run() -> float:
        nonlocal state
        state, log = algorithm.run_round(experiment, state)
        sent[setup.settings.method] = log.bytes
        return sum(log.seconds.values())

    run()
    return run


def median(values: Sequence[float], factor: float = 1.0) -> float:
    return float(f"{statistics.median(values) * factor:.4g}")


PARTS = ("shares", "methods", "rounds", "scaling")


def run(
    parts: Sequence[str], tasks: Sequence[str], repeats: int, workers: int | None, say: Callable[[str], None]
) -> dict[str, Any]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a run; a benchmark that uses more sets them itself
    try:
        found: dict[str, Any] = {"machine": machine(), "repeats": repeats}
        if "shares" in parts:
            found["shares"] = shares(tasks, repeats, workers, say)
        if "methods" in parts:
            found["methods"] = methods(tasks, repeats, say)
        if "rounds" in parts:
            found["rounds"] = rounds(tasks, repeats, say)
        if "scaling" in parts:
            found["scaling"] = scaling(say)
    finally:
        torch.set_num_threads(before)
    return found
