"""The reference engine: the clients one after the other, in this process."""

import copy
from collections.abc import Iterator, Mapping
from pathlib import Path

from fedaccord.client.store import PrivateStore, fits_in_memory
from fedaccord.client.training import Site, train
from fedaccord.records import ClientUpdate, Order


class SerialEngine:
    """A loop."""

    def __init__(self, site: Site):
        self.site = site
        self.workspace = copy.deepcopy(site.model)
        self.store = PrivateStore(None, in_memory=True)

    def open(self, folder: Path | None) -> None:
        fits = fits_in_memory(len(self.site.clients), self.site.objective.private_bytes())
        self.store = PrivateStore(folder, self.site.store == "memory" or (self.site.store == "auto" and fits))

    def train(self, order: Order) -> Iterator[ClientUpdate]:
        site = self.site
        for client in order.cohort:
            if len(site.clients[client]) == 0:
                continue  # a client without data never trains
            update, private = train(site, self.workspace, order, client, self.store.get(client, order.round))
            if private is not None:
                self.store.put(client, order.round, private)
            yield update

    def expect(self, newest: Mapping[int, int]) -> None:
        self.store.expect(newest)

    def save(self) -> dict[int, int]:
        return self.store.save()

    def prune(self, committed: int) -> None:
        self.store.prune(committed)

    def close(self) -> None:
        self.store.close()
