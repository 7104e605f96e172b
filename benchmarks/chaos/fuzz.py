"""Give a parser thousands of spoiled inputs, in this process: `python -m benchmarks.chaos.fuzz png 0 10000 folder`.

It prints a line of JSON: how many inputs there were, which of them got neither a value nor a typed error, and its peak
memory. The current input is in a file that the parent can read, so it is known even if this process dies of it.
"""

import argparse
import importlib
import json
import mmap
import random
import resource
import sys
import time
import warnings
from pathlib import Path
from typing import Any

from benchmarks.chaos.target import Target
from fedaccord.core.errors import FedAccordError

MODULES = {
    "idx": "fuzz_data", "gz": "fuzz_data", "tar": "fuzz_archives", "npz": "fuzz_archives", "png": "fuzz_pictures",
    "pictures": "fuzz_pictures", "wav": "fuzz_sounds", "safetensors": "fuzz_folder", "toml": "fuzz_folder",
    "rounds": "fuzz_folder", "checkpoints": "fuzz_notes", "notes": "fuzz_notes", "wire": "fuzz_federation",
    "keys": "fuzz_federation",
}  # fmt: skip
"""The module that has each parser's target; a process loads just one of them."""
MEMORY = 512
"""The most memory that a parser's process may take, torch included, in MiB."""
SECONDS = 5.0
"""The most processor time that a single input may take, in seconds."""
ADDRESSES = 1 << 33
"""The address space of the process in bytes; an allocation beyond it fails."""
CURRENT, ROOM = "current", 1 << 24
"""The file with the current input (its number and length in eight bytes each, then as much as fits), and its size."""


def target(name: str) -> Target:
    module: Any = importlib.import_module(f"benchmarks.chaos.{MODULES[name]}")
    found: Target = module.TARGETS[name]
    return found


def peak() -> int:
    """Return the most memory that this process has held so far, in MiB."""
    # not getrusage: its figure survives exec, so the child of a large process begins with its parent's peak
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split(maxsplit=1)[0]) // 1024


def attack(name: str, seed: int, count: int, folder: Path) -> dict[str, Any]:
    """Try `count` inputs, and return the figures; inputs not answered as promised are kept in the folder `lost`."""
    aim, inside = target(name), folder / "inside"
    inside.mkdir()
    rng = random.Random(f"{name} {seed}")
    worst = iter(aim.worst())
    lost: dict[str, str] = {}
    accepted, high, begin = 0, False, time.monotonic()
    with open(folder / CURRENT, "w+b") as file:
        file.truncate(ROOM)
        current = mmap.mmap(file.fileno(), ROOM)
    for number in range(count):
        data = next(worst, None) or aim.make(rng)
        current[16 : 16 + min(len(data), ROOM - 16)] = data[: ROOM - 16]
        current[:16] = (number + 1).to_bytes(8, "little") + len(data).to_bytes(8, "little")
        before, why = time.process_time(), ""
        try:
            accepted += aim.read(data, inside)
        except FedAccordError as error:
            if not str(error) or "\n" in str(error):
                why = f"not one line: {error!r}"[:200]
        except Exception as error:
            why = f"{type(error).__name__}: {error}"[:200]
        if (took := time.process_time() - before) > SECONDS:
            why = why or f"took {took:.1f} s"
        if not high and peak() > MEMORY:
            high, why = True, why or f"took the process to {peak()} MiB"
        if why:
            lost[keep(name, data, folder)] = why
    took = time.monotonic() - begin
    return {"tried": count, "accepted": accepted, "lost": lost, "peak": peak(), "rate": count / took}


def keep(name: str, data: bytes, folder: Path) -> str:
    """Write an input into the folder `lost`, and return the name of its file."""
    import hashlib

    (folder / "lost").mkdir(exist_ok=True)
    file = f"{name}-{hashlib.sha256(data).hexdigest()[:12]}.bin"
    (folder / "lost" / file).write_bytes(data)
    return file


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=MODULES)
    parser.add_argument("seed", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    warnings.simplefilter("ignore")
    print(json.dumps(attack(options.name, options.seed, options.count, options.folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
