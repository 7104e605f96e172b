"""The server's end of a real federation: an engine that trains its clients over Flower's grid."""

import hashlib
import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedaccord.core import logs
from fedaccord.core.logs import note
from fedaccord.core.packages import encode
from fedaccord.core.records import ClientUpdate, Order, Params, Refusal
from fedaccord.flower import wire
from fedaccord.flower.adapter import LOST, POLL, waiting_for_parts
from fedaccord.server.sizes import Sizes

RESEND = 5.0
"""A client that did not answer is sent its order again after so many seconds, or after three times what the slowest
took in the round before if that is longer; each time after twice as long."""
FIRST = 60.0
"""The same, before anybody has answered."""
ROLL = 30.0
"""Seconds that a node has to say which client it is, before it is asked again and has twice as long: a stock SuperNode
starts a Python process with torch for the answer, which on a busy machine may take more than this."""
IN_TIME, LEAST = 0.8, 0.1
"""Of the time that is left, the share that a client may train where partial work counts (the rest is for its start and
for the way); and the fewest seconds that anybody is given."""
TOGETHER = 8
"""So many replies are pulled at once. Whoever announces one and does not send it is waited for, one after the other:
those of a pull share the time that is left."""
TRIES = 5
"""A client that has failed so often in a round is left out of it. It is tried again after 1, 2, 4, 8 seconds."""
TELL = (5.0, 30.0)
"""Seconds before it is first said who is being waited for, and between two such lines."""


class FlowerEngine:
    """An engine that sends the cohort its order and takes what comes back before the deadline.

    A client is known by its own number, whatever node it sits on. An order that got lost with a process is sent again:
    whoever has to do a round twice starts from what the order names, so it gives the same answer. `keeps`: whether
    clients keep anything between rounds. `fixed`: the part of the model that is the same everywhere and never changes;
    each client is sent it once, and again if it says that it lacks it; every order names its checksum. `metrics`: the
    names of what clients may be asked to measure. `sizes`: where the nodes' numbers of examples are registered.
    `partial`: whether a client shall stop in time and send what it has done by then.
    """

    def __init__(
        self,
        grid: Grid,
        experiment: str,
        deadline: float,
        min_replies: int = 1,
        keeps: bool = False,
        fixed: Params | None = None,
        metrics: Sequence[str] = (),
        sizes: Sizes | None = None,
        partial: bool = False,
    ):
        self.grid, self.experiment, self.keeps, self.metrics = grid, experiment, keeps, metrics
        tensors = encode(fixed) if fixed else b""
        self.fixed = wire.fixed_record(tensors) if fixed else None
        self.known_by = hashlib.sha256(tensors).hexdigest() if fixed else ""
        self.settled: set[int] = set()  # clients that have what is fixed
        self.deadline, self.min_replies = deadline, min_replies
        self.nodes: dict[int, int] = {}  # client -> node
        self.asked: dict[str, int] = {}  # roll-call messages that wait for an answer
        self.claims: dict[int, int | None] = {}  # node -> the client that it says it is; None: it named none
        self.lives: dict[int, float] = {}  # node -> seconds that it has for that, if it was too slow before
        self.absent: set[int] = set()  # clients that did not answer in their last round
        self.online: set[int] = set()
        self.one_by_one = False  # whether replies are pulled singly, since one of them was beyond reading
        self.labels: dict[int, list[int]] = {}  # client -> its examples by class, if its site lets them be known
        self.needed: Mapping[int, int] = {}  # client -> the oldest round that it may have to go on from
        self.pause = FIRST
        self.end = 0.0  # of the round
        self.sizes = Sizes() if sizes is None else sizes
        self.partial = partial

    def train(self, order: Order) -> Iterator[ClientUpdate | Refusal]:
        """Yield what became of each client of the cohort, in the cohort's order."""
        begin, slowest, usable = time.monotonic(), 0.0, 0
        self.end = end = begin + self.deadline
        needed = self.needed if self.keeps else None
        if self.partial:
            order = replace(order, seconds=IN_TIME * self.deadline)
        shared = wire.order_record(order, self.experiment, needed)
        if self.fixed is not None:
            shared["fixed"] = self.known_by
        contents = {}
        for client in order.cohort:
            contents[client] = RecordDict({wire.RECORD: shared})
            if extra := wire.client_record(order, client, needed, shared):
                contents[client][wire.FOR_CLIENT] = extra
            if self.fixed is not None and client not in self.settled:
                contents[client][wire.FIXED] = self.fixed
        sent: dict[str, int] = {}
        due = dict.fromkeys(order.cohort, 0.0)  # client -> when to send (again)
        pause = dict.fromkeys(order.cohort, self.pause)
        done: dict[int, ClientUpdate | Refusal] = {}
        deaths = Counter[int]()  # of a client's processes in this round
        waiting = list(order.cohort)
        look, tell = 0.0, begin + TELL[0]
        note(logs.ROUND_BEGAN, round=order.round, clients=len(order.cohort))
        while waiting:
            now = time.monotonic()
            missing = [client for client in waiting if client not in done]
            if now >= look:
                look = now + 1.0
                self.see(set(self.grid.get_node_ids()))
            if now >= tell and missing:
                tell = now + TELL[1]
                self.say_who_is_missing(order, missing, end - now)
            if any(self.nodes.get(client) not in self.online for client in missing):
                self.call_roll()
            ready = [client for client in missing if now >= due[client] and self.nodes.get(client) in self.online]
            for client in ready if self.partial else ():
                own = ConfigRecord(dict(contents[client].config_records.get(wire.FOR_CLIENT, {})))
                own["seconds"] = max(LEAST, IN_TIME * (end - now))
                contents[client] = RecordDict({**contents[client], wire.FOR_CLIENT: own})
            letters = [(self.nodes[client], contents[client]) for client in ready]
            numbers = self.send(letters, order.round, max(1.0, end - now))
            for client, number in zip(ready, numbers, strict=True):
                sent[number] = client
                note(logs.ORDER_SENT, round=order.round, client=client, bytes=wire.weight(contents[client]))
                due[client], pause[client] = now + pause[client], 2 * pause[client]
            for number, reply in self.pull(list(sent)):
                if number not in sent:  # a second reply to the same order
                    continue
                client = sent.pop(number)
                if reply is None or reply.has_error():  # its process died, or its node is gone: once more, soon
                    deaths[client] += 1
                    due[client] = min(due[client], time.monotonic() + 2.0 ** (deaths[client] - 1))
                    if deaths[client] >= TRIES and client in missing:
                        why = f"its process died, or its reply could not be read, {TRIES} times"
                        done[client] = Refusal(client, why)
                elif client in missing and client not in done:
                    answer = wire.read_update(client, order, wire.records_of(reply), self.metrics)
                    took, size = round(time.monotonic() - begin, 3), wire.weight(reply.content)
                    note(logs.UPDATE_RECEIVED, round=order.round, client=client, bytes=size, seconds=took)
                    if self.fixed is not None and self.lacks(answer) and wire.FIXED not in contents[client]:
                        contents[client][wire.FIXED] = self.fixed
                        due[client] = 0.0
                        continue
                    done[client] = answer
                    usable += isinstance(answer, ClientUpdate)
                    if isinstance(answer, ClientUpdate):
                        self.settled.add(client)
                    self.absent.discard(client)
                    slowest = time.monotonic() - begin
            enough = usable >= self.min_replies and all(client in done or self.hopeless(client) for client in waiting)
            if now >= end or enough:
                for client in waiting:
                    if client not in done:
                        self.absent.add(client)
                        done[client] = Refusal(client, "no reply in time" if now >= end else "not connected")
            while waiting and waiting[0] in done:
                yield done.pop(waiting.pop(0))
            if waiting:
                time.sleep(POLL)
        note(logs.ROUND_COLLECTED, logging.DEBUG, round=order.round)
        self.pause = max(RESEND, 3 * slowest) if slowest else self.pause

    def see(self, online: set[int]) -> None:
        """Take in which nodes are online now, and log which clients went and came back with one."""
        note(logs.CONTACT, logging.DEBUG)
        for client, node in self.nodes.items():
            if node in self.online - online:
                note(logs.DISCONNECTED, logging.WARNING, client=client, node=node)
            elif node in online - self.online:
                note(logs.CONNECTED, client=client, node=node)
        self.online = online

    def say_who_is_missing(self, order: Order, missing: Sequence[int], left: float) -> None:
        """Log how many nodes are being waited for; or, if all are there, how many updates."""
        away = [client for client in missing if self.nodes.get(client) not in self.online]
        what, level = (f"{len(away)} of {len(order.cohort)} nodes", logging.WARNING)
        if not away:
            what, level = (f"{len(missing)} of {len(order.cohort)} updates", logging.INFO)
        facts = {
            "round": order.round,
            "clients": away or missing,
            "nodes_online": len(self.online),
            "seconds_left": round(left),
        }
        note(f"{logs.WAITING} {what}", level, **facts)

    def lacks(self, answer: ClientUpdate | Refusal) -> bool:
        """Tell whether a client says that it has to be sent what is fixed."""
        return isinstance(answer, Refusal) and wire.LACKING in answer.why

    def hopeless(self, client: int) -> bool:
        """Tell whether a client missed its last round and is still not connected: if the others suffice, go on."""
        return client in self.absent and self.nodes.get(client) not in self.online

    def send(
        self, letters: Sequence[tuple[int, RecordDict]], round: int, life: float, kind: str = MessageType.TRAIN
    ) -> list[str]:
        """Send each node its content; return the numbers of the messages."""
        messages = [wire.request(content, node, kind, life, round) for node, content in letters]
        return list(self.grid.push_messages(messages)) if messages else []

    def pull(self, numbers: Sequence[str]) -> Iterator[tuple[str, Message | None]]:
        """Yield the replies that are there, with the number of what each answers; None for one beyond reading."""
        size = 1 if self.one_by_one else TOGETHER
        for part in (list(numbers[first : first + size]) for first in range(0, len(numbers), size)):
            left = max(LEAST, self.end - time.monotonic())
            try:
                with waiting_for_parts(left / min(len(numbers), TOGETHER)):
                    replies = list(self.grid.pull_messages(part))
            except LOST:
                raise
            except Exception:  # somebody sent what flwr cannot put together; what came with it may be lost
                self.one_by_one = True
                yield from ((number, None) for number in part)
                continue
            for reply in replies:
                if reply.metadata.reply_to_message_id in part:
                    yield reply.metadata.reply_to_message_id, reply

    def call_roll(self) -> None:
        """Ask every node that has not said so yet which client it is. The first to claim a number has it, and whoever
        else claimed it (a node that was started again) when the first has gone."""
        self.claims = {node: client for node, client in self.claims.items() if node in self.online}
        self.nodes = {client: node for client, node in self.nodes.items() if node in self.online}
        for node, client in self.claims.items():
            self.seat(client, node)
        unknown = [node for node in self.online if node not in {*self.claims, *self.asked.values()}]
        for node in unknown:
            question = [(node, RecordDict({wire.RECORD: ConfigRecord({})}))]
            numbers = self.send(question, 0, self.lives.get(node, ROLL), MessageType.QUERY)
            self.asked |= dict.fromkeys(numbers, node)
        for number, reply in self.pull(list(self.asked)):
            if number not in self.asked:  # a second answer to the same question
                continue
            node = self.asked.pop(number)
            if reply is None or reply.has_error():
                self.lives[node] = 2 * self.lives.get(node, ROLL)
            else:
                client, labels, examples = wire.read_identity(wire.records_of(reply))
                self.claims[node] = client
                if self.seat(client, node) and client is not None:
                    self.sizes.register(client, examples)
                    self.labels[client] = labels

    def seat(self, client: int | None, node: int) -> bool:
        """Let a node be this client, unless another is."""
        if client is None or client in self.nodes:
            return False
        self.nodes[client] = node
        note(logs.CONNECTED, client=client, node=node)
        return True

    def prune(self, accepted: Mapping[int, int]) -> None:
        """Name these rounds in the next messages: the clients may forget what is older."""
        self.needed = accepted

    def open(self, folder: Path | None) -> None:
        """Do nothing: what clients keep lies with them."""

    def expect(self, accepted: Mapping[int, int]) -> None:
        """Do nothing: a client that lacks its part says so itself."""

    def save(self) -> None:
        """Do nothing: there is nothing to save here."""

    def close(self) -> None:
        """Do nothing: the grid belongs to whoever opened it."""
