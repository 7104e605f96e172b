"""Try hostile updates of many kinds, by seed, on the server's two ends.

Each is sent among honest updates to ServerChain and, as a message, to FlowerEngine in front of it, with FA, SCAFFOLD,
FA+RM+AH, FedNova and FATHOM in turn. An update passes if no exception escapes, the model stays finite, and all that
comes of the round is to the bit what comes of it without the hostile reply.
"""

import logging
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.chaos.part import Outcome, Part
from benchmarks.chaos.update_kinds import COHORT, KINDS, ROUND, SIZE, VICTIM, Reply
from fedaccord import config
from fedaccord.core.packages import encode, flatten
from fedaccord.core.records import ClientUpdate, Hyper, Order, Refusal
from fedaccord.methods.registry import find
from fedaccord.runtime.identity import params_sha256
from fedaccord.server.chain import ServerChain
from fedaccord.server.sizes import Sizes
from fedaccord.server.steps import with_server_steps

METHODS = ("FA", "SCAFFOLD", "FA+RM+AH", "FedNova", "FATHOM")
HYPER = Hyper(0.1, 5, own={"server_lr": 1.0})


# ---------------------------------------------------------------- the ends


@dataclass
class Scene:
    """A method's chain in the middle of a run, with a round's honest replies."""

    method: str
    chain: ServerChain = field(init=False)
    honest: dict[int, Reply] = field(init=False)

    def __post_init__(self) -> None:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
        made = find(self.method)
        values = config.make({"method": self.method}, method=made).values()
        sizes = Sizes(dict.fromkeys(range(10), SIZE))
        self.chain = ServerChain(with_server_steps(made, values), model, values, 10, sizes=sizes)
        params = {n: v + 0.1 if v.is_floating_point() else v + 60 for n, v in model.state_dict().items()}
        self.before = self.chain.start(params)
        self.honest = {client: self.reply(client) for client in COHORT}
        self.results = {kept: self.outcome(self.updates(kept)) for kept in (COHORT, tuple({*COHORT} - {VICTIM}))}

    def reply(self, client: int) -> Reply:
        def near(params: dict[str, Tensor]) -> dict[str, Tensor]:
            return {n: v + 0.05 * torch.randn(v.shape).to(v.dtype) if v.is_floating_point() else v + 5
                    for n, v in params.items()}  # fmt: skip

        slots = {slot: near(template) for slot, (_, template) in self.chain.up.items()}
        return Reply(near(self.before.params), slots, client=client)

    def updates(self, clients: tuple[int, ...]) -> list[ClientUpdate | Refusal]:
        return [as_update(self.honest[client]) for client in clients]

    def outcome(self, updates: Any) -> tuple[str, ...]:
        """Aggregate updates, and return all that can be seen of it: model, server state, who counted and how."""
        made = self.chain.aggregate(ROUND, self.before, updates, HYPER, None, COHORT)
        finite = all(bool(value.isfinite().all()) for value in made.model.params.values() if value.is_floating_point())
        state = flatten(made.model.server)
        counted = repr((made.accepted, made.step_norm, made.reported, made.bytes_up, made.model.accepted))
        return ("finite" if finite else "NOT FINITE", params_sha256(made.model.params), params_sha256(state), counted)

    def expected(self, bad: Reply) -> tuple[str, ...]:
        """Return the outcome that a round with this hostile reply must have.

        A second reply and a stranger's leave the honest client in; any other is the client's only one.
        """
        return self.results[COHORT if bad.way in ("second", "stranger") else tuple({*COHORT} - {VICTIM})]


def as_update(reply: Reply) -> ClientUpdate:
    return ClientUpdate(reply.client, reply.params, reply.examples, reply.loss, reply.slots, round=reply.round)


def at_the_chain(scene: Scene, bad: Reply) -> tuple[str, ...]:
    """Return the outcome of a round at the chain with a hostile reply in its client's place, or after all others."""
    updates = scene.updates(COHORT)
    if bad.way in ("second", "stranger"):
        return scene.outcome([*updates, as_update(bad)])
    return scene.outcome([as_update(bad) if each.client == VICTIM else each for each in updates])


class Clock:
    """A stand-in for the module `time`, whose clock only sleeping moves."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Post:
    """A grid in memory with a node for each client (its number plus 100), one of which is hostile."""

    def __init__(self, scene: Scene, bad: Reply):
        self.scene, self.bad = scene, bad
        self.waiting: list[Any] = []

    def get_node_ids(self) -> list[int]:
        return [100 + client for client in (*COHORT, *((9,) if self.bad.way == "stranger" else ()))]

    def push_messages(self, messages: list[Any]) -> list[str]:
        from flwr.app import ConfigRecord, Message, RecordDict

        numbers = []
        for number, message in enumerate(messages, len(self.waiting)):
            message.metadata.__dict__["_message_id"] = f"m{number}-{id(message)}"
            numbers.append(message.metadata.message_id)
            client = message.metadata.dst_node_id - 100
            for record in self.records(client, message.metadata.message_type):
                reply = Message(RecordDict({"fedaccord": ConfigRecord(record)}), reply_to=message)
                if client == VICTIM and self.bad.way == "late":
                    reply.metadata.__dict__["_reply_to_message_id"] = "an order of an earlier round"
                self.waiting.append(reply)
        return numbers

    def records(self, client: int, asked: str) -> Iterator[dict[str, Any]]:
        if asked == "query":
            yield {"client": self.bad.client if client == 9 else client}
        elif client == VICTIM and self.bad.way != "stranger":
            if self.bad.way == "second":
                yield as_record(self.scene.honest[client])
            yield as_record(self.bad)
        elif client in self.scene.honest:
            yield as_record(self.scene.honest[client])

    def pull_messages(self, numbers: list[str]) -> list[Any]:
        found, self.waiting = self.waiting, []
        return found


def as_record(reply: Reply) -> dict[str, Any]:
    own = {"client": reply.client, "round": reply.round, "examples": reply.examples, "loss": reply.loss}
    slots = {"sent": encode(flatten(reply.slots))} if reply.slots else {}
    return {name: value for name, value in own.items() if value is not None} | {"params": encode(reply.params)} | slots


def at_the_engine(scene: Scene, bad: Reply) -> tuple[str, ...]:
    """Return the outcome of a round in which FlowerEngine reads the replies as messages, before the chain."""
    from fedaccord.flower import server

    server.time = Clock()  # type: ignore[assignment]
    try:
        engine = server.FlowerEngine(Post(scene, bad), "e", 2.0)  # type: ignore[arg-type]
        if bad.way != "stranger":
            engine.nodes = {client: 100 + client for client in COHORT}
        order = Order(ROUND, COHORT, scene.before.params, HYPER, down=scene.chain.to_send(scene.before))
        return scene.outcome(engine.train(order))
    finally:
        server.time = time


def hostile(number: int, seed: int, scenes: dict[str, Scene]) -> tuple[str, Scene, Reply]:
    """Return the hostile update of this number, with its kind and scene: all kinds in turn, with each method."""
    title = list(KINDS)[number % len(KINDS)]
    scene = scenes[METHODS[number // len(KINDS) % len(METHODS)]]
    return title, scene, KINDS[title](scene.honest[VICTIM], np.random.default_rng([seed, number]))


ENDS = {"chain": at_the_chain, "engine": at_the_engine}


def attempt(end: Callable[[Scene, Reply], tuple[str, ...]], scene: Scene, bad: Reply) -> str:
    """Return what one of the server's ends makes of a hostile reply; "left out" is the only right answer."""
    try:
        got = end(scene, bad)
    except Exception as error:
        return f"escaped: {type(error).__name__}: {error}"[:120]
    if got[0] != "finite":
        return "not finite"
    return "left out" if got == scene.expected(bad) else "counted"


EACH = 250
"""The number of updates in one attempt of `make chaos`."""


def several(number: int, folder: Path) -> Outcome:
    """Try the hostile updates of an attempt; attempts take them in the order of `python -m benchmarks.hostile`."""
    ready()
    scenes = {method: Scene(method) for method in METHODS}
    told = Counter[str]()
    for each in range(EACH * number, EACH * (number + 1)):
        title, scene, bad = hostile(each, 0, scenes)
        ways = [
            f"{title} at the {name}: {way}"
            for name, end in ENDS.items()
            if (way := attempt(end, scene, bad)) != "left out"
        ]
        told.update(ways[:1])
    return Outcome(EACH, told.total(), "; ".join(sorted(told)), {"kinds": len(KINDS)})


def ready() -> None:
    """Tell flwr whose messages these are, silence its log and all warnings, and keep torch to one thread."""
    from fedaccord.flower.adapter import identify

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    identify(1, 1, 1)
    logging.getLogger("flwr").setLevel(logging.CRITICAL)


PARTS = (Part("updates", "a hostile update among honest ones: it is as if it had not come", several, 4, 40),)
