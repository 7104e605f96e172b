"""The reference engine: the clients one after the other, in this process."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from fedaccord.client.store import PrivateStore, open_store
from fedaccord.client.training import OneByOne, Site, Trainer
from fedaccord.core.records import ClientUpdate, Order


class SerialEngine:
    """A loop over the trainer's groups of clients (one each, unless it stacks them)."""

    def __init__(self, site: Site, trainer: Trainer | None = None):
        self.site = site
        self.trainer = trainer or OneByOne(site)
        self.store = PrivateStore(None, in_memory=True)

    def open(self, folder: Path | None) -> None:
        self.store = open_store(folder, self.site.store, len(self.site.clients), self.site.objective.private_like())

    def train(self, order: Order) -> Iterator[ClientUpdate]:
        waiting = [client for client in order.cohort if len(self.site.clients[client])]  # without data, nobody trains
        done: dict[int, ClientUpdate] = {}
        for group in self.trainer.groups(waiting, order.hyper):
            private = [self.store.get(client, order.round) for client in group]
            for update, kept in self.trainer.train(order, group, private):
                if kept is not None:
                    self.store.put(update.client, order.round, kept)
                done[update.client] = update
            while waiting and waiting[0] in done:
                yield done.pop(waiting.pop(0))

    def expect(self, newest: Mapping[int, int]) -> None:
        self.store.expect(newest)

    def save(self) -> dict[int, int]:
        return self.store.save()

    def prune(self, committed: int) -> None:
        self.store.prune(committed)

    def close(self) -> None:
        self.store.close()
