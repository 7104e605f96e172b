"""The server. Started by `flwr run`; run it again and it goes on from the last checkpoint."""

from dataclasses import replace
from pathlib import Path

from task import task

from fedaccord.flower.apps import server_app
from fedaccord.runtime.federation import serve_task


def main(grid, options) -> None:
    settings = task.resolved()
    settings = replace(settings, rounds=int(options["rounds"]) or settings.rounds)
    serve_task(task, settings, grid, Path(options["run"]))


app = server_app(main)
