"""Take captured bytes apart: Flower's requests and responses, the objects in them, and our records in these."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from benchmarks.chaos.tls_proxy import Said
from fedaccord.core.packages import decode

BESIDE = {
    "down": {
        "version",
        "round",
        "experiment",
        "hyper",
        "own_hyper",
        "report_loss",
        "report_metrics",
        "since",
        "needed",
    },
    "up": {"client", "round", "examples", "loss", "received_loss", "previous_loss", "why"},
}
"""The names of the plain numbers and texts that an order (down) and an update (up) may have beside tensors."""


@dataclass
class Seen:
    """What was found in captured bytes: what should not be there, and the records and slots that were."""

    odd: list[str] = field(default_factory=list)
    records: dict[str, int] = field(default_factory=lambda: {"down": 0, "up": 0})
    slots: set[str] = field(default_factory=set)


def look_into(asked: Said, answered: Said, model: set[str], declared: Mapping[str, set[str]], seen: Seen) -> None:
    """Take a request and its response apart as flwr's protobufs, and the objects in them as records."""
    _, path, _ = asked.line.split(" ")
    for said in (asked, answered):
        if "content-encoding" in said.headers:
            seen.odd.append(f"{path} is compressed: {said.headers['content-encoding']}")
    if " 200 " not in f"{answered.line} ":
        return  # the text of an error, which is searched for canaries all the same
    request, response = (
        as_protobuf(path, said.body, way, seen) for said, way in ((asked, "request"), (answered, "return"))
    )
    by_node = path.startswith("/v1/fleet/")
    if path.endswith("/push-object"):
        look_into_object(request.object_content, "up" if by_node else "down", model, declared, seen)
    elif path.endswith("/pull-object"):
        look_into_object(response.object_content, "down" if by_node else "up", model, declared, seen)


def as_protobuf(path: str, body: bytes, way: str, seen: Seen) -> Any:
    """Parse a body as the message that flwr's own client has there, and note bytes that are in no field as odd."""
    from flwr.supercore.control import ControlHttpClient
    from flwr.supercore.runtime import RuntimeHttpClient
    from flwr.supernode.fleet_http_client import FleetHttpClient

    clients = {"fleet": FleetHttpClient, "runtime": RuntimeHttpClient, "control": ControlHttpClient}
    _, _, service, words = path.split("/")
    method = getattr(clients[service], "".join(map(str.capitalize, words.split("-"))))
    made: Any = get_type_hints(method)[way]()
    made.ParseFromString(body)
    made.DiscardUnknownFields()
    if made.ByteSize() != len(body):
        seen.odd.append(f"{path} has {len(body) - made.ByteSize()} bytes that are in no field")
    return made


def look_into_object(content: bytes, way: str, model: set[str], declared: Mapping[str, set[str]], seen: Seen) -> None:
    """Check a part of one of Flower's messages: a record of ours may have only what the method declares."""
    if not content:
        return
    from flwr.app import ConfigRecord

    kind = content.split(b" ", 1)[0].decode()
    if kind != "ConfigRecord":
        if kind not in ("Message", "RecordDict"):
            seen.odd.append(f"{way}: an object of kind {kind}")
        return
    record = dict(ConfigRecord.inflate(content))
    tensors = {name: decode(record.pop(name)) for name in ("params", "previous", "down", "sent") if name in record}
    whole = "params" in tensors
    seen.records[way] += whole
    if odd := record.keys() - (BESIDE[way] if whole else {"client", "examples", "since", "needed", "own_hyper"}):
        seen.odd.append(f"{way}: {sorted(odd)[0]!r} in a record")
    for name, table in tensors.items():
        if name in ("params", "previous"):
            if set(table) != model:
                seen.odd.append(f"{way}: {name} has other tensors than the model")
        elif name != {"down": "down", "up": "sent"}[way]:
            seen.odd.append(f"{way}: {name} in a record")
        else:
            slots = {key.partition("/")[0] for key in table}
            seen.slots |= slots
            if not slots <= declared[way]:
                seen.odd.append(f"{way}: slots {sorted(slots - declared[way])}, which nobody declared")
