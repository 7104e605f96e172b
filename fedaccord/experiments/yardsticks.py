"""The two yardsticks of a comparison, as runs of one client: `central` holds all data, `local` is each client alone.

Both make as many client steps in all as the federation does, each of a mini-batch of the same size: that is the same
work, and an example is seen as often. So the central model makes the steps of the whole cohort one after the other
(with only as many as one client makes in the federation, it would see a fraction of the data), and a client that is
alone makes those that it would make in the federation. Network, start, loss, optimizer, rates, the server's set and
the test set are the federation's; the method is plain FA, where averaging one client changes nothing. They have no use
for what the server does about absent, lying or curious parties (`FEDERATED`): there is nobody else.
"""

from collections.abc import Iterator
from dataclasses import replace

from fedaccord.config import ALL_DATA, Settings, make, table
from fedaccord.core.cohorts import cohort_size
from fedaccord.core.errors import SettingsError
from fedaccord.methods.registry import find

CENTRAL, LOCAL = "central", "local"
YARDSTICKS = (CENTRAL, LOCAL)
PLAIN = "FA"
FEDERATED = ("min_replies", "clip_norm", "robust", "dp_noise", "server_lr")
"""Settings of a federation's server, which have their defaults for a single client."""


def trained_by(column: str) -> str:
    """Return the method with which a column's runs are trained."""
    return PLAIN if column in YARDSTICKS else column


def name_of(column: str) -> str:
    """Return the name of a column in a table."""
    return column if column in YARDSTICKS else find(column).name


def runs_of(column: str, settings: Settings) -> Iterator[tuple[str, Settings, float]]:
    """Yield the runs behind one figure of a column: what to add to a run's name, its settings, and a round's cost.

    The cost is relative to that of a round of the federation with as many steps.
    """
    if column not in YARDSTICKS:
        yield "", settings, 1.0
        return
    clients = count_of(column, settings)
    cohort = cohort_size(clients, settings.fraction)
    rounds = max(1, round(settings.rounds * cohort / clients))
    cost = 1 / (clients * settings.fraction)
    settings = make(settings.values(), {name: table()[name].default for name in FEDERATED})
    decays = {name: settings[name] ** (settings.rounds / rounds) for name in ("lr_decay", "steps_decay")}
    shorter = replace(settings, rounds=rounds, **decays)  # each round stands for several of the federation's
    if column == LOCAL:
        for client in range(clients):
            yield f"-client{client}", replace(shorter, alone=str(client)), cost
    elif settings.epochs:  # passes over all data, while a cohort makes them over its own part only
        yield "", replace(shorter, alone=ALL_DATA), clients * cost
    else:
        yield "", replace(settings, alone=ALL_DATA, steps=settings.steps * cohort), cost


def count_of(column: str, settings: Settings) -> int:
    """Return the number of clients before the data is loaded; raise SettingsError if only the data would tell it."""
    if settings.clients is None and settings.split == "natural":
        raise SettingsError(f"{column}: say how many clients there are, such as --set clients=20")
    return 10 if settings.clients is None else settings.clients
