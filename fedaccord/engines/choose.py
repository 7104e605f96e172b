"""Which engine runs the clients: what was asked for, or what suits the model, the cohort and the machine."""

import sys
from dataclasses import dataclass

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
"""Weights up to which a step is mostly the cost of calling torch: stacking clients saves that."""


@dataclass(frozen=True)
class Choice:
    name: str
    engine: Engine
    why: str


def choose(wanted: str, site: Site, hyper: Hyper, cohort: int, workers: int | None = None, address: str = "") -> Choice:
    """`wanted` is an engine's name or auto; `cohort` the number of clients in a round."""
    cores = workers or usable_cores()
    processes = min(cores, cohort)
    on_cpu = next(site.model.parameters()).device.type == "cpu"
    if wanted == "auto":
        wanted, why = suitable(site, hyper, cohort, processes, on_cpu)
    else:
        why = "asked for"
    if wanted == "ray":
        try:
            from fedaccord.engines.ray import RayEngine  # a large import that only this engine needs
        except ImportError:
            raise SettingsError("engine = ray: needs Ray: pip install 'fedaccord[ray]'") from None
        return Choice("ray", RayEngine(site, workers, address), f"cluster at {address or 'this machine'}; {why}")
    if wanted == "flower":
        raise SettingsError("engine = flower: a real federation is run by `fedaccord federation`, see its --help")
    if wanted in ("pool", "stacked") and not on_cpu:
        raise SettingsError(f"engine = {wanted}: works on the CPU only; use engine = serial on a GPU")
    if wanted == "pool":
        if not can_fork():
            raise SettingsError("engine = pool: needs Linux (it forks); use engine = serial")
        return Choice("pool", PoolEngine(site, processes), f"{processes} process{'es' * (processes > 1)}; {why}")
    if wanted == "stacked":
        if reason := cannot_stack(site, hyper):
            raise SettingsError(f"engine = stacked: {reason}; use engine = auto")
        if processes > 1 and can_fork():
            return Choice(
                "stacked",
                PoolEngine(site, processes, Stacks(site)),
                f"{processes} process{'es' * (processes > 1)}; {why}",
            )
        return Choice("stacked", SerialEngine(site, Stacks(site)), why)
    return Choice("serial", SerialEngine(site), why)


def suitable(site: Site, hyper: Hyper, cohort: int, processes: int, on_cpu: bool) -> tuple[str, str]:
    weights = sum(weight.numel() for weight in site.model.parameters())
    convolutions = any(isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d) for module in site.model.modules())
    if not on_cpu:
        return "serial", "one GPU"
    if cohort >= 2 and weights <= SMALL and not convolutions and cannot_stack(site, hyper) is None:
        return "stacked", f"{weights:,} weights: small enough to train clients in stacks"
    if processes > 1 and can_fork():
        return "pool", "a process a core"
    return "serial", "one client a round" if cohort == 1 else "one core"


def can_fork() -> bool:
    """Forking is sound on Linux; elsewhere the system's own libraries do not survive it."""
    return sys.platform == "linux"
