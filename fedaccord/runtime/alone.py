"""Runs of a single client, as baselines of a comparison: one by itself, or one that holds all data."""

from collections.abc import Sequence

from fedaccord.config import ALL_DATA, Settings
from fedaccord.core.batches import together
from fedaccord.core.errors import SettingsError
from fedaccord.core.records import ClientData, Examples


def those_who_train(
    settings: Settings, clients: list[ClientData], everything: ClientData | None = None
) -> list[ClientData]:
    """Return all clients, or a single one if the settings say so.

    `everything`: what all clients hold together, if that is at hand.
    """
    if not settings.alone:
        return clients
    if settings.alone == ALL_DATA:
        return [pooled(clients) if everything is None else everything]
    number = int(settings.alone)
    if number >= len(clients):
        raise SettingsError(f"alone = {number}: there are {len(clients)} clients, numbered from 0 on")
    if not len(clients[number]):
        raise SettingsError(f"alone = {number}: this client has no examples")
    return [clients[number]]


def pooled(clients: Sequence[ClientData]) -> ClientData:
    """Join the data of several clients, as if it were that of one."""
    held = [client for client in clients if isinstance(client, Examples)]
    if len(held) < len(clients):
        raise SettingsError("alone = all: clients whose data is read as it is needed cannot be pooled")
    return Examples(together([each.inputs for each in held]), together([each.targets for each in held]))
