"""Send hostile orders of many kinds, by seed, to a client of a real federation, as the SuperLink would deliver them.

Each comes in parts, as Flower's messages do, to the loop of a node that has trained two rounds (FA, SCAFFOLD, FA+RM+AH
and FA on a frozen base, in turn). An order passes if the node answers with a reason, and all files of the client and
the model in its memory are as before, to the byte. At the end of an attempt the client gets its first order once more,
well-formed but late; then its third round must be that of a client that never met a hostile order.
"""

import hashlib
import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.chaos.order_kinds import KINDS, Letter
from benchmarks.chaos.part import Outcome, Part
from benchmarks.chaos.updates import ready
from fedaccord import Task, config
from fedaccord.core.packages import encode
from fedaccord.core.params import read_params
from fedaccord.core.records import Examples, Order
from fedaccord.data.sets import DataSet
from fedaccord.runtime.build import hyper_of
from fedaccord.runtime.federation import member_of_task
from fedaccord.runtime.identity import params_sha256
from fedaccord.runtime.parts import parts_of

CLIENT, NODE = 1, 5
SCENES = {"FA": {}, "SCAFFOLD": {}, "FA+RM+AH": {}, "FA, a frozen base": {"travels": "trainable"}}


def data() -> DataSet:
    draw = torch.Generator().manual_seed(1)
    inputs, targets = torch.rand(120, 8, generator=draw), torch.arange(120) % 3
    return DataSet(Examples(inputs, targets), Examples(inputs[-30:].clone(), targets[-30:]), ("a", "b", "c"))


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def half_frozen() -> nn.Module:
    made = model()
    made[0].requires_grad_(False)  # type: ignore[index]
    return made


class Client:
    """A node's client after two honest rounds, and the honest letters that a server writes to it."""

    def __init__(self, scene: str, folder: Path):
        from fedaccord.flower.node import Limits

        ready()
        torch.manual_seed(1)
        task = Task("orders", data, half_frozen if SCENES[scene] else model)
        own = {
            "task": "orders",
            "clients": 3,
            "method": scene.split(",")[0],
            "steps": 2,
            "validation_per_class": 8,
            **SCENES[scene],
        }
        settings = config.make(task.defaults("iid"), own)
        limits = Limits(max_steps=20, min_lr=0.001, max_lr=0.5)
        self.folder, self.scene = folder, scene
        self.member = member_of_task(task, settings, CLIENT, folder, limits, simulate=True)
        self.hyper = replace(hyper_of(settings, parts_of(task, settings).method), lr=0.1)
        site = self.member.site
        self.base = encode(read_params(site.model, site.travel.fixed)) if site.travel and site.travel.fixed else b""
        for round in (1, 2):
            reply = self.post(self.honest(round, first=round == 1))
            assert "params" in reply, reply
        self.before = self.state()

    def honest(self, round: int, first: bool = False) -> Letter:
        """Return the order of a round, as an honest server writes it; the first brings the frozen base."""
        from fedaccord.flower.wire import order_record

        site = self.member.site
        params = read_params(site.model, site.names)
        order = Order(round, (CLIENT,), params, self.hyper, down=site.method.down, since={CLIENT: round - 1})
        kept = {CLIENT: max(0, round - 2)} if site.method.kept else None
        record = dict(order_record(order, self.member.experiment, kept))
        if self.base:
            record["fixed"] = hashlib.sha256(self.base).hexdigest()
        return Letter(record | ({"fixed_tensors": self.base} if self.base and first else {}))

    def post(self, letter: Letter) -> dict[str, Any]:
        """Return the node's answer to a letter; the node's loop and the process that it forks are the real ones."""
        from flwr.common.serde import message_from_proto, message_to_proto
        from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

        from fedaccord.flower.adapter import Connection
        from fedaccord.flower.node import serve_one
        from fedaccord.flower.wire import records_of

        message = written(letter)
        tree, parts = get_object_tree(message), {n: o.deflate() for n, o in get_all_nested_objects(message).items()}
        number = message.object_id
        if letter.top is not None:
            number = hashlib.sha256(letter.top).hexdigest()
            parts[number], tree.object_id = letter.top, number
        if letter.spoil is not None:
            parts = letter.spoil(parts)
        head = message_from_proto(message_to_proto(stripped(message)))
        head.metadata.__dict__["_message_id"] = number
        replies: list[Any] = []

        def announce(reply: Any, tree: Any, seconds: float) -> tuple[set[str], str]:
            replies.append(reply)
            return set(), "session"

        connection = Connection(NODE, lambda: (head, tree), lambda run, name: parts[name], lambda run, name: None,
                                announce, lambda *_: None)  # fmt: skip
        serve_one(connection, self.member)
        (reply,) = replies
        if reply.has_error():
            raise RuntimeError("the client's process died")
        return records_of(reply)

    def state(self) -> str:
        """Return a hash of all that the client has: files, with their names and modes, and what its process holds."""
        held = params_sha256(self.member.site.model.state_dict()), self.member.has, self.member.last
        return hashlib.sha256(repr((held, self.files())).encode()).hexdigest()

    def files(self) -> list[tuple[str, int, bytes]]:
        """Return the client's files and folders, with their names, modes and contents."""
        paths = sorted(self.folder.rglob("*"))
        return [(str(path), path.stat().st_mode, path.read_bytes() if path.is_file() else b"") for path in paths]


def written(letter: Letter) -> Any:
    """Return the letter as a message of Flower's, addressed to the node."""
    from flwr.app import ConfigRecord, RecordDict

    from fedaccord.flower.wire import FOR_CLIENT, RECORD, request

    records = {} if letter.bare else {RECORD: letter.record, **({FOR_CLIENT: letter.own} if letter.own else {})}
    records |= letter.others | {f"more{number}": {"a": number} for number in range(letter.many)}
    content = RecordDict({name: ConfigRecord(record) for name, record in records.items()})
    return request(content, NODE, letter.kind, letter.life, 3)


def stripped(message: Any) -> Any:
    from flwr.app.message import remove_content_from_message

    return remove_content_from_message(message)


def attempt(client: Client, bad: Letter) -> str:
    """Send a hostile order, and return "refused" if it was refused and changed nothing, else what went wrong."""
    try:
        reply = client.post(bad)
    except Exception as error:
        return f"escaped: {type(error).__name__}: {error}"[:160]
    if client.state() != client.before:
        return "what the client keeps has changed"
    if reply.keys() != {"why"} or not reply["why"]:
        return "carried out"
    return "refused"


def late(client: Client) -> str:
    """Send the client its first order once more; return "unchanged" if its files are, else what went wrong.

    The order may be carried out or refused.
    """
    before = client.files()
    try:
        client.post(client.honest(1))
    except Exception as error:
        return f"escaped: {type(error).__name__}: {error}"[:160]
    return "unchanged" if client.files() == before else "its files have changed"


def hostile(number: int, seed: int, clients: dict[str, Client]) -> Iterator[tuple[str, Client, Letter]]:
    """Yield the hostile order of this number: all kinds in turn, each with all scenes; none if flwr cannot write it."""
    title = list(KINDS)[number % len(KINDS)]
    client = clients[list(SCENES)[(number + number // len(KINDS)) % len(SCENES)]]
    bad = KINDS[title](client.honest(3), np.random.default_rng([seed, number]))
    try:
        written(bad)
    except (TypeError, ValueError, OverflowError):  # flwr has no way to write it
        return
    yield title, client, bad


EACH = 250
"""The number of orders in one attempt of `make chaos`."""


def several(number: int, folder: Path, each: int = EACH) -> Outcome:
    """Send an attempt's hostile orders, then honest ones to every client, and count what went wrong."""
    logging.getLogger("fedaccord").setLevel(logging.CRITICAL)
    clients = {scene: Client(scene, folder / "tried" / str(place)) for place, scene in enumerate(SCENES)}
    told, tried = Counter[str](), 0
    for count in range(each * number, each * (number + 1)):
        for title, client, bad in hostile(count, 0, clients):
            tried += 1
            if (way := attempt(client, bad)) != "refused":
                told[f"{client.scene}, {title}: {way}"] += 1
                client.before = client.state()
    for place, (scene, client) in enumerate(clients.items()):
        spared = Client(scene, folder / "spared" / str(place))
        if (way := late(client)) != "unchanged":
            told[f"{scene}, its first order once more: {way}"] += 1
        tried_on, undisturbed = client.post(client.honest(3)), spared.post(spared.honest(3))
        if tried_on != undisturbed:
            other = [name for name in undisturbed if tried_on.get(name) != undisturbed[name]]
            why = tried_on.get("why", f"another {', '.join(other)}")
            told[f"{scene}: its third round is not what it would have been: {why}"] += 1
    return Outcome(tried, told.total(), "; ".join(sorted(told)), {"kinds": len(KINDS)})


PARTS = (Part("orders", "a hostile order to a client: refused with a reason, its files unchanged", several, 4, 41),)
