"""Bounds on what a server sends: how much, how large, and for which names. Ten thousand are tried by `make chaos`."""

import hashlib

import pytest
import torch
from flower_helpers import settings_for
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from helpers import hyper

from fedaccord.core.errors import UpdateRefused
from fedaccord.core.packages import encode
from fedaccord.core.records import Order
from fedaccord.flower.adapter import BESIDE, MOST_PARTS, Connection, MessageRefused
from fedaccord.flower.limits import ROOM, ROUNDS, Limits, form_of
from fedaccord.flower.node import serve_one
from fedaccord.flower.wire import RECORD, records_of, refusal_record
from fedaccord.methods.registry import METHODS, find
from fedaccord.runtime.build import hyper_of, sendable

pytestmark = pytest.mark.filterwarnings("ignore")  # flwr's own

OWN = {"w": torch.full((4,), 0.5), "mean": torch.zeros(2), "seen": torch.tensor(3), "mask": torch.tensor([True])}


def test_a_norm_is_absurd_from_a_million_times_the_models_own_on():
    """The norm of w is 1 and sqrt(4) is 2: so the limit is 2 * 10^6."""
    form = form_of(OWN, {"w"}, "my model")
    assert form.most == pytest.approx(2e6)
    form.check({**OWN, "w": torch.full((4,), 0.99e6)})  # its norm is 1.98 * 10^6
    with pytest.raises(UpdateRefused, match=r"a norm of 2.02e\+06"):
        form.check({**OWN, "w": torch.full((4,), 1.01e6)})


@pytest.mark.parametrize(
    ("name", "value"),
    [("mean", torch.full((2,), 1e31)), ("seen", torch.tensor(2**41)), ("seen", torch.tensor(-(2**63)))],
)
def test_a_buffer_of_absurd_size_is_refused(name, value):
    with pytest.raises(UpdateRefused, match=f"{name} has a value of absurd size"):
        form_of(OWN, {"w"}, "my model").check({**OWN, name: value})


def test_bytes_are_counted_before_they_are_decoded():
    form = form_of(OWN, {"w"}, "my model")
    written = len(encode(OWN))
    form.fits("params", bytes(written + ROOM))
    with pytest.raises(UpdateRefused, match="my model takes"):
        form.fits("params", bytes(written + ROOM + 1))
    with pytest.raises(UpdateRefused, match="of type str"):
        form.fits("params", "x")


@pytest.mark.parametrize("method", METHODS)
def test_what_an_honest_server_sends_is_within_the_rules_of_every_method(method):
    settings = settings_for(method=method)
    made = find(method)
    Limits().check(Order(ROUNDS, (0,), {}, hyper_of(settings, made)), 0, sendable(made))
    for bad, why in (({"evil": 1.0}, "'evil' is no hyper-parameter"), ({"momentum": 1.0}, "momentum = 1.0"),
                     ({"entropy_weight": 1.1e6}, "at most")):  # fmt: skip
        with pytest.raises(UpdateRefused, match=why):
            Limits().check(Order(1, (0,), {}, hyper_of(settings, made).but(bad)), 0, sendable(made))
    with pytest.raises(UpdateRefused, match="I take part up to"):
        Limits().check(Order(ROUNDS + 1, (0,), {}, hyper()), 0, sendable(made))


def test_a_reason_is_short():
    assert len(refusal_record("x" * 10_000)["why"]) == 500


class Parts:
    """A connection that hands over one message in parts, and takes the reply."""

    def __init__(self, record, records=1):
        content = RecordDict({f"{RECORD}{n or ''}": ConfigRecord({**record, "n": n}) for n in range(records)})
        message = Message(content, dst_node_id=5, message_type="train")
        message.metadata.__dict__["_message_id"] = self.number = message.object_id
        self.head, self.tree = message, get_object_tree(message)
        self.parts = {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
        self.replies, self.confirmed = [], []

    def connection(self):
        def announce(reply, tree, seconds):
            self.replies.append(reply)
            return set(), ""

        return Connection(5, lambda: (self.head, self.tree), lambda run, name: self.parts[name],
                          lambda run, name: self.confirmed.append(name), announce, lambda *_: None)  # fmt: skip


def test_a_message_of_whole_parts_is_received(own_run):
    parts = Parts({"a": b"x" * 100})
    assert records_of(parts.connection().receive(0))["a"] == b"x" * 100
    assert parts.confirmed == [parts.number]


@pytest.mark.parametrize("which", range(3))  # the record, the table of records, the message
def test_a_part_that_is_not_what_its_checksum_says_is_refused(own_run, which):
    parts = Parts({"a": b"x" * 100})
    name = list(parts.parts)[which]
    parts.parts[name] = parts.parts[name][:-1] + b"y"
    with pytest.raises(MessageRefused, match="checksum"):
        parts.connection().receive(0)


def test_a_message_of_more_bytes_or_parts_than_there_is_room_for_is_refused_before_the_rest_is_fetched(own_run):
    with pytest.raises(MessageRefused, match="more than 65,636 bytes"):
        Parts({"a": bytes(BESIDE + 200)}).connection().receive(100)
    many = Parts({"a": 1}, records=MOST_PARTS)
    many.parts.clear()  # nothing of it is asked for
    with pytest.raises(MessageRefused, match="more than 16 parts"):
        many.connection().receive(100)
    assert many.confirmed == [many.number]


def test_who_sends_what_is_no_message_is_told(own_run):
    parts = Parts({"a": 1})
    top = b"Evil  0\0"
    number = hashlib.sha256(top).hexdigest()
    parts.parts[number], parts.tree.object_id = top, number
    parts.head.metadata.__dict__["_message_id"] = number

    class Member:
        room, client = 0, 1

    assert serve_one(parts.connection(), Member())
    (reply,) = parts.replies
    assert "cannot be put together" in records_of(reply)["why"]
    assert reply.metadata.reply_to_message_id == number
