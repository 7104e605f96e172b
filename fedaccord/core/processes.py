"""Processes and processors: how many there is room for, of what kind they are, and that no process is left behind."""

import ctypes
import os
import platform
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

CHOICE = ("ONEDNN_MAX_CPU_ISA", "MKL_CBWR")
"""Variables that make torch's libraries use fewer instructions than the processor has. (What a third one,
ATEN_CPU_CAPABILITY, does to torch itself, torch says.)"""


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch compute with so many threads inside the block: another number may give other last bits."""
    import torch  # the command line must not wait for it

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@cache
def processor_kind() -> str:
    """Return what the last bits of a run depend on: architecture, model of the processor, instructions that are used.

    Floats are rounded after every addition, so a sum depends on its order, and torch's libraries choose that by these.
    The answer stays the same for as long as the process lives: the libraries look at the variables once.
    """
    import torch  # the command line must not wait for it

    own = [f"{name}={os.environ[name]}" for name in CHOICE if os.environ.get(name)]
    return " ".join([platform.machine(), processor_model(), torch.backends.cpu.get_cpu_capability(), *own])


def processor_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return maker and model of the first processor as numbers: names are often hidden in virtual machines."""
    try:
        lines = cpuinfo.read_text(errors="replace").split("\n\n")[0].splitlines()
    except OSError:  # not Linux
        return platform.processor() or "unknown"
    found = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    names = ("vendor_id", "cpu family", "model", "CPU implementer", "CPU part")  # of x86, then of ARM
    return "/".join(found[name] for name in names if name in found) or "unknown"


def die_with(parent: int) -> None:
    """To be called in a new process: it is killed when its parent ends, however that ended, also if it has already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(0)


def activity(pid: int) -> str:
    """Give the counters of a process that stand still only if it does nothing; "" where the system does not tell."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return " ".join(text.rpartition(")")[2].split()[7:13])  # page faults and CPU time, its own and its children's
