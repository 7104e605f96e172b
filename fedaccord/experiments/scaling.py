"""Benchmark with 10 to 10,000 clients: the time per client-round, the memory of all processes, the time to start."""

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fedaccord.core.errors import RunError
from fedaccord.core.seeds import generator
from fedaccord.tasks import find_task


def scaling(say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Measure each number of clients in a process of its own, so that memory and start-up are its own."""
    found = []
    for clients, cohort in ((10, 10), (100, 10), (1000, 10), (10_000, 10), (10_000, 100)):
        say(f"{clients:,} clients, {cohort} per round")
        command = [
            sys.executable,
            "-c",
            f"from fedaccord.experiments.scaling import one_size; one_size({clients}, {cohort})",
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            why = done.stderr.strip().splitlines()[-1:] or [f"it ended with status {done.returncode}"]
            raise RunError(f"bench scaling: {clients:,} clients: {why[0]}")
        found.append(json.loads(done.stdout.splitlines()[-1]))
    for entry in found:
        entry["to_10_clients"] = round(entry["ms_a_client_round"] / found[0]["ms_a_client_round"], 2)
    return found


def one_size(clients: int, cohort: int, rounds: int = 60) -> None:
    """Train MNIST's network on 60 examples per client and print the measurements as one JSON line.

    The examples are made up: only what training costs matters here.
    """
    from fedaccord.api import federate

    g = generator(0, "bench")
    inputs, targets = torch.randn(60 * clients, 784, generator=g), torch.randint(0, 10, (60 * clients,), generator=g)
    data = [(inputs[60 * n : 60 * n + 60], targets[60 * n : 60 * n + 60]) for n in range(clients)]
    model = find_task("mnist").build_model(0)
    sizes = [0]
    threading.Thread(target=watch_memory, args=(sizes,), daemon=True).start()
    begin = time.perf_counter()
    held, share = (inputs[:640], targets[:640]), cohort / clients
    history = federate(model, data, held, method="FA", rounds=rounds, fraction=share, steps=10)
    whole = time.perf_counter() - begin
    rounds_took = [sum(log.seconds.values()) for log in history.rounds]
    print(
        json.dumps(
            {
                "clients": clients,
                "cohort": cohort,
                "engine": history.settings.engine,
                "ms_a_client_round": round(1e3 * statistics.median(rounds_took[2:]) / cohort, 3),
                "start_up_s": round(whole - sum(rounds_took) + rounds_took[0], 2),
                "peak_gib": round(max(sizes) / 2**30, 2),
                "data_gib": round(inputs.numel() * 4 / 2**30, 2),
            }
        )
    )


def watch_memory(sizes: list[int]) -> None:
    """Append the memory of this process and its workers to `sizes`, again and again; shared memory counts once."""
    while True:
        me = os.getpid()
        children = Path(f"/proc/{me}/task/{me}/children").read_text().split()
        sizes.append(sum(held_by(number) for number in (str(me), *children)))
        time.sleep(0.5)  # reading the sizes slows the watched processes a little


def held_by(process: str) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    except (OSError, StopIteration):
        return 0
