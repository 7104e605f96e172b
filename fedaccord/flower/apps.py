"""The server and the client as Flower apps, for the stock flower-superlink, flower-supernode and flwr run."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedaccord.core.logs import logging_to
from fedaccord.flower.node import Member
from fedaccord.flower.wire import identity_record, records_of, reply_with


def server_app(main: Callable[[Grid, Mapping[str, Any]], None]) -> ServerApp:
    """Return the server as a Flower app; `main` gets the grid and the run's configuration.

    Warnings, such as which clients it waits for, go to standard error, which `flwr run --stream` shows.
    """
    app = ServerApp()

    @app.main()
    def start(grid: Grid, context: Context) -> None:
        with logging_to(quiet=True):
            main(grid, context.run_config)

    return app


def client_app(make: Callable[[Mapping[str, Any]], Member]) -> ClientApp:
    """Return a client as a Flower app; `make` gets the node's configuration.

    Flower starts a process for every message, and `make` is called in each whose message is an order.
    """
    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return reply_with(identity_record(int(context.node_config["client"])), message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)  # as everywhere that clients are trained: another number may give other last bits
        return reply_with(make(context.node_config).answer(records_of(message)), message)

    return app
