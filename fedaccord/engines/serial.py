"""The reference engine: the clients one after the other, in this process."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from fedaccord.client.store import ClientStore, open_store
from fedaccord.client.training import OneByOne, Site, Trainer
from fedaccord.core.records import ClientUpdate, Order, Packages


class SerialEngine:
    """A loop over the trainer's groups of clients (one client each, unless the trainer stacks them)."""

    def __init__(self, site: Site, trainer: Trainer | None = None):
        self.site = site
        self.trainer = trainer or OneByOne(site)
        self.store = ClientStore(None, in_memory=True)

    @property
    def keeps(self) -> bool:
        """Whether the clients keep anything from round to round."""
        return bool(self.site.method.kept)

    def open(self, folder: Path | None) -> None:
        self.store = open_store(folder, self.site.store, len(self.site.clients), self.site.method.kept)

    def train(self, order: Order) -> Iterator[ClientUpdate]:
        waiting = [client for client in order.cohort if len(self.site.clients[client])]  # without data, nobody trains
        done: dict[int, ClientUpdate] = {}
        for group in self.trainer.groups(waiting, order):
            kept = [self.kept(client, order) for client in group]
            for update, keeps in self.trainer.train(order, group, kept):
                self.keep(update.client, order, keeps)
                done[update.client] = update
            while waiting and waiting[0] in done:
                yield done.pop(waiting.pop(0))

    def kept(self, client: int, order: Order) -> Packages:
        """Return what the client kept from the round that it goes on from."""
        return self.store.get(client, order.since.get(client, 0)) if self.keeps else {}

    def keep(self, client: int, order: Order, packages: Packages) -> None:
        if self.keeps:
            self.store.put(client, order.round, packages, order.since.get(client, 0))

    def expect(self, accepted: Mapping[int, int]) -> None:
        if self.keeps:
            self.store.expect(accepted)

    def save(self) -> None:
        self.store.save()

    def prune(self, accepted: Mapping[int, int]) -> None:
        if self.keeps:
            self.store.prune(accepted)

    def close(self) -> None:
        self.store.close()
