"""The choice of an engine: the one that was asked for, or the one that suits the model, the cohort and the machine."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from torch import nn

from fedaccord.client.training import Site
from fedaccord.core.errors import SettingsError
from fedaccord.core.processes import usable_cores
from fedaccord.core.protocols import Engine
from fedaccord.core.records import Hyper
from fedaccord.engines.pool import PoolEngine
from fedaccord.engines.serial import SerialEngine
from fedaccord.engines.stacked import Stacks, cannot_stack

SMALL = 500_000
"""The most weights of a model whose step is mostly the cost of calling torch: stacking clients saves that."""


@dataclass(frozen=True)
class Request:
    """What an engine is to run, and on how many processes or which cluster."""

    site: Site
    hyper: Hyper  # the first round's
    cohort: int  # clients in a round
    workers: int | None = None  # processes or actors; None: as many as there are cores
    address: str = ""  # of a Ray cluster

    @property
    def processes(self) -> int:
        return min(self.workers or usable_cores(), self.cohort)

    @property
    def on_cpu(self) -> bool:
        return next(self.site.model.parameters()).device.type == "cpu"

    @cached_property
    def unstackable(self) -> str | None:
        """Why these clients cannot be stacked, or None if they can, which takes a trial."""
        return cannot_stack(self.site, self.hyper)


@dataclass(frozen=True)
class Choice:
    name: str
    engine: Engine
    why: str


def serial(request: Request) -> tuple[Engine, str]:
    return SerialEngine(request.site), ""


def pool(request: Request) -> tuple[Engine, str]:
    needs_cpu("pool", request)
    if not can_fork():
        raise SettingsError("engine = pool: needs Linux (it forks); use engine = serial")
    return PoolEngine(request.site, request.processes), processes(request)


def stacked(request: Request) -> tuple[Engine, str]:
    needs_cpu("stacked", request)
    if request.unstackable:
        raise SettingsError(f"engine = stacked: {request.unstackable}; use engine = auto")
    stacks = Stacks(request.site)
    if request.processes > 1 and can_fork():
        return PoolEngine(request.site, request.processes, stacks), processes(request)
    return SerialEngine(request.site, stacks), ""


def ray(request: Request) -> tuple[Engine, str]:
    try:
        from fedaccord.engines.ray import RayEngine  # a large import that only this engine needs
    except ImportError:
        raise SettingsError("engine = ray: needs Ray: pip install 'fedaccord[ray]'") from None
    engine = RayEngine(request.site, request.workers, request.address)
    return engine, f"cluster at {request.address or 'this machine'}"


def flower(request: Request) -> tuple[Engine, str]:
    raise SettingsError("engine = flower: a real federation is run by `fedaccord federation`, see its --help")


ENGINES: dict[str, Callable[[Request], tuple[Engine, str]]] = {
    "serial": serial,
    "pool": pool,
    "stacked": stacked,
    "ray": ray,
    "flower": flower,
}
"""Name -> a function that makes the engine and says a few words about it. To add an engine, add it here."""


def choose(wanted: str, request: Request) -> Choice:
    """Make the engine of this name, or for 'auto' the one that suits; raise SettingsError if it cannot be made."""
    name, why = suitable(request) if wanted == "auto" else (wanted, "asked for")
    if name not in ENGINES:
        raise SettingsError(f"engine = {name!r}: expected auto, {', '.join(ENGINES)}")
    engine, how = ENGINES[name](request)
    return Choice(name, engine, f"{how}; {why}" if how else why)


def suitable(request: Request) -> tuple[str, str]:
    """Return the name of the engine that suits the request, and why it does."""
    site = request.site
    weights = sum(weight.numel() for weight in site.model.parameters())
    # these have fast calls of their own, which vectorising would take apart
    fast = any(isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.RNNBase) for module in site.model.modules())
    if not request.on_cpu:
        return "serial", "one GPU"
    small = weights <= SMALL and not fast
    if request.cohort >= 2 and small and request.unstackable is None:
        return "stacked", f"{weights:,} weights: small enough to train clients in stacks"
    if request.processes > 1 and can_fork():
        return "pool", "one process per core"
    if request.cohort == 1:
        return "serial", "one client per round"
    return "serial", "one core" if request.processes == 1 else "this system cannot fork processes"


def processes(request: Request) -> str:
    return f"{request.processes} process{'es' * (request.processes > 1)}"


def needs_cpu(name: str, request: Request) -> None:
    if not request.on_cpu:
        raise SettingsError(f"engine = {name}: works on the CPU only; use engine = serial on a GPU")


def can_fork() -> bool:
    """Return whether forking is sound: it is on Linux; elsewhere the system's own libraries do not survive it."""
    return sys.platform == "linux"
