"""The reference engine: the clients one after the other, in this process."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from fedaccord.client.objective import Objective
from fedaccord.client.training import train
from fedaccord.records import ClientData, ClientUpdate, Order, Prepare


@dataclass(frozen=True)
class Site:
    """What every engine needs to run clients: the same value serves all of them."""

    model: nn.Module
    objective: Objective
    clients: Sequence[ClientData]
    prepare: Prepare
    seed: int


class SerialEngine:
    """A loop."""

    def __init__(self, site: Site):
        self.site = site
        self.workspace = copy.deepcopy(site.model)

    def train(self, order: Order) -> Iterator[ClientUpdate]:
        site = self.site
        for client in order.cohort:
            data = site.clients[client]
            if len(data):  # a client without data never trains
                yield train(self.workspace, site.objective, data, site.prepare, order, client, site.seed)

    def close(self) -> None:
        pass
