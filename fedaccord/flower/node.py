"""A client's end of a real federation: its data, its limits, and what it keeps on its own disk."""

import contextlib
import copy
import hashlib
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from flwr.app import ConfigRecord, Message, MessageType

from fedaccord.client.store import ClientStore
from fedaccord.client.training import Site, train
from fedaccord.core import logs
from fedaccord.core.errors import FedAccordError, UpdateRefused
from fedaccord.core.files import cannot_be_written, clear_rests, make_durably, write_durably
from fedaccord.core.logs import note
from fedaccord.core.packages import decode, flatten
from fedaccord.core.params import load_params, read_params
from fedaccord.core.processes import die_with
from fedaccord.core.records import Order
from fedaccord.flower.adapter import (
    POLL,
    Connection,
    MessageDropped,
    MessageRefused,
    connect,
    error_reply,
    sign_off,
)
from fedaccord.flower.certificates import Link
from fedaccord.flower.limits import Limits, form_of
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


class Member:
    """One client of a federation.

    `site` holds this client's data alone, under its number; `folder` is on its own disk. `labels`: how many examples it
    has of each class, if the server may know that.
    """

    def __init__(
        self, client: int, site: Site, folder: Path, experiment: str, limits: Limits, labels: Sequence[int] = ()
    ):
        self.labels = labels
        self.client, self.site, self.experiment, self.limits = client, site, experiment, limits
        self.workspace = copy.deepcopy(site.model)
        self.store = ClientStore(folder / experiment, in_memory=False)
        self.last: tuple[str, ConfigRecord] | None = None  # checksum and answer of the newest order carried out
        self.fixed = folder / experiment / "fixed.safetensors"
        self.has = ""  # the checksum of its copy of the model's fixed part; empty: it has none
        weights = dict(site.model.named_parameters()).keys()
        self.model = form_of(read_params(site.model, site.names), weights, "my model")
        down = flatten(site.method.down)
        long = [name for name, value in down.items() if value.dim() and name.partition("/")[2] in weights]
        self.down = form_of(down, long, "my method", self.model.most)
        never = site.travel.fixed if site.travel is not None else frozenset()
        self.base = form_of(read_params(site.model, never), weights, "what is fixed in my model") if never else None
        clear_rests(folder / experiment, *(folder / experiment).glob("*"))
        if self.base is not None and self.fixed.exists():
            with contextlib.suppress(UpdateRefused):  # if the file is damaged, the server sends it again
                self.take(self.fixed.read_bytes())

    @property
    def examples(self) -> int:
        """The number of examples that the client trains on."""
        return len(self.site.clients[self.client])

    @property
    def room(self) -> int:
        """How many bytes the tensors of a message to this client may have."""
        parts = (self.model, self.model, self.down, *(() if self.base is None else (self.base,)))  # w_t and w_{t-1}
        return sum(part.room for part in parts)

    def take(self, data: bytes) -> None:
        """Load the fixed part of the model, which is the same everywhere; raise UpdateRefused if its form is wrong."""
        assert self.base is not None
        self.base.fits("fixed_tensors", data)
        params = decode(data)
        self.base.check(params)
        load_params(self.site.model, params)
        load_params(self.workspace, params)
        self.site.stays.update({name: params[name] for name in self.site.stays.keys() & params.keys()})
        self.has = hashlib.sha256(data).hexdigest()

    def keep_fixed(self, data: bytes) -> None:
        """Write the fixed part of the model to disk for the next start, unless it is there already."""
        if not self.fixed.exists() or self.fixed.read_bytes() != data:
            try:
                make_durably(self.fixed.parent, mode=0o700)
            except OSError as error:
                raise cannot_be_written(self.fixed, error) from error
            write_durably(self.fixed, data, mode=0o600)

    def answer(self, record: Mapping[str, Any]) -> ConfigRecord:
        """Carry out an order and return the reply; a refused order leaves what the client keeps unchanged."""
        try:
            return self.carried_out(record)
        except FedAccordError as error:
            return refusal_record(str(error))

    def carried_out(self, record: Mapping[str, Any]) -> ConfigRecord:
        """Train as ordered, from what was kept in the round that the order names; delete what is no longer needed."""
        order = self.checked(record)
        came, named = record.get("fixed_tensors"), record.get("fixed")
        if self.base is not None and came is not None:
            self.base.fits("fixed_tensors", came)
            if hashlib.sha256(came).hexdigest() != named:
                raise UpdateRefused("fixed_tensors is not what the checksum in the message belongs to")
        if self.base is not None and named != self.has:
            if came is None:
                raise UpdateRefused(LACKING)
            self.take(came)
        since = order.since[self.client]
        keeps = bool(self.site.method.kept)
        before = self.store.get(self.client, since) if keeps else {}
        update, kept = train(self.site, self.workspace, order, self.client, before)
        if self.base is not None and came is not None:
            self.keep_fixed(came)
        if keeps:
            self.store.put(self.client, order.round, kept, since)
            self.store.prune({self.client: min(int(record["needed"]), since)})
        return update_record(update)

    def checked(self, record: Mapping[str, Any]) -> Order:
        """Decode an order; raise UpdateRefused if it is of another experiment, exceeds a limit or misfits the model."""
        for name, form in (("params", self.model), ("previous", self.model), ("down", self.down)):
            if name in record:
                form.fits(name, record[name])
        order = read_order(record, self.client)
        if record.get("experiment") != self.experiment:
            raise UpdateRefused("the server runs another experiment: task, settings or version differ from mine")
        if "fixed_tensors" in record and self.base is None:
            raise UpdateRefused("nothing of my model is the same everywhere: I take no fixed_tensors")
        if self.site.method.kept and not {"since", "needed"} <= record.keys():
            raise UpdateRefused("the message does not name the round that I go on from")
        self.limits.check(order, self.client, self.site.method.settings)
        for params in (order.params, *([order.previous] if order.previous is not None else [])):
            self.model.check(params)
        self.down.check(flatten(order.down))
        return order


def run_node(link: Link, member: Member, patience: float | None = None) -> None:
    """Serve a client as its SuperNode until SIGTERM. Code that a server sends is never fetched, let alone run.

    Each order is carried out in a process forked for it, so that nothing that happens there affects this one.
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
            if not serve_one(connection, member):
                time.sleep(POLL)


def serve_one(connection: Connection, member: Member) -> bool:
    """Answer the next message, if any, and return whether there was one; no content of a message ends the node."""
    try:
        try:
            message = connection.receive(member.room)
        except MessageRefused as error:
            note(logs.ORDER_REFUSED, logging.WARNING, client=member.client, why=str(error))
            connection.send(reply_with(refusal_record(str(error)), error.head), 0.0)
            return True
        note(logs.CONTACT, logging.DEBUG)
        if message is None:
            return False
        begin = time.monotonic()
        facts = facts_of_order(member, message)
        reply = in_a_child(member, message)
        took = time.monotonic() - begin
        connection.send(reply, took)
        note_reply(reply, took, facts)
    except MessageDropped as error:
        note(logs.DROPPED, logging.WARNING, client=member.client, why=str(error))
    return True


def facts_of_order(member: Member, message: Message) -> dict[str, Any] | None:
    """Log that an order came, and return the facts that later lines repeat; None if the message is a query."""
    if message.metadata.message_type.startswith(MessageType.QUERY):
        return None
    round = records_of(message).get("round")
    facts: dict[str, Any] = {"round": round if type(round) is int else None, "client": member.client}
    note(logs.ORDER_RECEIVED, **facts, bytes=weight(message.content))
    return facts


def note_reply(reply: Message, seconds: float, facts: Mapping[str, Any] | None) -> None:
    """Log whether an order failed, was refused or was carried out; do nothing if `facts` is None, as for a query."""
    if facts is None:
        return
    if reply.has_error():
        note(logs.ORDER_FAILED, logging.ERROR, **facts)
    elif "why" in (record := records_of(reply)):
        note(logs.ORDER_REFUSED, logging.WARNING, **facts, why=record["why"])
    else:
        note(logs.UPDATE_SENT, **facts, bytes=weight(reply.content), seconds=round(seconds, 3))


def in_a_child(member: Member, message: Message) -> Message:
    """Carry out an order in a forked process and return the reply, which is an error if that process dies.

    The server, told at once, may then send it again. A query, or the last order again, is answered without a fork.
    """
    if message.metadata.message_type.startswith(MessageType.QUERY):
        return reply_with(identity_record(member.client, member.labels, member.examples), message)
    record = records_of(message)
    same = {name: value for name, value in record.items() if name != "seconds"}  # a resent order has less time left
    asked = hashlib.sha256(ConfigRecord(same).deflate()).hexdigest()
    if member.last is not None and member.last[0] == asked:  # it was sent twice: the answer was slow, or lost
        return reply_with(member.last[1], message)
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
        if "fixed_tensors" in record and record.get("fixed") != member.has:  # kept for all later rounds
            member.take(record["fixed_tensors"])
    return reply_with(answer, message)
