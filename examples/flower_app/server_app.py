"""The server. Started by `flwr run`; run it again and it goes on from the last checkpoint."""

from dataclasses import replace
from pathlib import Path

from task import CLIENTS, SETTINGS, build_model, load_server_data

from fedaccord.engines.flower import server_app
from fedaccord.federation import serve_mine


def main(grid, options) -> None:
    settings = replace(SETTINGS, rounds=int(options["rounds"]) or SETTINGS.rounds)
    serve_mine(grid, settings, build_model, CLIENTS, *load_server_data(), folder=Path(options["run"]))


app = server_app(main)
