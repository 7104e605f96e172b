"""Processes and processors: how many cores are usable, what kind they are, and how no process is left behind."""

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
"""Environment variables that make torch's libraries use fewer instructions than the processor has. (The effect of a
third one, ATEN_CPU_CAPABILITY, on torch itself is what torch reports as its own capability.)"""


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch compute with this many threads inside the block; another number may give other last bits."""
    import torch  # the command line must not wait for it

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@cache
def processor_kind() -> str:
    """Return what the last bits of a run depend on: architecture, processor model and the instructions in use.

    Floats are rounded after every addition, so a sum depends on its order, which torch's libraries choose by these.
    The answer stays the same for as long as the process lives: the libraries read the variables only once.
    """
    import torch  # the command line must not wait for it

    own = [f"{name}={os.environ[name]}" for name in CHOICE if os.environ.get(name)]
    return " ".join([platform.machine(), processor_model(), torch.backends.cpu.get_cpu_capability(), *own])


def processor_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the identifiers of the first processor's maker and model; virtual machines often hide its name."""
    try:
        lines = cpuinfo.read_text(errors="replace").split("\n\n")[0].splitlines()
    except OSError:  # not Linux
        return platform.processor() or "unknown"
    found = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    names = ("vendor_id", "cpu family", "model", "CPU implementer", "CPU part")  # of x86, then of ARM
    return "/".join(found[name] for name in names if name in found) or "unknown"


def die_with(parent: int) -> None:
    """Have this new process killed when its parent ends, in whatever way; exit if it has ended already (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(0)


def activity(pid: int) -> str:
    """Return counters of a process that stand still only while it does nothing; "" where the system has none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return " ".join(text.rpartition(")")[2].split()[7:13])  # page faults (also its children's) and CPU time
