"""The server's end by itself, over a grid in memory: what honest software never sends, and who does not answer."""

import pytest
import torch
from flower_helpers import Wire, client
from helpers import hyper

from fedaccord.core.records import Order, Refusal
from fedaccord.flower import adapter
from fedaccord.flower.adapter import error_reply
from fedaccord.flower.server import FlowerEngine

pytestmark = pytest.mark.filterwarnings("ignore")  # flwr's own


def engine_over(wire, deadline=1.0, **more):
    return FlowerEngine(wire, "e", deadline, **more)


TWO = Order(1, (0, 1), {"w": torch.zeros(2)}, hyper())


def test_nonsense_from_one_client_leaves_the_others_alone(own_run, clock):
    overflow = b'{"w":{"dtype":"F32","shape":[0,4611686018427387904,4611686018427387904],"data_offsets":[0,0]}}'
    bad = {
        "overflow": client(1, params=len(overflow).to_bytes(8, "little") + overflow),
        "a reply to another": lambda message: answer_to(message, "m99"),
        "what flwr cannot read": lambda message: ValueError("broken") if message.metadata.message_type != "query" else
        client(1)(message),
    }  # fmt: skip
    for name, node in bad.items():
        wire = Wire({10: client(0), 11: node})
        engine = engine_over(wire, deadline=4.0)
        engine.nodes, engine.claims = {0: 10, 1: 11}, {10: 0, 11: 1}
        first, second = engine.train(TWO)
        assert first.client == 0, name
        assert torch.equal(first.params["w"], torch.zeros(2)), name
        assert isinstance(second, Refusal), name


def answer_to(message, number):
    reply = client(1)(message)
    reply.metadata.__dict__["_reply_to_message_id"] = number
    return reply


def test_a_loss_that_nobody_asked_for_is_not_read(own_run):
    update, _ = engine_over(Wire({10: client(0, received_loss=9.0, previous_loss=1e-9), 11: client(1)})).train(TWO)
    assert (update.received_loss, update.previous_loss) == (None, None)


def test_a_dead_client_costs_one_deadline_and_an_outage_does_not_use_up_the_run(own_run, clock):
    wire = Wire(
        {10: client(0), 11: lambda message: None if message.metadata.message_type != "query" else client(1)(message)}
    )
    engine = engine_over(wire, deadline=3.0)
    begin = clock.now
    assert [type(each).__name__ for each in engine.train(TWO)] == ["ClientUpdate", "Refusal"]
    assert clock.now >= begin + 3.0
    wire.away = {11}
    begin = clock.now
    assert [type(each).__name__ for each in engine.train(TWO)] == ["ClientUpdate", "Refusal"]
    assert clock.now == begin  # nobody waits for it any more
    wire.away = {10, 11}
    for _ in range(2):  # with nobody there a round waits: they may come back
        begin = clock.now
        assert {type(each).__name__ for each in engine.train(TWO)} == {"Refusal"}
        assert clock.now >= begin + 3.0
    wire.away = set()
    wire.answers[12] = client(1)  # back, on another node
    wire.away = {11}
    assert [type(each).__name__ for each in engine.train(TWO)] == ["ClientUpdate"] * 2


def test_a_client_that_comes_back_on_another_node_before_its_old_one_is_missed_takes_its_place(own_run, clock):
    """Killed hard, a node is listed for a while; the new one names the same number, and must be heard again."""
    wire = Wire({10: client(0), 11: client(1), 12: client(1)})
    wire.away = {12}
    engine = engine_over(wire, deadline=3.0)
    assert [type(each).__name__ for each in engine.train(TWO)] == ["ClientUpdate"] * 2
    wire.away = {10}  # somebody is missing, so all nodes are asked who they are: 11, dead but listed, has number 1
    wire.answers[11] = lambda message: None
    list(engine.train(TWO))
    wire.away = {11}
    assert [type(each).__name__ for each in engine.train(TWO)] == ["ClientUpdate"] * 2
    assert engine.nodes == {0: 10, 1: 12}


@pytest.mark.parametrize("nodes", [16, 80])
def test_replies_that_are_announced_and_never_come_do_not_delay_a_round(own_run, clock, nodes):
    """Half of the nodes: Flower waits for the parts of each, one after the other, as long as it is told to."""

    class Stalled(Wire):
        def pull_messages(self, numbers):
            found = super().pull_messages(numbers)
            for reply in found:
                if reply.metadata.src_node_id % 2 and reply.metadata.message_type == "train":
                    clock.now += adapter.defaults["max_time"]
            return [reply for reply in found if not reply.metadata.src_node_id % 2]

    engine = engine_over(Stalled({100 + n: client(n) for n in range(nodes)}), deadline=60.0)
    engine.nodes = {n: 100 + n for n in range(nodes)}
    engine.claims = {100 + n: n for n in range(nodes)}
    begin = clock.now
    replies = list(engine.train(Order(1, tuple(range(nodes)), {"w": torch.zeros(2)}, hyper())))
    assert [isinstance(each, Refusal) for each in replies] == [n % 2 == 1 for n in range(nodes)]
    assert 60 <= clock.now - begin < 63


def test_a_client_whose_process_always_dies_is_left_out_before_the_deadline(own_run, clock):
    """Tried again after 1, 2, 4 and 8 seconds, then no more: it would cost every round its whole deadline."""

    def dies(message):
        return client(1)(message) if message.metadata.message_type == "query" else error_reply(message, "died")

    wire = Wire({10: client(0), 11: dies})
    begin = clock.now
    _, refusal = engine_over(wire, deadline=600.0).train(TWO)
    assert refusal.why == "its process died, or its reply could not be read, 5 times"
    assert sum(message.metadata.dst_node_id == 11 for message in wire.pushed) == 1 + 5
    assert begin + 15 <= clock.now < begin + 25


def test_a_node_that_was_silent_and_is_gone_has_died_once(own_run, clock):
    """It fails every copy of the order that it was sent, all at once, and is back a second later."""
    begin = clock.now

    def silent(message):
        gone = message.metadata.message_type != "query" and clock.now < begin + 80
        return None if gone else client(1)(message)

    class Gone(Wire):
        def pull_messages(self, numbers):
            for message in self.pushed if clock.now >= begin + 80 else ():
                number, to = message.metadata.message_id, message.metadata.dst_node_id
                if number in numbers and to == 11 and number not in self.replies:
                    self.replies[number] = error_reply(message, "not available")
            return super().pull_messages(numbers)

    wire = Gone({10: client(0), 11: silent})
    engine = engine_over(wire, deadline=600.0)
    engine.pause = 5.0
    assert [type(each).__name__ for each in engine.train(TWO)] == ["ClientUpdate", "ClientUpdate"]
    assert sum(each.metadata.dst_node_id == 11 for each in wire.pushed) == 1 + 5 + 1


def test_a_node_that_is_slow_to_say_who_it_is_has_longer_the_next_time(own_run, clock):
    """What expired is answered with an error by Flower, twice here: 30, 60 and 120 seconds."""
    left = [2]

    def slow(message):
        if message.metadata.message_type == "query" and left[0]:
            left[0] -= 1
            return error_reply(message, "expired")
        return client(1)(message)

    wire = Wire({10: client(0), 11: slow})
    assert [each.client for each in engine_over(wire, deadline=9.0).train(TWO)] == [0, 1]
    asked = [message.metadata for message in wire.pushed if message.metadata.message_type == "query"]
    assert [each.ttl for each in asked if each.dst_node_id == 11] == [30.0, 60.0, 120.0]


def test_an_order_dies_with_its_round(own_run, clock):
    wire = Wire({10: client(0), 11: client(1)})
    list(engine_over(wire, deadline=7.0).train(TWO))
    lives = {message.metadata.message_type: message.metadata.ttl for message in wire.pushed}
    assert lives["train"] == 7.0


def test_a_reply_that_is_announced_and_never_sent_does_not_hold_the_round(own_run, clock):
    """flwr waits for the parts of one reply after the other: for all together no longer than the round lasts."""
    from fedaccord.flower import adapter

    waits = []

    class Slow(Wire):
        def pull_messages(self, numbers):
            limit = adapter.pull_objects.__kwdefaults__["max_time"]
            waits.append((limit * len(numbers), clock.now))
            return super().pull_messages(numbers)

    begin = clock.now
    wire = Slow({10: client(0), 11: lambda m: None if m.metadata.message_type != "query" else client(1)(m)})
    list(engine_over(wire, deadline=6.0).train(TWO))
    assert all(limit <= max(0.1, begin + 6.0 - now) + 1e-9 for limit, now in waits)
    wire = Slow({10: client(0), 11: client(1)})
    waits.clear()
    list(engine_over(wire, deadline=600.0).train(TWO))
    assert {limit for limit, _ in waits} <= {15.0, 30.0}  # with time enough it is what it always was
