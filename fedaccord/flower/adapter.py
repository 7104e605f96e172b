"""Every use of a part of Flower that is not public, behind a few functions of our own.

flwr.app, flwr.clientapp and flwr.serverapp are public. Everything else of flwr is imported in this file and in no
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
"""The versions of Flower that this file supports, the oldest first."""


@contextlib.contextmanager
def supported_flower() -> Iterator[None]:
    """Raise EngineError if the installed Flower is not supported or lacks a name that is imported inside the block."""
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


with supported_flower():  # slow imports are made where they are used
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
"""The exceptions that Flower raises when it cannot reach the SuperLink."""
POLL = 0.1
"""Seconds between two checks for new messages."""
MOST_PARTS, BESIDE = 16, 65_536
"""How many parts a message to a node may have (ours have up to five), and how many bytes besides its tensors."""
ACQUIRE = 60.0
"""Seconds within which the SuperLink must hand over a run that was started."""
PARTS = {"initial_backoff": 0.05, "backoff_cap": 1.0, "max_time": 15.0}
"""How flwr polls for the parts of a message: the first pause, the longest pause and the time limit, in seconds.

flwr's own values are 1, 10 and 7200; but most parts arrive within milliseconds, and the sender of a message may have
died. A message that is sent again brings only the parts that are not there yet."""

with supported_flower():
    defaults = pull_objects.__kwdefaults__ or {}
    if not PARTS.keys() <= defaults.keys():
        raise ImportError(f"pull_objects has other parameters than {', '.join(PARTS)}")
    defaults.update(PARTS)


@contextlib.contextmanager
def waiting_for_parts(seconds: float) -> Iterator[None]:
    """Let flwr wait at most this many seconds for the parts of a message inside the block, but no longer than usual.

    A message can be announced before its parts have arrived, and flwr waits for such messages one after the other.
    """
    defaults["max_time"] = min(PARTS["max_time"], seconds)
    try:
        yield
    finally:
        defaults["max_time"] = PARTS["max_time"]


class MessageDropped(EngineError):
    """A message that can no longer be received or answered; other messages are not affected."""


class MessageRefused(EngineError):
    """An invalid message; its sender is told why in a reply to `head`, the message without its content."""

    def __init__(self, why: str, head: Message):
        super().__init__(why)
        self.head = head


def version_of(component: str) -> Any:
    """Return the interceptor that tells the SuperLink our version of flwr and which of its components is asking."""
    with supported_flower():
        from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    return RuntimeVersionHttpInterceptor(component_name=component)


@contextlib.contextmanager
def open_grid(link: Link) -> Iterator[Grid]:
    """Start a Flower run and serve it in this process, which thus controls its output, its signals and its end."""
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
        with contextlib.suppress(httpx.HTTPError, RunNotRunningException):  # a SuperLink that is gone finds out itself
            grid._runtime_client.PushTaskOutput(PushTaskOutputRequest(sub_status=how, details=""))
        with contextlib.suppress(RuntimeError):  # it has ended by itself if the SuperLink no longer knows the run
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
    """Start a run for this process to serve; return the run's number, and the number and the token of its task."""
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

    with tempfile.TemporaryDirectory() as folder:  # Flower demands an app for a run; this one is never executed
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
            time.sleep(POLL)  # the tasks of runs that died come first
        client.close()
    except LOST as error:
        raise EngineError(f"no SuperLink at {link.address}: {error}") from None
    return run, got.task.task_id, got.token


def identify(task: int, run: int, node: int) -> None:
    """Tell flwr which task, run and node the messages of this process come from."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = task, run, node


@dataclass(frozen=True)
class Connection:
    """A node's connection to the SuperLink, which receives and sends whole messages."""

    node: int  # the node's number, which the SuperLink assigns
    look: Callable[..., Any]
    pull: Callable[..., Any]
    confirm: Callable[..., Any]
    announce: Callable[..., Any]
    push: Callable[..., Any]

    def receive(self, room: int) -> Message | None:
        """Return the next message, or None if there is none yet; raise MessageRefused if it is too large for `room`.

        `room` is how many bytes its tensors may have. MessageRefused is also raised for a malformed message.
        """
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
        """Assemble a message from its parts; raise MessageRefused if a checksum is wrong or they form no message."""
        number = head.metadata.message_id
        if any(get_object_id(content) != name for name, content in contents.items()):
            raise MessageRefused("a part of the message is not what its checksum says", head)
        try:
            message: Any = inflate_object_from_contents(number, contents)
            whole = message.has_content() and message.metadata.message_type == head.metadata.message_type
        except Exception as error:  # whatever flwr raises for forged bytes
            raise MessageRefused(f"the message cannot be put together: {first_line(error)}"[:200], head) from None
        if not whole:
            raise MessageRefused("the message has no content, or is of another kind than its head says", head)
        message.metadata.__dict__["_message_id"] = number
        return cast(Message, message)

    def send(self, reply: Message, seconds: float) -> None:
        """Send a reply, and announce that it took this many seconds to make."""
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
    """Raise MessageDropped if, in the block, flwr finds a message's run to be over or the message never finished."""
    try:
        yield
    except (RunNotRunningException, ObjectPullError):
        raise MessageDropped("its run is over, or its sender is gone") from None


@contextlib.contextmanager
def connect(link: Link, patience: float | None = None) -> Iterator[Connection]:
    """Connect to the SuperLink as a node; try again for `patience` seconds while it does not answer."""
    with supported_flower():
        from flwr.supernode.fleet_http_connection import http_request_response

    opened = http_request_response(*link.place, link.key_pair(), max_retries=None, max_wait_time=patience)
    with opened as (node, look, announce, _, _, pull, push, confirm):
        try:
            yield Connection(node, look, pull, confirm, announce, push)
        except KeyboardInterrupt:  # how flwr itself ends when the SuperLink says no
            raise KeyboardInterrupt("if nobody asked for it, the SuperLink lets this key in no more") from None
    raise EngineError(f"the connection to {link.address} has ended") from None  # flwr has said why


def sign_off(link: Link, node: int) -> None:
    """Sign off a node that was killed, proving by its own key that it is ours.

    Otherwise the SuperLink would believe it online for a minute and let nobody in under that key.
    """
    with supported_flower():
        from flwr.proto.fleet_pb2 import DeactivateNodeRequest
        from flwr.supernode.fleet_http_client import FleetHttpClient
        from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    interceptors = [version_of("SuperNode"), NodeAuthHttpInterceptor(*link.key_pair())]
    client = FleetHttpClient.from_server_address(*link.place, interceptors=interceptors)
    with client, contextlib.suppress(httpx.HTTPError):  # the node was not online
        client.DeactivateNode(DeactivateNodeRequest(node_id=node))


def register(link: Link, public_key: Path) -> None:
    """Register a node's public key with the SuperLink, unless it is registered; raise EngineError if it was revoked."""
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
    """Revoke a node's public key at the SuperLink, and return the number of the node that held it."""
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
    """A node that is registered with the SuperLink."""

    node: int
    key: bytes
    online: bool
    since: str  # when it came online or went offline, or was registered


def registered(link: Link) -> list[Registered]:
    """List the nodes that are registered with the SuperLink."""
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
    """Open the SuperLink's control interface, which asks for no password."""
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
    """Read a node's public key from its file, in the form in which the SuperLink stores it."""
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
    """Return an error as the reply to a message, saying why the client's process failed."""
    return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, why), reply_to=message)


def database_version() -> tuple[str, set[str]]:
    """Return the name of the version table of the SuperLink's database, and the versions in it once it is complete."""
    with supported_flower():
        from alembic.script import ScriptDirectory
        from flwr.supercore.state.alembic.utils import ALEMBIC_DIR, ALEMBIC_VERSION_TABLE

    return ALEMBIC_VERSION_TABLE, set(ScriptDirectory(str(ALEMBIC_DIR)).get_heads())
