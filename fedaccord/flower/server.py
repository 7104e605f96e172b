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
"""Seconds after which a client that has not answered is sent its order again, or three times what the slowest client
took in the round before if that is longer; the wait doubles each time."""
FIRST = 60.0
"""Seconds after which an order is sent again for the first time, until a round has had an answer."""
ROLL = 30.0
"""Seconds within which a node must say which client it is; after that it is asked again and given twice as long. A
stock SuperNode starts a Python process with torch for the answer, which on a busy machine may take longer."""
IN_TIME, LEAST = 0.8, 0.1
"""The share of the remaining time for which a client may train where partial work counts (the rest is for starting and
for sending), and the fewest seconds that any client is given."""
TOGETHER = 8
"""How many replies are pulled at once. Replies that are announced but do not arrive are waited for one after the other,
so those of one pull share the time that is left."""
TRIES = 5
"""A client that has failed this often in a round is left out of it; until then it is retried after 1, 2, 4, 8 s."""
TELL = (5.0, 30.0)
"""Seconds before the first log line on who is being waited for, and between two such lines."""


class FlowerEngine:
    """An engine that sends the cohort its order and takes the replies that arrive before the deadline.

    A client is known by its own number, whichever node it runs on. An order that is lost with a process is sent again:
    a client that does a round twice starts both times from the state that the order names, so it gives the same answer.

    `keeps`: whether clients keep anything between rounds. `fixed`: the part of the model that is the same everywhere
    and never changes; each client is sent it once, and again if it says that it lacks it; every order names its
    checksum. `metrics`: the names of the metrics that clients may be asked to measure. `sizes`: where the nodes'
    numbers of examples are registered. `partial`: whether a client stops in time and sends what it has done by then.
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
        self.settled: set[int] = set()  # clients that have the fixed part of the model
        self.deadline, self.min_replies = deadline, min_replies
        self.nodes: dict[int, int] = {}  # client -> node
        self.asked: dict[str, int] = {}  # roll-call message -> the node that has yet to answer it
        self.claims: dict[int, int | None] = {}  # node -> the client that it claims to be; None: it named none
        self.lives: dict[int, float] = {}  # node -> seconds that it has to answer a roll-call, if it has missed one
        self.absent: set[int] = set()  # clients that did not answer in their last round
        self.online: set[int] = set()
        self.one_by_one = False  # whether replies are pulled one at a time, because one could not be read
        self.labels: dict[int, list[int]] = {}  # client -> its examples by class, if its site lets them be known
        self.needed: Mapping[int, int] = {}  # client -> the oldest round that it may have to go on from
        self.pause = FIRST
        self.end = 0.0  # of the round, as time.monotonic() counts
        self.sizes = Sizes() if sizes is None else sizes
        self.partial = partial

    def train(self, order: Order) -> Iterator[ClientUpdate | Refusal]:
        """Yield the update or the refusal of each client of the cohort, in the cohort's order."""
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
        deaths = Counter[int]()  # client -> how often its process died, or its reply could not be read
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
            died: set[int] = set()  # a node that is gone fails every copy of its order at once, which is one death
            for number, reply in self.pull(list(sent)):
                if number not in sent:  # a second reply to the same order
                    continue
                client = sent.pop(number)
                if reply is None or reply.has_error():  # its process died, or its node is gone: ask once more, soon
                    if client in died or client in done:
                        continue
                    died.add(client)
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
        """Note which nodes are online now, and log the clients that disconnected or came back with one."""
        note(logs.CONTACT, logging.DEBUG)
        for client, node in self.nodes.items():
            if node in self.online - online:
                note(logs.DISCONNECTED, logging.WARNING, client=client, node=node)
            elif node in online - self.online:
                note(logs.CONNECTED, client=client, node=node)
        self.online = online

    def say_who_is_missing(self, order: Order, missing: Sequence[int], left: float) -> None:
        """Log how many nodes are being waited for or, if all are online, how many updates."""
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
        """Return whether a client says that it lacks the fixed part of the model."""
        return isinstance(answer, Refusal) and wire.LACKING in answer.why

    def hopeless(self, client: int) -> bool:
        """Return whether a client missed its last round and is still not connected, and so is not worth waiting for."""
        return client in self.absent and self.nodes.get(client) not in self.online

    def send(
        self, letters: Sequence[tuple[int, RecordDict]], round: int, life: float, kind: str = MessageType.TRAIN
    ) -> list[str]:
        """Send each node its content and return the numbers of the messages."""
        messages = [wire.request(content, node, kind, life, round) for node, content in letters]
        return list(self.grid.push_messages(messages)) if messages else []

    def pull(self, numbers: Sequence[str]) -> Iterator[tuple[str, Message | None]]:
        """Yield (message number, reply) for each reply that is there.

        The reply is None for every message of a pull in which a reply could not be read.
        """
        size = 1 if self.one_by_one else TOGETHER
        for part in (list(numbers[first : first + size]) for first in range(0, len(numbers), size)):
            left = max(LEAST, self.end - time.monotonic())
            try:
                with waiting_for_parts(left / min(len(numbers), TOGETHER)):
                    replies = list(self.grid.pull_messages(part))
            except LOST:
                raise
            except Exception:  # flwr could not put a reply together; those that came with it may be lost
                self.one_by_one = True
                yield from ((number, None) for number in part)
                continue
            for reply in replies:
                if reply.metadata.reply_to_message_id in part:
                    yield reply.metadata.reply_to_message_id, reply

    def call_roll(self) -> None:
        """Ask every node that has not said so yet which client it is.

        The first node to claim a client has it; another that claims it (as after a restart) gets it when the first has
        gone.
        """
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
        """Assign a client to a node, unless another node has it already, and return whether it was assigned."""
        if client is None or client in self.nodes:
            return False
        self.nodes[client] = node
        note(logs.CONNECTED, client=client, node=node)
        return True

    def prune(self, accepted: Mapping[int, int]) -> None:
        """Name these rounds in the next orders, so that the clients may delete what is older."""
        self.needed = accepted

    def open(self, folder: Path | None) -> None:
        """Do nothing: what clients keep is on their own disks."""

    def expect(self, accepted: Mapping[int, int]) -> None:
        """Do nothing: a client that lacks what it kept says so itself."""

    def save(self) -> None:
        """Do nothing: there is nothing to save here."""

    def close(self) -> None:
        """Do nothing: the grid belongs to whoever opened it."""
