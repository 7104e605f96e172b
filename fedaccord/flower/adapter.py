"""Every part of Flower that is not public, behind a few words of our own.

Public are flwr.app, flwr.clientapp and flwr.serverapp. Everything else of flwr is imported in this file and in no
other, so that a new version of Flower can break this file alone; tests/flower/test_adapter.py says which name is gone.
"""

import contextlib
import hashlib
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import Any, cast

from fedaccord.core.errors import EngineError, SettingsError, first_line
from fedaccord.core.files import read_up_to
from fedaccord.flower.certificates import LONGEST, Link

SUPPORTED = ("1.41", "1.42")
"""The versions of Flower that this file is written for, the oldest first."""


@contextlib.contextmanager
def supported_flower() -> Iterator[None]:
    """Raise one sentence if Flower has another version, or lacks a name that is imported inside."""
    try:
        found = version("flwr")
    except PackageNotFoundError:
        found = "none"
    wanted = f"fedaccord works with Flower {' and '.join(SUPPORTED)} and finds {found}"
    remedy = "pip install 'fedaccord[flower]'"
    if ".".join(found.split(".")[:2]) not in SUPPORTED:
        raise EngineError(f"{wanted}: {remedy}")
    try:
        yield
    except ImportError as error:
        raise EngineError(f"{wanted}, in which something is missing ({str(error).split(' (')[0]}): {remedy}") from None


with supported_flower():  # what takes long to import is imported where it is used
    import httpx
    from flwr.app import Error, Message
    from flwr.common.constant import ErrorCode, SubStatus
    from flwr.serverapp import Grid
    from flwr.supercore.inflatable.inflatable_object import (
        get_all_nested_objects,
        get_object_id,
        get_object_tree,
        iterate_object_tree,
        no_object_id_recompute,
    )
    from flwr.supercore.inflatable.inflatable_utils import (
        ObjectPullError,
        inflate_object_from_contents,
        pull_objects,
        push_objects,
    )
    from flwr.supercore.run import RunNotRunningException
    from flwr.supercore.task_identity import TaskIdentity

LOST = (httpx.HTTPError, OSError)
"""What Flower raises when it cannot reach the SuperLink."""
POLL = 0.1
"""Seconds between two looks for messages."""
MOST_PARTS, BESIDE = 16, 65_536
"""Parts that a message to a node may have (ours have up to five), and bytes beyond those of its tensors."""
ACQUIRE = 60.0
"""Seconds that the SuperLink has to hand over a run that was started."""
PARTS = {"initial_backoff": 0.05, "backoff_cap": 1.0, "max_time": 15.0}
"""Seconds between two looks for the parts of a message, at first and at most, and for how long it is looked for them.

flwr takes 1, 10 and 7200; but most parts are there within milliseconds, and who sent a message may have died. What is
sent again brings only the parts that are not there yet."""

with supported_flower():
    defaults = pull_objects.__kwdefaults__ or {}
    if not PARTS.keys() <= defaults.keys():
        raise ImportError(f"pull_objects has other parameters than {', '.join(PARTS)}")
    defaults.update(PARTS)


@contextlib.contextmanager
def waiting_for_parts(seconds: float) -> Iterator[None]:
    """Look for the parts of each message for so many seconds inside the block, but no longer than usual.

    A message that is pulled can be announced and not be there yet, and flwr waits for one after the other.
    """
    defaults["max_time"] = min(PARTS["max_time"], seconds)
    try:
        yield
    finally:
        defaults["max_time"] = PARTS["max_time"]


class MessageDropped(EngineError):
    """A message that can neither be received nor answered any more, which leaves the others as they are."""


class MessageRefused(EngineError):
    """A message that is not what a message may be; whoever sent it is told, in answer to its head."""

    def __init__(self, why: str, head: Message):
        super().__init__(why)
        self.head = head


def version_of(component: str) -> Any:
    """Make what tells the SuperLink our version of flwr; it wants to know which component asks."""
    with supported_flower():
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    return RuntimeVersionHttpInterceptor(component_name=component)


@contextlib.contextmanager
def open_grid(link: Link) -> Iterator[Grid]:
    """Start a run of Flower's and serve it in this process: its output, its signals and its end are ours."""
    with supported_flower():
        from flwr.common.serde import run_from_proto
        from flwr.proto.runtime_pb2 import PullTaskInputRequest, PushTaskOutputRequest
        from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
        from flwr.superlink.grid import HttpGrid

    run, task, token = start_run(link)
    grid = HttpGrid(*link.place, token=token)
    heart = HeartbeatSender(make_task_heartbeat_fn_http(grid._runtime_client))
    heart.start()
    identify(task, run, 1)
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


def start_run(link: Link) -> tuple[int, int, str]:
    """Start a run that this process serves; return its number, and the number and the token of the task to serve it."""
    with supported_flower():
        from flwr.cli.build import build_fab_from_disk
        from flwr.common.serde import fab_to_proto
        from flwr.proto.control_pb2 import StartRunRequest
        from flwr.proto.runtime_pb2 import AcquireTaskRequest
        from flwr.supercore.control import ControlHttpClient
        from flwr.supercore.fab import Fab
        from flwr.supercore.interceptors import SuperExecAuthHttpInterceptor
        from flwr.supercore.retry import make_simple_http_retry_invoker
        from flwr.supercore.runtime import RuntimeHttpClient

    with tempfile.TemporaryDirectory() as folder:  # Flower wants an app for a run; nobody ever runs this one
        (Path(folder) / "pyproject.toml").write_text(EMPTY_APP)
        app = build_fab_from_disk(Path(folder))
    try:
        with ControlHttpClient.from_server_address(*link.place, [version_of("flwr CLI")]) as control:
            request = StartRunRequest(fab=fab_to_proto(Fab(hashlib.sha256(app).hexdigest(), app, {})))
            run = control.StartRun(request).run_id
        interceptors = [version_of("SuperExec")]
        if link.secret is not None:
            protected = frozenset({"/flwr.proto.Runtime/AcquireTask"})
            interceptors.append(SuperExecAuthHttpInterceptor(master_secret=link.secret, protected_methods=protected))
        retry = make_simple_http_retry_invoker()
        client = RuntimeHttpClient.from_server_address(*link.place, interceptors, retry_invoker=retry)
        wanted = AcquireTaskRequest(supported_task_types=["flwr-serverapp"])
        end = time.monotonic() + ACQUIRE
        while not ((got := client.AcquireTask(wanted)).HasField("task") and got.task.run_id == run):
            if time.monotonic() > end:
                raise EngineError("the SuperLink gave the run to somebody else: it needs --isolation process")
            time.sleep(POLL)  # those of runs that died come first
        client.close()
    except LOST as error:
        raise EngineError(f"no SuperLink at {link.address}: {error}") from None
    return run, got.task.task_id, got.token


def identify(task: int, run: int, node: int) -> None:
    """Tell flwr whose messages this process makes."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = task, run, node


@dataclass(frozen=True)
class Connection:
    """A node's connection to the SuperLink, in which messages come and go as a whole."""

    node: int  # its number, given by the SuperLink
    look: Callable[..., Any]
    pull: Callable[..., Any]
    confirm: Callable[..., Any]
    announce: Callable[..., Any]
    push: Callable[..., Any]

    def receive(self, room: int) -> Message | None:
        """Return the next message, or None if there is none yet; refuse one of more bytes than there is room for."""
        came = self.look()
        if came is None:
            return None
        head, tree = came
        run, number = head.metadata.run_id, head.metadata.message_id
        head.metadata.__dict__["_message_id"] = number
        left = [room + BESIDE]

        def pull(name: str) -> bytes:
            content: bytes = self.pull(run, name)
            left[0] -= len(content)
            if left[0] < 0:
                raise MessageRefused(f"the message has more than {room + BESIDE:,} bytes, which are more than I need",
                                     head)  # fmt: skip
            return content

        with dropping():
            names = list({part.object_id for part in islice(iterate_object_tree(tree), MOST_PARTS + 1)})
            try:
                if len(names) > MOST_PARTS:
                    raise MessageRefused(f"the message has more than {MOST_PARTS} parts", head)
                contents = pull_objects(names, pull_object_fn=pull)
            except MessageRefused:
                self.confirm(run, number)
                raise
            self.confirm(run, number)
        return self.put_together(head, contents)

    def put_together(self, head: Message, contents: dict[str, bytes]) -> Message:
        """Make a message of its parts; refuse it if they are not what they are named by, or no message."""
        number = head.metadata.message_id
        if any(get_object_id(content) != name for name, content in contents.items()):
            raise MessageRefused("a part of the message is not what its checksum says", head)
        try:
            message: Any = inflate_object_from_contents(number, contents)
            whole = message.has_content() and message.metadata.message_type == head.metadata.message_type
        except Exception as error:  # whatever flwr raises for bytes that somebody made up
            raise MessageRefused(f"the message cannot be put together: {first_line(error)}"[:200], head) from None
        if not whole:
            raise MessageRefused("the message has no content, or is of another kind than its head says", head)
        message.metadata.__dict__["_message_id"] = number
        return cast(Message, message)

    def send(self, reply: Message, seconds: float) -> None:
        """Send a reply that took so many seconds to make."""
        reply.metadata.__dict__["_message_id"] = reply.object_id
        with dropping(), no_object_id_recompute():
            wanted, session = self.announce(reply, get_object_tree(reply), seconds)
            push_objects(
                get_all_nested_objects(reply),
                push_object_fn=partial(self.push, reply.metadata.run_id, session),
                object_ids_to_push=wanted,
            )


@contextlib.contextmanager
def dropping() -> Iterator[None]:
    """Raise MessageDropped if nobody waits for this message any more, or its sender did not finish it."""
    try:
        yield
    except (RunNotRunningException, ObjectPullError):
        raise MessageDropped("its run is over, or its sender is gone") from None


@contextlib.contextmanager
def connect(link: Link, patience: float | None = None) -> Iterator[Connection]:
    """Connect as a node; `patience` is for how many seconds a SuperLink that does not answer is tried again."""
    with supported_flower():
        from flwr.supernode.fleet_http_connection import http_request_response

    opened = http_request_response(*link.place, link.key_pair(), max_retries=None, max_wait_time=patience)
    with opened as (node, look, announce, _, _, pull, push, confirm):
        try:
            yield Connection(node, look, pull, confirm, announce, push)
        except KeyboardInterrupt:  # flwr's own way to end when the SuperLink says no
            raise KeyboardInterrupt("if nobody asked for it, the SuperLink lets this key in no more") from None
    raise EngineError(f"the connection to {link.address} has ended") from None  # flwr has said why


def sign_off(link: Link, node: int) -> None:
    """Sign off a node that was killed. The SuperLink would believe it online for a minute and let nobody in.

    The node's own key proves that it is ours.
    """
    with supported_flower():
        from flwr.proto.fleet_pb2 import DeactivateNodeRequest
        from flwr.supernode.fleet_http_client import FleetHttpClient
        from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    interceptors = [version_of("SuperNode"), NodeAuthHttpInterceptor(*link.key_pair())]
    client = FleetHttpClient.from_server_address(*link.place, interceptors=interceptors)
    with client, contextlib.suppress(httpx.HTTPError):  # it was not online
        client.DeactivateNode(DeactivateNodeRequest(node_id=node))


def register(link: Link, public_key: Path) -> None:
    """Tell the SuperLink that the holder of this key may come in; it may know already. What was revoked stays so."""
    with supported_flower():
        from flwr.proto.control_pb2 import RegisterNodeRequest

    key = key_bytes(public_key)
    with control_of(link) as control:
        try:
            control.RegisterNode(RegisterNodeRequest(public_key=key))
        except httpx.HTTPStatusError as error:
            if "already in use" not in error.response.text:
                raise EngineError(f"{public_key}: cannot be registered: {error.response.text[:200]}") from None
            if key not in [each.key for each in registered(link)]:
                raise EngineError(
                    f"{public_key}: was revoked, and Flower takes no key again: make another (fedaccord federation key)"
                ) from None


def unregister(link: Link, public_key: Path) -> int:
    """Tell the SuperLink to let the holder of this key in no more; return the number of the node that it was."""
    with supported_flower():
        from flwr.proto.control_pb2 import UnregisterNodeRequest

    key = key_bytes(public_key)
    node = next((each.node for each in registered(link) if each.key == key), None)
    if node is None:
        raise EngineError(f"{public_key}: the SuperLink at {link.address} does not know this key, or let it go already")
    with control_of(link) as control:
        control.UnregisterNode(UnregisterNodeRequest(node_id=node))
    return node


@dataclass(frozen=True)
class Registered:
    """A node that the SuperLink lets in."""

    node: int
    key: bytes
    online: bool
    since: str  # when it came online or went offline, or was registered


def registered(link: Link) -> list[Registered]:
    """List the nodes that the SuperLink lets in."""
    with supported_flower():
        from flwr.proto.control_pb2 import ListNodesRequest
        from flwr.supercore.constant import NodeStatus

    with control_of(link) as control:
        found = [
            each for each in control.ListNodes(ListNodesRequest()).nodes_info if each.status != NodeStatus.UNREGISTERED
        ]
    return [
        Registered(
            each.node_id,
            each.public_key,
            online := each.status == NodeStatus.ONLINE,
            (each.last_activated_at if online else each.last_deactivated_at) or each.registered_at,
        )
        for each in found
    ]


@contextlib.contextmanager
def control_of(link: Link) -> Iterator[Any]:
    """Open Flower's control interface, which asks for no password."""
    with supported_flower():
        from flwr.supercore.control import ControlHttpClient

    try:
        with ControlHttpClient.from_server_address(*link.place, [version_of("flwr CLI")]) as control:
            yield control
    except httpx.HTTPStatusError as error:
        raise EngineError(f"the SuperLink at {link.address} said no: {error.response.text[:200]}") from None
    except LOST as error:
        raise EngineError(f"no SuperLink at {link.address}: {error}") from None


def key_bytes(public_key: Path) -> bytes:
    """Read a node's public key as the SuperLink keeps it."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    with supported_flower():
        from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    try:
        key: Any = load_ssh_public_key(read_up_to(public_key, LONGEST))
    except (OSError, ValueError, TypeError, NotImplementedError, UnsupportedAlgorithm) as error:
        raise SettingsError(f"{public_key}: not a public key of a node (FILE.pub): {error}") from None
    return bytes(public_key_to_bytes(key))


def error_reply(message: Message, why: str) -> Message:
    """Answer a message with the news that the client's process failed."""
    return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, why), reply_to=message)


def database_version() -> tuple[str, set[str]]:
    """Name the table in which the SuperLink's database says how it was made, and what is there when it is finished."""
    with supported_flower():
        from alembic.script import ScriptDirectory
        from flwr.supercore.state.alembic.utils import ALEMBIC_DIR, ALEMBIC_VERSION_TABLE

    return ALEMBIC_VERSION_TABLE, set(ScriptDirectory(str(ALEMBIC_DIR)).get_heads())
