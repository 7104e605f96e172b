"""Flower still has every non-public part that fedaccord uses, and fedaccord uses them in one file alone."""

import ast
import contextlib
import importlib
import importlib.metadata
import inspect
import re
import tomllib
import typing
from pathlib import Path
from typing import Any

import pytest

from fedaccord.core.errors import EngineError
from fedaccord.flower.certificates import Link

pytestmark = pytest.mark.filterwarnings("ignore")  # flwr's own

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "fedaccord"
ADAPTER = PACKAGE / "flower" / "adapter.py"
PUBLIC = ("flwr.app", "flwr.clientapp", "flwr.serverapp")

# what the adapter uses of objects that flwr hands out; the imported names and their attributes are read from its source
MEMBERS = {
    "flwr.app.Message": "object_id metadata has_content",
    "flwr.supercore.control.ControlHttpClient": "__enter__ StartRun RegisterNode UnregisterNode ListNodes",
    "flwr.supercore.heartbeat.HeartbeatSender": "start stop",
    "flwr.supercore.runtime.RuntimeHttpClient": "AcquireTask PullTaskInput PushTaskOutput close",
    "flwr.superlink.grid.HttpGrid": "_runtime_client set_run get_node_ids push_messages pull_messages close",
    "flwr.supernode.fleet_http_client.FleetHttpClient": "__enter__ DeactivateNode",
}
PLACE = "server_address insecure root_certificates"  # passed by position, as the first ones
PARAMETERS = {
    "flwr.supercore.control.ControlHttpClient.from_server_address": f"{PLACE} interceptors",
    "flwr.supercore.fab.Fab": "hash_str content verifications",
    "flwr.supercore.inflatable.inflatable_utils.pull_objects": "pull_object_fn initial_backoff backoff_cap max_time",
    "flwr.supercore.inflatable.inflatable_utils.push_objects": "push_object_fn object_ids_to_push",
    "flwr.supercore.interceptors.RuntimeVersionHttpInterceptor": "component_name",
    "flwr.supercore.interceptors.SuperExecAuthHttpInterceptor": "master_secret protected_methods",
    "flwr.supercore.runtime.RuntimeHttpClient.from_server_address": f"{PLACE} interceptors retry_invoker",
    "flwr.superlink.grid.HttpGrid": "runtime_api_address insecure root_certificates token",
    "flwr.supernode.fleet_http_client.FleetHttpClient.from_server_address": f"{PLACE} interceptors",
    "flwr.supernode.fleet_http_connection.http_request_response": f"{PLACE} max_retries max_wait_time",
}
FIELDS = {
    "flwr.proto.control_pb2.ListNodesResponse": "nodes_info",
    "flwr.proto.control_pb2.RegisterNodeRequest": "public_key",
    "flwr.proto.control_pb2.StartRunRequest": "fab",
    "flwr.proto.control_pb2.StartRunResponse": "run_id",
    "flwr.proto.control_pb2.UnregisterNodeRequest": "node_id",
    "flwr.proto.fleet_pb2.DeactivateNodeRequest": "node_id",
    "flwr.proto.message_pb2.ObjectTree": "object_id",
    "flwr.proto.node_pb2.NodeInfo": "node_id status public_key last_activated_at last_deactivated_at registered_at",
    "flwr.proto.runtime_pb2.AcquireTaskRequest": "supported_task_types",
    "flwr.proto.runtime_pb2.AcquireTaskResponse": "task token",
    "flwr.proto.runtime_pb2.PullTaskInputResponse": "run",
    "flwr.proto.runtime_pb2.PushTaskOutputRequest": "sub_status details",
    "flwr.proto.task_pb2.Task": "task_id run_id",
}


def imports_of(file: Path) -> dict[str, str]:
    """The names that a file imports, each with its full name."""
    found = {}
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.asname or alias.name: alias.name for alias in node.names}
    return found


def not_public(name: str) -> bool:
    return name.split(".")[0] == "flwr" and not name.startswith(tuple(f"{module}." for module in PUBLIC))


def names_in_use() -> list[str]:
    """What the adapter imports of flwr that is not public, and the attributes that it takes of these by name."""
    imported = {short: name for short, name in imports_of(ADAPTER).items() if not_public(name)}
    found = set(imported.values())
    for node in ast.walk(ast.parse(ADAPTER.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in imported:
            found.add(f"{imported[node.value.id]}.{node.attr}")
    return sorted(found)


def look_up(name: str) -> Any:
    """What flwr has under a full name; a test that asks for what is gone fails with one sentence."""
    found, parts = importlib.import_module("flwr"), name.split(".")
    for count, part in enumerate(parts[1:], 2):
        if inspect.ismodule(found) and not hasattr(found, part):
            with contextlib.suppress(ModuleNotFoundError):
                importlib.import_module(".".join(parts[:count]))
        found = inspect.getattr_static(found, part, None)  # a property of a class may have no value yet
        if found is None:
            gone(name)
    return found


def gone(name: str) -> None:
    version = importlib.metadata.version("flwr")
    pytest.fail(f"flwr {version} has no {name}, which fedaccord/flower/adapter.py uses", pytrace=False)


def each(table: dict[str, str]) -> list[tuple[str, str]]:
    return [(owner, name) for owner, names in table.items() for name in names.split()]


@pytest.mark.parametrize("name", names_in_use())
def test_flower_has_the_name(name):
    look_up(name)


@pytest.mark.parametrize(("owner", "name"), each(MEMBERS))
def test_flower_has_the_member(owner, name):
    look_up(f"{owner}.{name}")


@pytest.mark.parametrize("function", PARAMETERS)
def test_flower_has_the_parameters(function):
    found, names = look_up(function), PARAMETERS[function].split()
    there = [name for name in inspect.signature(getattr(found, "__func__", found)).parameters if name != "cls"]
    for name in names:
        if name not in there:
            gone(f"{function}({name}=)")
    if "root_certificates" in names:
        assert there[:3] == names[:3]


@pytest.mark.parametrize(("message", "name"), each(FIELDS))
def test_flower_has_the_field(message, name):
    if name not in look_up(message).DESCRIPTOR.fields_by_name:
        gone(f"{message}.{name}")


def test_a_connection_gives_what_the_adapter_takes_apart():
    """The number of a node and seven functions: receive, send, two about code, pull, push, confirm."""
    connection = inspect.signature(look_up("flwr.supernode.fleet_http_connection.http_request_response"))
    (parts,) = typing.get_args(connection.return_annotation)
    counts = [len(typing.get_args(part)[0]) for part in typing.get_args(parts)[1:]]
    assert counts == [0, 3, 1, 2, 2, 4, 2]  # of parameters


def test_what_the_adapter_changes_in_objects_is_there():
    from flwr.app import Message, RecordDict

    from fedaccord.flower.adapter import identify

    grid = look_up("flwr.superlink.grid.HttpGrid")("127.0.0.1:1", True, None, token="any")
    assert grid._retry_invoker.max_tries is None
    identify(1, 2, 3)
    message = Message(RecordDict(), dst_node_id=4, message_type="train")
    assert (message.metadata.run_id, message.metadata.src_node_id) == (2, 3)
    assert message.metadata.__dict__["_message_id"] == message.metadata.message_id == ""


def test_every_private_member_in_use_is_in_these_lists():
    tree = ast.walk(ast.parse(ADAPTER.read_text()))
    private = {node.attr for node in tree if isinstance(node, ast.Attribute) and re.match("_[^_]", node.attr)}
    assert private == {"_runtime_client", "_retry_invoker"}


def test_parts_of_messages_are_not_waited_for_for_hours():
    from fedaccord.flower import adapter

    defaults = look_up("flwr.supercore.inflatable.inflatable_utils.pull_objects").__kwdefaults__
    assert {name: defaults[name] for name in adapter.PARTS} == adapter.PARTS
    assert adapter.PARTS["max_time"] < 60


def test_no_other_file_imports_what_is_not_public():
    for file in PACKAGE.rglob("*.py"):
        if file != ADAPTER:
            assert not [name for name in imports_of(file).values() if not_public(name)], file


# ---------------------------------------------------------------- another Flower


@pytest.mark.parametrize("found", ["1.43.0", "1.4.1", "2.41.0"])
def test_another_version_is_refused_with_one_sentence(found, monkeypatch):
    """Also by an import, before flwr itself may fail at something."""
    spec = importlib.util.spec_from_file_location("adapter_anew", ADAPTER)
    monkeypatch.setattr(importlib.metadata, "version", lambda name: found)
    with pytest.raises(EngineError) as caught:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert str(caught.value) == (
        f"fedaccord works with Flower 1.41 and 1.42 and finds {found}: pip install 'fedaccord[flower]'"
    )


def test_without_flower_there_is_one_sentence_too(monkeypatch):
    from fedaccord.flower import adapter

    def version(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(adapter, "version", version)
    with pytest.raises(EngineError, match=r"works with Flower 1\.41 and 1\.42 and finds none: pip install"):
        adapter.register(Link("127.0.0.1:1", None), Path("none"))


def test_a_name_that_is_gone_is_named(monkeypatch):
    from flwr.superlink import grid

    from fedaccord.flower import adapter

    monkeypatch.delattr(grid, "HttpGrid")
    sentence = r"finds 1\.4[12]\.\d+, in which .*'HttpGrid' from 'flwr\.superlink\.grid'\): pip install"
    with pytest.raises(EngineError, match=sentence), adapter.open_grid(Link("127.0.0.1:1", None)):
        pass


def test_the_supported_versions_are_those_that_are_installed_with_us():
    from fedaccord.flower.adapter import SUPPORTED

    needs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["flower"]
    major, minor = map(int, SUPPORTED[-1].split("."))
    assert f"flwr>={SUPPORTED[0]},<{major}.{minor + 1}" in needs
