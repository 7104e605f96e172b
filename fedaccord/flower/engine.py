"""A real federation over Flower: the only file that imports flwr.

    FlowerEngine   the server's end: an Engine over Flower's grid
    Member         a client's end: its data, its limits, theta_i on its own disk
    server_app, client_app   both as Flower apps, for the stock flower-superlink, flower-supernode and flwr run
    open_grid, run_node      both as processes of our own: no code travels, torch is loaded once

One message goes down and one comes back for each client and round. A message is one record: a few numbers, and the
model as safetensors bytes (exact, any dtype). Every object of a message is a request of its own: one is fastest.
"""

import contextlib
import copy
import hashlib
import math
import os
import signal
import sqlite3
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import flwr.supercore.inflatable.inflatable_utils as inflatable
import httpx
import safetensors.torch
import torch
from flwr.app import ConfigRecord, Context, Error, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode, SubStatus
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.run import RunNotRunningException
from safetensors import SafetensorError

from fedaccord.client.store import PrivateStore
from fedaccord.client.training import Site, train
from fedaccord.core.errors import EngineError, FedAccordError, SettingsError, UpdateRefused
from fedaccord.core.files import write_durably
from fedaccord.core.processes import die_with
from fedaccord.core.records import ClientUpdate, Hyper, Order, Params, Refusal

RECORD = "fedaccord"
POLL = 0.1
"""Seconds between two looks for messages."""
RESEND = 5.0
"""A client that did not answer is sent its order again after so many seconds, or after three times what the slowest
took in the round before if that is longer; each time after twice as long."""
FIRST = 60.0
"""The same, before anybody has answered."""
ROLL = 30.0
"""Seconds that a node has to say which client it is, before it is asked again."""

PARTS = 15.0
"""Seconds that either end waits for the parts of a message that it knows of. Who sent it may have died, and flwr would
wait for two hours. What is sent again brings only the parts that are not there yet."""

# flwr looks again after 1 to 10 s when a part is missing; most are there within milliseconds
assert inflatable.pull_objects.__kwdefaults__ is not None
inflatable.pull_objects.__kwdefaults__.update(initial_backoff=0.05, backoff_cap=1.0, max_time=PARTS)


# ---------------------------------------------------------------- what travels


def packed(params: Params) -> bytes:
    return safetensors.torch.save({name: value.detach().cpu().contiguous() for name, value in params.items()})


def unpacked(data: bytes) -> Params:
    params: Params = safetensors.torch.load(data)
    return params


def order_record(order: Order, experiment: str, committed: int) -> ConfigRecord:
    """The same for every client of the cohort: nothing in it says who it is for."""
    record = ConfigRecord(
        {
            "round": order.round,
            "committed": committed,
            "experiment": experiment,
            "report_loss": order.report_loss,
            # in the order of Hyper's fields; what is left to the client has no number
            "hyper": [math.nan if value is None else float(value) for value in astuple(order.hyper)],
            "params": packed(order.params),
        }
    )
    if order.previous is not None:
        record["previous"] = packed(order.previous)
    return record


ODD = (KeyError, TypeError, ValueError, OverflowError, RuntimeError, SafetensorError)
"""What reading a message can raise if somebody wrote nonsense into it."""


def read_order(record: Mapping[str, Any]) -> Order:
    """What a client takes from a message; anything odd is refused with a sentence."""
    try:
        values: dict[str, Any] = {}
        for item, value in zip(fields(Hyper), record["hyper"], strict=True):
            if type(value) is not float or (item.type is int and not value.is_integer()):
                raise UpdateRefused(f"{item.name} = {value!r} is of the wrong type")
            open_ = item.type == float | None and math.isnan(value)
            values[item.name] = None if open_ else int(value) if item.type is int else value
        previous = unpacked(record["previous"]) if "previous" in record else None
        order = Order(
            record["round"], (), unpacked(record["params"]), Hyper(**values), bool(record["report_loss"]), previous
        )
    except KeyError as error:
        raise UpdateRefused(f"the message has no {error}") from None
    except ODD as error:
        raise UpdateRefused(f"the message cannot be read: {error}"[:200]) from None
    if type(order.round) is not int or order.round < 1:
        raise UpdateRefused(f"round {order.round!r}")
    return order


def update_record(update: ClientUpdate) -> ConfigRecord:
    record = ConfigRecord({"examples": update.examples, "loss": float(update.loss), "params": packed(update.params)})
    for name in ("received_loss", "previous_loss"):
        if getattr(update, name) is not None:
            record[name] = float(getattr(update, name))
    return record


def read_update(client: int, order: Order, record: Mapping[str, Any]) -> ClientUpdate | Refusal:
    """What the server takes from a reply, and only what it asked for; checked once more before it enters the mean."""
    try:
        if "why" in record:
            return Refusal(client, f"the client said no: {str(record['why'])[:200]}")
        asked = {"received_loss": order.report_loss, "previous_loss": order.previous is not None}
        reports = [float(record[name]) if wanted else None for name, wanted in asked.items()]
        return ClientUpdate(client, unpacked(record["params"]), record["examples"], float(record["loss"]), *reports)
    except ODD as error:
        return Refusal(client, f"the reply cannot be read: {error!r}"[:200])


# ---------------------------------------------------------------- the server's end


class FlowerEngine:
    """Sends the cohort its order and takes what comes back before the deadline.

    A client is known by its own number, whatever node it sits on. An order that got lost with a process is sent again:
    whoever has to do a round twice starts from the theta_i of before it, so it gives the same answer.
    """

    def __init__(self, grid: Grid, experiment: str, deadline: float, min_replies: int = 1):
        self.grid, self.experiment, self.deadline, self.min_replies = grid, experiment, deadline, min_replies
        self.nodes: dict[int, int] = {}  # client -> node
        self.asked: dict[str, int] = {}  # roll-call messages that wait for an answer
        self.answered: set[int] = set()  # nodes that have said who they are
        self.absent: set[int] = set()  # clients that did not answer in their last round
        self.online: set[int] = set()
        self.one_by_one = False  # whether replies are pulled singly, since one of them was beyond reading
        self.committed = 0
        self.pause = FIRST

    def train(self, order: Order) -> Iterator[ClientUpdate | Refusal]:
        begin, slowest, usable = time.monotonic(), 0.0, 0
        end = begin + self.deadline
        record = order_record(order, self.experiment, self.committed)
        sent: dict[str, int] = {}
        due = dict.fromkeys(order.cohort, 0.0)  # client -> when to send (again)
        pause = dict.fromkeys(order.cohort, self.pause)
        done: dict[int, ClientUpdate | Refusal] = {}
        waiting = list(order.cohort)
        look = 0.0
        while waiting:
            now = time.monotonic()
            missing = [client for client in waiting if client not in done]
            if now >= look:
                look = now + 1.0
                self.online = set(self.grid.get_node_ids())
            if any(self.nodes.get(client) not in self.online for client in missing):
                self.call_roll()
            ready = [client for client in missing if now >= due[client] and self.nodes.get(client) in self.online]
            numbers = self.send([self.nodes[client] for client in ready], record, order.round, max(1.0, end - now))
            for client, number in zip(ready, numbers, strict=True):
                sent[number] = client
                due[client], pause[client] = now + pause[client], 2 * pause[client]
            for number, reply in self.pull(list(sent)):
                client = sent.pop(number)
                if reply is None or reply.has_error():  # its process died, or its node is gone: once more, soon
                    due[client] = min(due[client], time.monotonic() + 1.0)
                elif client in missing and client not in done:
                    done[client] = read_update(client, order, records_of(reply))
                    usable += isinstance(done[client], ClientUpdate)
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
        self.pause = max(RESEND, 3 * slowest) if slowest else self.pause

    def hopeless(self, client: int) -> bool:
        """Who missed its last round and is still not connected is not waited for, if the others suffice."""
        return client in self.absent and self.nodes.get(client) not in self.online

    def send(
        self, nodes: Sequence[int], record: ConfigRecord, round: int, life: float, kind: str = MessageType.TRAIN
    ) -> list[str]:
        messages = [
            Message(RecordDict({RECORD: record}), dst_node_id=node, message_type=kind, ttl=life, group_id=str(round))
            for node in nodes
        ]
        return list(self.grid.push_messages(messages)) if messages else []

    def pull(self, numbers: Sequence[str]) -> Iterator[tuple[str, Message | None]]:
        """The replies that are there, each with the number of the message it answers; None for one beyond reading."""
        parts = [[number] for number in numbers] if self.one_by_one else [list(numbers)]
        for part in filter(None, parts):
            try:
                replies = list(self.grid.pull_messages(part))
            except (httpx.HTTPError, OSError):
                raise
            except Exception:  # somebody sent what flwr cannot put together; what came with it may be lost
                self.one_by_one = True
                yield from ((number, None) for number in part)
                continue
            for reply in replies:
                if reply.metadata.reply_to_message_id in part:
                    yield reply.metadata.reply_to_message_id, reply

    def call_roll(self) -> None:
        """Ask every node that has not said so yet which client it is. The first to claim a number has it."""
        self.answered &= self.online
        self.nodes = {client: node for client, node in self.nodes.items() if node in self.online}
        unknown = [node for node in self.online if node not in {*self.answered, *self.asked.values()}]
        self.asked |= zip(self.send(unknown, ConfigRecord({}), 0, ROLL, MessageType.QUERY), unknown, strict=True)
        for number, reply in self.pull(list(self.asked)):
            node = self.asked.pop(number)
            if reply is not None and not reply.has_error():
                self.answered.add(node)
                client = records_of(reply).get("client")
                if type(client) is int:
                    self.nodes.setdefault(client, node)

    def open(self, folder: Path | None) -> None:
        """What clients keep lies with them."""

    def expect(self, newest: Mapping[int, int]) -> None: ...

    def save(self) -> dict[int, int]:
        return {}

    def prune(self, committed: int) -> None:
        """Named in the next message: the clients may forget what is older."""
        self.committed = committed

    def close(self) -> None: ...


def records_of(message: Message) -> Mapping[str, Any]:
    """What is ours in a message."""
    return message.content.config_records.get(RECORD, ConfigRecord())


# ---------------------------------------------------------------- a client's end


@dataclass(frozen=True)
class Limits:
    """What a client does at most, whoever asks."""

    max_steps: int = 1000
    min_lr: float = 1e-6
    max_lr: float = 2.0
    max_batch: int = 4096


class Member:
    """One client of a federation. `site` holds its data alone, under its number; `folder` is on its own disk."""

    def __init__(self, client: int, site: Site, folder: Path, experiment: str, limits: Limits):
        self.client, self.site, self.experiment, self.limits = client, site, experiment, limits
        self.workspace = copy.deepcopy(site.model)
        self.store = PrivateStore(folder / experiment, in_memory=False)
        self.store.newest[client] = 0  # what is on disk from before may be forgotten too
        self.last: tuple[str, ConfigRecord] | None = None  # the newest order that was carried out, and its answer

    def answer(self, record: Mapping[str, Any]) -> ConfigRecord:
        """An order -> the reply. Whatever is refused leaves theta_i as it was."""
        try:
            return self.carried_out(record)
        except FedAccordError as error:
            return ConfigRecord({"why": str(error)})

    def carried_out(self, record: Mapping[str, Any]) -> ConfigRecord:
        order = self.checked(record)
        private = self.store.get(self.client, order.round)
        update, kept = train(self.site, self.workspace, order, self.client, private)
        if kept is not None:
            self.store.put(self.client, order.round, kept)
        self.store.prune(min(int(record["committed"]), order.round - 1))
        return update_record(update)

    def checked(self, record: Mapping[str, Any]) -> Order:
        order, limits = read_order(record), self.limits
        if record.get("experiment") != self.experiment:
            raise UpdateRefused("the server runs another experiment: task, settings or version differ from mine")
        if type(record.get("committed")) is not int:
            raise UpdateRefused("the message does not name the last committed round")
        hyper = order.hyper
        if not 1 <= hyper.steps <= limits.max_steps:
            raise UpdateRefused(f"steps = {hyper.steps}: I do 1 to {limits.max_steps}")
        if not limits.min_lr <= hyper.lr <= limits.max_lr:
            raise UpdateRefused(f"lr = {hyper.lr:g}: I take {limits.min_lr:g} to {limits.max_lr:g}")
        if not 1 <= hyper.batch_size <= limits.max_batch:
            raise UpdateRefused(f"batch_size = {hyper.batch_size}: I take 1 to {limits.max_batch}")
        for name in ("momentum", "entropy_min", "entropy_weight", "wd_weight", "rm_weight"):
            value = getattr(hyper, name)
            if value is not None and not 0 <= value < math.inf:
                raise UpdateRefused(f"{name} = {value:g}: not a weight")
        own = self.site.model.state_dict()
        for params in (order.params, *([order.previous] if order.previous is not None else [])):
            if params.keys() != own.keys():
                raise UpdateRefused("the model's names are not mine")
            for name, value in params.items():
                if value.shape != own[name].shape or value.dtype != own[name].dtype:
                    raise UpdateRefused(f"{name} has shape {tuple(value.shape)} and type {value.dtype}, not mine")
                if value.is_floating_point() and not bool(value.isfinite().all()):
                    raise UpdateRefused(f"{name} has a value that is not finite")
        return order


def reply_with(record: ConfigRecord, message: Message) -> Message:
    return Message(RecordDict({RECORD: record}), reply_to=message)


# ---------------------------------------------------------------- as Flower apps


def server_app(main: Callable[[Grid, Mapping[str, Any]], None]) -> ServerApp:
    """`main` gets the grid and the run's configuration."""
    app = ServerApp()

    @app.main()
    def start(grid: Grid, context: Context) -> None:
        main(grid, context.run_config)

    return app


def client_app(make: Callable[[Mapping[str, Any]], Member]) -> ClientApp:
    """`make` gets the node's configuration. Flower starts a process for every message: it is called in each."""
    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        return reply_with(ConfigRecord({"client": int(context.node_config["client"])}), message)

    @app.train()
    def train_(message: Message, context: Context) -> Message:
        return reply_with(make(context.node_config).answer(records_of(message)), message)

    return app


# ---------------------------------------------------------------- as processes of our own


@dataclass(frozen=True)
class Link:
    """How to reach the SuperLink."""

    address: str
    certificates: bytes | None  # of the authority that signed its certificate; None: plaintext
    key: Path | None = None  # a node's private key
    secret: bytes | None = None  # with which the server proves that runs are its to serve

    @property
    def insecure(self) -> bool:
        return self.certificates is None


@contextlib.contextmanager
def open_grid(link: Link) -> Iterator[Grid]:
    """Start a run of Flower's and serve it in this process: its output, its signals and its end are ours."""
    from flwr.cli.build import build_fab_from_disk
    from flwr.common.serde import fab_to_proto, run_from_proto
    from flwr.proto.control_pb2 import StartRunRequest
    from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest, PushTaskOutputRequest
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.fab import Fab
    from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
    from flwr.supercore.retry import make_simple_http_retry_invoker
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.supercore.task_identity import TaskIdentity
    from flwr.superlink.grid import HttpGrid

    where = (link.address, link.insecure, link.certificates)
    with tempfile.TemporaryDirectory() as folder:  # Flower wants an app for a run; nobody ever runs this one
        (Path(folder) / "pyproject.toml").write_text(EMPTY_APP)
        fab = build_fab_from_disk(Path(folder))
    try:
        with ControlHttpClient.from_server_address(
            *where, [RuntimeVersionHttpInterceptor(component_name="flwr CLI")]
        ) as control:
            request = StartRunRequest(fab=fab_to_proto(Fab(hashlib.sha256(fab).hexdigest(), fab, {})))
            run = control.StartRun(request).run_id
        interceptors: list[Any] = [RuntimeVersionHttpInterceptor(component_name="SuperExec")]
        if link.secret is not None:
            protected = frozenset({"/flwr.proto.Runtime/AcquireTask"})
            interceptors.append(SuperExecAuthHttpInterceptor(master_secret=link.secret, protected_methods=protected))
        client = RuntimeHttpClient.from_server_address(
            *where, interceptors, retry_invoker=make_simple_http_retry_invoker()
        )
        wanted = AcquireTaskRequest(supported_task_types=["flwr-serverapp"])
        end = time.monotonic() + FIRST
        while not ((got := client.AcquireTask(wanted)).HasField("task") and got.task.run_id == run):
            if time.monotonic() > end:
                raise EngineError("the SuperLink gave the run to somebody else: it needs --isolation process")
            time.sleep(POLL)  # those of runs that died come first
        client.close()
    except (httpx.HTTPError, OSError) as error:
        raise EngineError(f"no SuperLink at {link.address}: {error}") from None
    grid = HttpGrid(*where, token=got.token)
    heart = HeartbeatSender(make_task_heartbeat_fn_http(grid._runtime_client))
    heart.start()
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = got.task.task_id, run, 1
    grid.set_run(run_from_proto(grid._runtime_client.PullTaskInput(PullTaskInputRequest()).run))
    how = SubStatus.FAILED
    try:
        yield grid
        how = SubStatus.COMPLETED
    except (httpx.HTTPError, RunNotRunningException) as error:
        raise EngineError(f"the SuperLink at {link.address} is gone: {error}") from None
    finally:
        grid._retry_invoker.max_tries = 1
        with contextlib.suppress(httpx.HTTPError, RunNotRunningException):  # if it is gone it will find out by itself
            grid._runtime_client.PushTaskOutput(PushTaskOutputRequest(sub_status=how, details=""))
        with contextlib.suppress(RuntimeError):  # it ends by itself when the SuperLink does not know the run any more
            heart.stop()
        grid.close()


EMPTY_APP = """
[project]
name = "fedaccord"
version = "1.0.0"
description = "Served by fedaccord itself"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedaccord"

[tool.flwr.app.components]
serverapp = "none:app"
clientapp = "none:app"
"""


def run_node(link: Link, member: Member, say: Callable[[str], None], patience: float | None = None) -> None:
    """Be a SuperNode for this client until SIGTERM. Code that a server sends is never fetched, let alone run.

    Each order is carried out in a process forked for it, so that whatever happens there leaves this one in peace.
    """
    from flwr.supercore.inflatable.inflatable_object import (
        get_all_nested_objects,
        get_object_tree,
        iterate_object_tree,
        no_object_id_recompute,
    )
    from flwr.supernode.fleet_http_connection import http_request_response

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    keys = key_pair(link)
    note = None if link.key is None else Path(f"{link.key}.node")
    if note is not None and note.exists() and note.read_text().isdigit():
        sign_off(link, keys, int(note.read_text()))
    torch.set_num_threads(1)
    connection = http_request_response(
        link.address, link.insecure, link.certificates, keys, max_retries=None, max_wait_time=patience
    )
    with connection as (node, receive, send, _, _, pull, push, confirm):
        if note is not None:
            write_durably(note, str(node).encode())
        say(f"client {member.client} is connected as node {node}")
        while True:
            came = receive()
            if came is None:
                time.sleep(POLL)
                continue
            head, tree = came
            run, number = head.metadata.run_id, head.metadata.message_id
            try:
                contents = inflatable.pull_objects(
                    [part.object_id for part in iterate_object_tree(tree)], pull_object_fn=partial(pull, run)
                )
                confirm(run, number)
                message: Any = inflatable.inflate_object_from_contents(number, contents)
                message.metadata.__dict__["_message_id"] = number
                begin = time.monotonic()
                reply = in_a_child(member, message)
                reply.metadata.__dict__["_message_id"] = reply.object_id
                with no_object_id_recompute():
                    wanted, session = send(reply, get_object_tree(reply), time.monotonic() - begin)
                    inflatable.push_objects(
                        get_all_nested_objects(reply),
                        push_object_fn=partial(push, run, session),
                        object_ids_to_push=wanted,
                    )
            except (RunNotRunningException, inflatable.ObjectPullError):
                say("dropped a message: its run is over, or its sender is gone")
    raise EngineError(f"the connection to {link.address} has ended")  # flwr has said why


def in_a_child(member: Member, message: Message) -> Message:
    """Carry out an order in a forked process. If that dies, the server is told at once and may send it again."""
    if message.metadata.message_type.startswith(MessageType.QUERY):
        return reply_with(ConfigRecord({"client": member.client}), message)
    record = records_of(message)
    asked = hashlib.sha256(ConfigRecord(dict(record)).deflate()).hexdigest()
    if member.last is not None and member.last[0] == asked:  # sent twice: the answer was slow, or lost
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
        return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "the client's process died"), reply_to=message)
    answer = ConfigRecord.inflate(data)
    if "params" in answer:
        member.last = asked, answer
    return reply_with(answer, message)


def key_pair(link: Link) -> Any:
    """A node's key in the form that flwr wants; None if it has none."""
    if link.key is None:
        return None
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    try:
        key = load_ssh_private_key(link.key.read_bytes(), None)
    except (OSError, ValueError) as error:
        raise SettingsError(f"{link.key}: not a private key of a node: {error}") from None
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key, key.public_key()


def sign_off(link: Link, keys: Any, node: int) -> None:
    """After a kill the SuperLink believes the node online for a minute and lets nobody in; the key proves it is us."""
    from flwr.proto.fleet_pb2 import DeactivateNodeRequest
    from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    interceptors: list[Any] = [
        RuntimeVersionHttpInterceptor(component_name="SuperNode"),
        NodeAuthHttpInterceptor(*keys),
    ]
    client = FleetHttpClient.from_server_address(
        link.address, link.insecure, link.certificates, interceptors=interceptors
    )
    with client, contextlib.suppress(httpx.HTTPError):  # it was not online
        client.DeactivateNode(DeactivateNodeRequest(node_id=node))


def is_whole(database: Path) -> bool:
    """Tell whether a SuperLink that is not running has finished this database, in the version of this flwr.

    It is made by a chain of migrations, none of which SQLite takes back when the process is killed in it. Each is noted
    after its last statement, so a database that names the last one has all of them.
    """
    from alembic.script import ScriptDirectory
    from flwr.supercore.state.alembic.utils import ALEMBIC_DIR, ALEMBIC_VERSION_TABLE

    if not database.is_file():
        return False
    try:
        with contextlib.closing(sqlite3.connect(database)) as opened:
            found = {version for (version,) in opened.execute(f"SELECT version_num FROM {ALEMBIC_VERSION_TABLE}")}
    except sqlite3.Error:
        return False
    return found == set(ScriptDirectory(str(ALEMBIC_DIR)).get_heads())


def register(link: Link, public_key: Path) -> None:
    """Tell the SuperLink that the holder of this key may come in; it may know already."""
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key
    from flwr.proto.control_pb2 import RegisterNodeRequest
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    version = RuntimeVersionHttpInterceptor(component_name="flwr CLI")
    key: Any = load_ssh_public_key(public_key.read_bytes())
    with ControlHttpClient.from_server_address(link.address, link.insecure, link.certificates, [version]) as control:
        try:
            control.RegisterNode(RegisterNodeRequest(public_key=public_key_to_bytes(key)))
        except httpx.HTTPStatusError as error:
            if "already in use" not in error.response.text:
                raise EngineError(f"{public_key}: cannot be registered: {error.response.text[:200]}") from None
        except httpx.HTTPError as error:
            raise EngineError(f"no SuperLink at {link.address}: {error}") from None
