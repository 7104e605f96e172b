"""The messages between server and clients: orders and updates as Flower's records, and back.

One message goes down and one comes back for each client and round. A message is one record: a few numbers, and tensors
as safetensors bytes (exact, any dtype). Every object of a message is a request of its own, so one is fastest. Only a
client that goes on from another round than most, has hyper-parameters of its own or must stop in time gets a second,
tiny record; and only one that lacks the fixed part of the model gets that, as a record of its own.
"""

import json
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict

from fedaccord.core.errors import UpdateRefused
from fedaccord.core.files import parse_json
from fedaccord.core.packages import decode, encode, flatten, unflatten
from fedaccord.core.records import OPTIMIZER, WHOLE, ClientUpdate, Hyper, Order, Refusal

VERSION = 4
"""The version of the message format; both ends must use the same."""
RECORD, FOR_CLIENT, FIXED = "fedaccord", "fedaccord.client", "fedaccord.fixed"
"""The names of our records in a message: one for all clients, one for this client, and one that is sent only once."""
LACKING = "I have not got the part of the model that is the same everywhere"
"""The refusal of a client that must be sent the fixed part of the model, for the first time or again."""
CLASSES = 10_000
"""For how many classes at most a node may say how many examples it has."""
TEXT = 1 << 18
"""The largest size of hyper-parameters or metrics as JSON, in bytes."""
TENSORS = ("params", "down", "previous", "fixed_tensors")
NUMBERS = ("version", "round", "since", "needed")
WORDS = ("experiment", "hyper", "own_hyper", "fixed")
FLAGS = ("report_loss", "report_metrics")
IN_AN_ORDER = dict.fromkeys(TENSORS, bytes) | dict.fromkeys(NUMBERS, int) | dict.fromkeys(WORDS, str) \
    | dict.fromkeys(FLAGS, bool) | {"seconds": float}  # fmt: skip
"""The entries that an order may have, and their types."""

ODD = (KeyError, TypeError, ValueError, OverflowError, RuntimeError, AttributeError)
"""The exceptions that reading a malformed message can raise."""


# ---------------------------------------------------------------- messages


def request(content: RecordDict, node: int, kind: str, life: float, round: int) -> Message:
    """Return a message to a node that expires after `life` seconds."""
    return Message(content, dst_node_id=node, message_type=kind, ttl=life, group_id=str(round))


def reply_with(record: ConfigRecord, message: Message) -> Message:
    """Return a reply to a message, with one record as its content."""
    return Message(RecordDict({RECORD: record}), reply_to=message)


def records_of(message: Message) -> dict[str, Any]:
    """Return the entries of all our records in a message as one dict."""
    found = message.content.config_records
    return {name: value for part in (RECORD, FOR_CLIENT, FIXED) for name, value in found.get(part, {}).items()}


def weight(content: RecordDict) -> int:
    """Return how many bytes of tensors a message holds; all else in it takes about a thousand."""
    records = content.config_records.values()
    return sum(len(value) for record in records for value in record.values() if isinstance(value, bytes))


# ---------------------------------------------------------------- down, to a client


def order_record(order: Order, experiment: str, needed: Mapping[int, int] | None) -> ConfigRecord:
    """Encode what every client of the cohort gets of an order; nothing in it says which client it is for.

    `needed`: for each client, the oldest round that it may have to go on from again; None if clients keep nothing.
    """
    record = ConfigRecord(
        {
            "version": VERSION,
            "round": order.round,
            "experiment": experiment,
            "hyper": written(order.hyper),
            "params": encode(order.params),
        }
    )
    for name in ("report_loss", "report_metrics"):
        if getattr(order, name):
            record[name] = True
    if order.down:
        record["down"] = encode(flatten(order.down))
    if order.previous is not None:
        record["previous"] = encode(order.previous)
    if needed is not None:
        [(most, _)] = Counter(rounds_of(order, client, needed) for client in order.cohort).most_common(1)
        record["since"], record["needed"] = most
    return record


def fixed_record(data: bytes) -> ConfigRecord:
    """Return the record that carries the fixed part of the model; `data` is what `encode` makes of that part."""
    return ConfigRecord({"fixed_tensors": data})


def client_record(order: Order, client: int, needed: Mapping[int, int] | None, shared: ConfigRecord) -> ConfigRecord:
    """Encode where a client's order differs from the record that all clients get; the result is mostly empty."""
    record = ConfigRecord()
    if needed is not None and (own := rounds_of(order, client, needed)) != (shared["since"], shared["needed"]):
        record["since"], record["needed"] = own
    if client in order.each:
        record["own_hyper"] = written(order.each[client])
    return record


def rounds_of(order: Order, client: int, needed: Mapping[int, int]) -> tuple[int, int]:
    """Return the round that a client goes on from, and the oldest round that it may need again."""
    return order.since.get(client, 0), needed.get(client, 0)


def written(hyper: Hyper) -> str:
    """Return hyper-parameters as JSON, without spaces."""
    return json.dumps(hyper.values(), separators=(",", ":"))


def read_order(record: Mapping[str, Any], client: int) -> Order:
    """Decode an order that a client received; raise UpdateRefused if anything in it is wrong."""
    if record.get("version") != VERSION:
        raise UpdateRefused(f"the server speaks version {record.get('version')!r}, I speak {VERSION}")
    for name, value in record.items():
        if name not in IN_AN_ORDER:
            raise UpdateRefused(f"the message has {name[:40]!r}, which I do not know")
        if type(value) is not IN_AN_ORDER[name]:
            raise UpdateRefused(f"{name} is of type {type(value).__name__}, not {IN_AN_ORDER[name].__name__}")
    try:
        each = {client: read_hyper(record["own_hyper"])} if "own_hyper" in record else {}
        down = unflatten(decode(record["down"])) if "down" in record else {}
        previous = decode(record["previous"]) if "previous" in record else None
        hyper, params, asked = read_hyper(record["hyper"]), decode(record["params"]), record.get("report_loss", False)
        round, since, needed = record["round"], record.get("since", 0), record.get("needed", 0)
    except KeyError as error:
        raise UpdateRefused(f"the message has no {error}") from None
    except ODD as error:
        raise UpdateRefused(f"the message cannot be read: {error}"[:200]) from None
    if round < 1 or not 0 <= since < round or needed < 0:
        raise UpdateRefused(f"round {round}, which goes on from {since}, and may have to from {needed}")
    tested, seconds = record.get("report_metrics", False), record.get("seconds")
    if seconds is not None and not 0 < seconds < math.inf:
        raise UpdateRefused(f"{seconds!r} seconds for the work")
    return Order(round, (client,), params, hyper, each, down, {client: since}, asked, previous, tested, seconds)


def read_hyper(text: str) -> Hyper:
    """Parse hyper-parameters: finite numbers by name, integers where they must be; null leaves one to the client."""
    values = parse_json(text, TEXT)
    if not isinstance(values, dict):
        raise UpdateRefused("the hyper-parameters are no table")
    for name, value in values.items():
        if value is None and name not in OPTIMIZER:
            continue
        if type(value) not in (int, float) or (name in WHOLE and type(value) is not int):
            raise UpdateRefused(f"{name} = {value!r} is of the wrong type")
        if not math.isfinite(value):
            raise UpdateRefused(f"{name} = {value!r} is not a number to train with")
    own = {name: value for name, value in values.items() if name not in OPTIMIZER}
    return Hyper(**{name: values[name] for name in OPTIMIZER}, own=own)


# ---------------------------------------------------------------- up, to the server


def update_record(update: ClientUpdate) -> ConfigRecord:
    """Encode a client's update as a record, with only those losses that the client was asked for."""
    record = ConfigRecord(
        {
            "client": update.client,
            "round": update.round,
            "examples": update.examples,
            "loss": float(update.loss),
            "params": encode(update.params),
        }
    )
    if update.done != 1.0:
        record["done"] = update.done
    if update.sent:
        record["sent"] = encode(flatten(update.sent))
    for name in ("received_loss", "previous_loss"):
        if getattr(update, name) is not None:
            record[name] = float(getattr(update, name))
    if update.metrics:
        record["metrics"] = json.dumps(dict(update.metrics))
    return record


def refusal_record(why: str) -> ConfigRecord:
    """Return a record that says that a client refuses an order, and why."""
    return ConfigRecord({"why": why[:500]})


def read_update(
    client: int, order: Order, record: Mapping[str, Any], metrics: Collection[str] = ()
) -> ClientUpdate | Refusal:
    """Decode from a client's reply only what was asked for; it is checked once more before it enters the mean.

    `metrics`: the names of the metrics that the client may send.
    """
    try:
        if "why" in record:
            return Refusal(client, f"the client said no: {str(record['why'])[:200]}")
        said = record["client"], record["round"]
        if said != (client, order.round) or any(type(each) is not int for each in said):
            return Refusal(
                client, f"the reply is not this client's of this round, but says (client, round) = {said!r}"[:200]
            )
        asked = {"received_loss": order.report_loss, "previous_loss": order.previous is not None}
        reports = [float(record[name]) if wanted else None for name, wanted in asked.items()]
        sent = unflatten(decode(record["sent"])) if "sent" in record else {}
        measured = read_metrics(record.get("metrics", "{}"), metrics) if order.report_metrics else {}
        params, examples, loss = decode(record["params"]), record["examples"], float(record["loss"])
        done = record.get("done", 1.0) if order.seconds is not None else 1.0
        return ClientUpdate(client, params, examples, loss, sent, reports[0], reports[1], measured, order.round, done)
    except (UpdateRefused, *ODD) as error:
        return Refusal(client, f"the reply cannot be read: {error!r}"[:200])


def read_metrics(text: str, names: Collection[str]) -> dict[str, float]:
    """Parse a client's metrics; raise UpdateRefused if they are anything but finite numbers of these names."""
    metrics = parse_json(text, TEXT)
    if not isinstance(metrics, dict) or not metrics.keys() <= set(names):
        raise UpdateRefused("it sent metrics that it was not asked for")
    if not all(type(value) is float and math.isfinite(value) for value in metrics.values()):
        raise UpdateRefused("a metric is no number")
    return metrics


# ---------------------------------------------------------------- the roll-call


def identity_record(client: int, labels: Sequence[int] = (), examples: int = 0) -> ConfigRecord:
    """Return a record that says which client a node is and how many examples it has (0: it says so later).

    `labels`: how many examples it has of each class, where its site lets the server know that.
    """
    record = ConfigRecord({"client": client})
    if examples:
        record["examples"] = examples
    if labels:
        record["labels"] = list(labels)
    return record


def read_identity(record: Mapping[str, Any]) -> tuple[int | None, list[int], int]:
    """Return which client a node claims to be, how many examples it has of each class, and how many in all.

    What the node does not say, or not in whole numbers, is None, an empty list and 0.
    """
    client, labels, examples = record.get("client"), record.get("labels", []), record.get("examples", 0)
    if not isinstance(labels, list) or len(labels) > CLASSES or not all(type(n) is int and n >= 0 for n in labels):
        labels = []
    return client if type(client) is int else None, labels, examples if type(examples) is int else 0
