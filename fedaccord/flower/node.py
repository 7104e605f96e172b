"""A client's end of a real federation: its data, its limits, and what it keeps on its own disk."""

import copy
import hashlib
import logging
import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from flwr.app import ConfigRecord, Message, MessageType

from fedaccord.client.store import ClientStore
from fedaccord.client.training import Site, train
from fedaccord.core import logs
from fedaccord.core.errors import FedAccordError, SettingsError, UpdateRefused
from fedaccord.core.files import write_durably
from fedaccord.core.logs import note
from fedaccord.core.packages import check, check_finite, decode, flatten
from fedaccord.core.params import load_params, read_params
from fedaccord.core.processes import die_with
from fedaccord.core.records import Order
from fedaccord.core.settings import Setting
from fedaccord.flower.adapter import POLL, MessageDropped, connect, error_reply, sign_off
from fedaccord.flower.certificates import Link
from fedaccord.flower.wire import (
    LACKING,
    identity_record,
    read_order,
    records_of,
    refusal_record,
    reply_with,
    update_record,
    weight,
)


@dataclass(frozen=True)
class Limits:
    """What a client does at most, whoever asks."""

    max_steps: int = 1000
    min_lr: float = 1e-6
    max_lr: float = 2.0
    max_batch: int = 4096

    def check(self, order: Order, client: int, settings: Mapping[str, Setting]) -> None:
        """Refuse an order that asks for more than this, or against a rule of the method's own settings."""
        hyper = order.hyper_of(client)
        if not 1 <= hyper.steps <= self.max_steps:
            raise UpdateRefused(f"steps = {hyper.steps}: I do 1 to {self.max_steps}")
        if not self.min_lr <= hyper.lr <= self.max_lr:
            raise UpdateRefused(f"lr = {hyper.lr:g}: I take {self.min_lr:g} to {self.max_lr:g}")
        if not 1 <= hyper.batch_size <= self.max_batch:
            raise UpdateRefused(f"batch_size = {hyper.batch_size}: I take 1 to {self.max_batch}")
        others = {name: hyper[name] for name in ("momentum", "weight_decay", "clip_gradient")}
        for name, value in {**others, **hyper.own}.items():
            if name in settings:
                try:
                    settings[name].validate(value)
                except SettingsError as error:
                    raise UpdateRefused(str(error)) from None
            elif value is not None and not 0 <= value < math.inf:
                raise UpdateRefused(f"{name} = {value:g}: not a weight")


class Member:
    """One client of a federation. `site` holds its data alone, under its number; `folder` is on its own disk.

    `labels`: its examples of each class, if the server may know them.
    """

    def __init__(
        self, client: int, site: Site, folder: Path, experiment: str, limits: Limits, labels: Sequence[int] = ()
    ):
        self.labels = labels
        self.client, self.site, self.experiment, self.limits = client, site, experiment, limits
        self.workspace = copy.deepcopy(site.model)
        self.store = ClientStore(folder / experiment, in_memory=False)
        self.last: tuple[str, ConfigRecord] | None = None  # the newest order that was carried out, and its answer
        self.fixed = folder / experiment / "fixed.safetensors"
        self.has = ""  # the checksum of what it has of the part that never changes
        if site.travel is not None and site.travel.fixed and self.fixed.exists():
            self.take(self.fixed.read_bytes())

    @property
    def examples(self) -> int:
        """How many examples it trains on."""
        return len(self.site.clients[self.client])

    def take(self, data: bytes) -> None:
        """Put the part of the model that is the same everywhere in its place; refuse what is of another form."""
        assert self.site.travel is not None
        params = decode(data)
        check(params, read_params(self.site.model, self.site.travel.fixed), "what is fixed in my model")
        check_finite(params)
        load_params(self.site.model, params)
        load_params(self.workspace, params)
        self.site.stays.update({name: params[name] for name in self.site.stays.keys() & params.keys()})
        self.has = hashlib.sha256(data).hexdigest()
        if not self.fixed.exists() or self.fixed.read_bytes() != data:
            self.fixed.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_durably(self.fixed, data, mode=0o600)

    def answer(self, record: Mapping[str, Any]) -> ConfigRecord:
        """Carry out an order and return the reply. Whatever is refused leaves what the client keeps as it was."""
        try:
            return self.carried_out(record)
        except FedAccordError as error:
            return refusal_record(str(error))

    def carried_out(self, record: Mapping[str, Any]) -> ConfigRecord:
        """Train as ordered, from what was kept in the round that the order names; forget what is no longer needed."""
        if self.site.travel is not None and self.site.travel.fixed and record.get("fixed") != self.has:
            raise UpdateRefused(LACKING)
        order = self.checked(record)
        since = order.since[self.client]
        keeps = bool(self.site.method.kept)
        before = self.store.get(self.client, since) if keeps else {}
        update, kept = train(self.site, self.workspace, order, self.client, before)
        if keeps:
            self.store.put(self.client, order.round, kept, since)
            self.store.prune({self.client: min(int(record["needed"]), since)})
        return update_record(update)

    def checked(self, record: Mapping[str, Any]) -> Order:
        """Read an order of this experiment, within this client's limits and for its model; refuse any other."""
        order = read_order(record, self.client)
        if record.get("experiment") != self.experiment:
            raise UpdateRefused("the server runs another experiment: task, settings or version differ from mine")
        if self.site.method.kept and (type(record.get("since")) is not int or type(record.get("needed")) is not int):
            raise UpdateRefused("the message does not name the round that I go on from")
        self.limits.check(order, self.client, self.site.method.settings)
        own = read_params(self.site.model, self.site.names)
        for params in (order.params, *([order.previous] if order.previous is not None else [])):
            check(params, own, "my model")
            check_finite(params)
        down = flatten(order.down)
        check(down, flatten(self.site.method.down), "my method")
        check_finite(down)
        return order


def run_node(link: Link, member: Member, patience: float | None = None) -> None:
    """Be a SuperNode for this client until SIGTERM. Code that a server sends is never fetched, let alone run.

    Each order is carried out in a process forked for it, so that whatever happens there leaves this one in peace.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    memo = None if link.key is None else Path(f"{link.key}.node")
    if memo is not None and memo.exists() and memo.read_text().isdigit():
        sign_off(link, int(memo.read_text()))
    torch.set_num_threads(1)
    with connect(link, patience) as connection:
        if memo is not None:
            write_durably(memo, str(connection.node).encode())
        note(logs.CONNECTED, client=member.client, node=connection.node)
        while True:
            try:
                message = connection.receive()
                note(logs.CONTACT, logging.DEBUG)
                if message is None:
                    time.sleep(POLL)
                    continue
                begin = time.monotonic()
                facts = facts_of_order(member, message)
                reply = in_a_child(member, message)
                took = time.monotonic() - begin
                connection.send(reply, took)
                note_reply(reply, took, facts)
            except MessageDropped as error:
                note(logs.DROPPED, logging.WARNING, client=member.client, why=str(error))


def facts_of_order(member: Member, message: Message) -> dict[str, Any] | None:
    """Log that an order came, and return what later lines say of it too; None if the message is a question."""
    if message.metadata.message_type.startswith(MessageType.QUERY):
        return None
    round = records_of(message).get("round")
    facts: dict[str, Any] = {"round": round if type(round) is int else None, "client": member.client}
    note(logs.ORDER_RECEIVED, **facts, bytes=weight(message.content))
    return facts


def note_reply(reply: Message, seconds: float, facts: Mapping[str, Any] | None) -> None:
    """Log what became of an order."""
    if facts is None:
        return
    if reply.has_error():
        note(logs.ORDER_FAILED, logging.ERROR, **facts)
    elif "why" in (record := records_of(reply)):
        note(logs.ORDER_REFUSED, logging.WARNING, **facts, why=record["why"])
    else:
        note(logs.UPDATE_SENT, **facts, bytes=weight(reply.content), seconds=round(seconds, 3))


def in_a_child(member: Member, message: Message) -> Message:
    """Carry out an order in a forked process. If that dies, the server is told at once and may send it again."""
    if message.metadata.message_type.startswith(MessageType.QUERY):
        return reply_with(identity_record(member.client, member.labels, member.examples), message)
    record = records_of(message)
    same = {name: value for name, value in record.items() if name != "seconds"}  # a second order leaves less time
    asked = hashlib.sha256(ConfigRecord(same).deflate()).hexdigest()
    if member.last is not None and member.last[0] == asked:  # sent twice: the answer was slow, or lost
        return reply_with(member.last[1], message)
    if (
        "fixed_tensors" in record and record.get("fixed") != member.has
    ):  # here, not in the child: for all rounds to come
        try:
            member.take(record["fixed_tensors"])
        except FedAccordError as error:
            return reply_with(refusal_record(str(error)), message)
    reader, writer = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            die_with(parent)
            os.close(reader)
            answer = member.answer(record)
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(answer.deflate())
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        data = pipe.read()
    _, status = os.waitpid(child, 0)
    if status != 0:
        return error_reply(message, "the client's process died")
    answer = ConfigRecord.inflate(data)
    if "params" in answer:
        member.last = asked, answer
    return reply_with(answer, message)
