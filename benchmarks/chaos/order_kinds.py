"""Hostile orders of many kinds, made from an honest one by a random number generator.

A letter is what a server hands to the SuperLink: records, and how they are delivered. Tensors are spoilt as those of
hostile updates are (update_kinds.py).
"""

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from benchmarks.chaos import update_kinds
from benchmarks.chaos.update_kinds import Draw, Reply
from fedaccord.core.packages import decode, encode, flatten, unflatten

Parts = dict[str, bytes]
"""The parts of a message, each by the checksum that names it."""


@dataclass(frozen=True)
class Letter:
    """An order as its server writes it."""

    record: dict[str, Any]  # what all clients get
    own: dict[str, Any] = field(default_factory=dict)  # what this client gets besides
    others: dict[str, dict[str, Any]] = field(default_factory=dict)  # further records by name
    bare: bool = False  # whether it lacks our own record
    kind: str = "train"
    life: float = 60.0
    spoil: Callable[[Parts], Parts] | None = None  # changes its parts on the way
    top: bytes | None = None  # bytes in place of the message itself, under their right checksum
    many: int = 0  # how many further parts it has

    def put(self, **values: Any) -> "Letter":
        return replace(self, record={**self.record, **values})

    def without(self, *names: str) -> "Letter":
        return replace(self, record={name: value for name, value in self.record.items() if name not in names})

    def hyper(self, **values: Any) -> "Letter":
        """Return the letter with these hyper-parameters changed or added."""
        return self.put(hyper=json.dumps({**json.loads(self.record["hyper"]), **values}))


Make = Callable[[Letter, Draw], Letter]
KINDS: dict[str, Make] = {}


def kind(name: str) -> Callable[[Make], Make]:
    def add(make: Make) -> Make:
        KINDS[name] = make
        return make

    return add


def one(draw: Draw, *choices: Any) -> Any:
    return choices[draw.integers(len(choices))]


def values(name: str, field: str, *choices: Any) -> None:
    """Add a kind of order in which one field of the record has one of these values."""
    KINDS[name] = lambda good, draw: good.put(**{field: one(draw, *choices)})


def hypers(name: str, field: str, *choices: Any) -> None:
    """Add a kind of order in which a hyper-parameter has one of these values, for all or for this client alone."""

    def make(good: Letter, draw: Draw) -> Letter:
        bad = good.hyper(**{field: one(draw, *choices)})
        if draw.random() < 0.5:
            return bad
        return replace(good, own={**good.own, "own_hyper": bad.record["hyper"]})

    KINDS[name] = make


# ---------------------------------------------------------------- tensors

SPOILT = ("missing tensor", "extra tensor", "renamed tensor", "wrong rank", "wrong shape", "wrong dtype", "NaN", "Inf",
          "huge", "huge counter")  # fmt: skip

for title in SPOILT:

    def spoil_model(good: Letter, draw: Draw, title: str = title) -> Letter:
        where = one(draw, "params", "previous")
        return good.put(
            **{where: encode(update_kinds.KINDS[title](Reply(decode(good.record["params"]), {}), draw).params)}
        )

    KINDS[title] = spoil_model

for title in ("slot that nobody declared", "slot missing, NaN, huge or misshapen"):

    def spoil_slots(good: Letter, draw: Draw, title: str = title) -> Letter:
        slots = unflatten(decode(good.record["down"])) if "down" in good.record else {}
        return good.put(down=encode(flatten(update_kinds.KINDS[title](Reply({}, slots), draw).slots)))

    KINDS[title] = spoil_slots


@kind("no tensors")
def _(good: Letter, draw: Draw) -> Letter:
    """Replace tensors by bytes that are no safetensors, or whose header lies about what follows."""
    data, where = good.record["params"], one(draw, "params", "previous", "down")
    header = one(draw, 0, 2**20, 2**40, 2**63, 2**64 - 1).to_bytes(8, "little")
    overflow = b'{"w":{"dtype":"F32","shape":[0,4611686018427387904,4611686018427387904],"data_offsets":[0,0]}}'
    cut = data[: draw.integers(len(data))]
    whole = len(overflow).to_bytes(8, "little") + overflow
    return good.put(
        **{where: one(draw, b"", b"junk", header, header + data[8:], cut, whole, data + b"\0" * 64, draw.bytes(99))}
    )


@kind("more bytes than the model has")
def _(good: Letter, draw: Draw) -> Letter:
    name, size = one(draw, "params", "previous", "down", "fixed_tensors"), int(draw.integers(200_000, 1_000_000))
    return good.put(**{name: one(draw, bytes(size), encode({"w": torch.zeros(size // 4)}))})


@kind("a base that is not the one named")
def _(good: Letter, draw: Draw) -> Letter:
    base = encode({one(draw, "0.weight", "w"): torch.full((6, 8), one(draw, 0.0, math.nan, 1e30))})
    own = good.record.get("fixed", "")  # the checksum of the base that the client has
    named = one(draw, hashlib.sha256(base).hexdigest(), "", "another", own)
    return good.put(fixed=named, fixed_tensors=one(draw, base, b"", b"junk"))


# ---------------------------------------------------------------- numbers

NO_NUMBERS = ("0.1", None, [0.1], {"a": 1}, True)
hypers("rate", "lr", 0, -0.1, math.nan, math.inf, 1e9, 1e-30, 10**400, *NO_NUMBERS)
hypers("steps", "steps", 0, -1, 21, 10**9, 2**63, 10**400, 2.5, math.nan, *NO_NUMBERS)
hypers("batch size", "batch_size", 0, -64, 10**9, 0.5, math.inf, *NO_NUMBERS)
hypers("momentum", "momentum", -0.1, 1.0, 1e9, math.nan, *NO_NUMBERS)
hypers("weight decay", "weight_decay", -1.0, 1e30, math.inf, *NO_NUMBERS)
hypers("a weight of the method's or the loss's", "entropy_weight", -1.0, 1e30, math.nan, "1", [1], True)
hypers("the server's rate", "server_lr", 0.0, -1.0, 1e30, math.inf, *NO_NUMBERS)
hypers("a hyper-parameter that nobody has", "evil", 0.0, 1.0, None)
values("hyper-parameters that cannot be read", "hyper", "", "x", "[1]", "7", "null", '"lr"', "{}", "[" * 99_999,
       '{"lr": 0.1}', '{"lr": ' + "9" * 5000 + "}", "\udcff".encode("utf-8", "replace").decode())  # fmt: skip
values("round", "round", 0, -1, 1_000_000, 2**62, 3.0, "3", True, [3], 1)
values("the round to go on from", "since", -1, 3, 4, 2**62, 1.5, "2", [2])
values("the round that may be needed", "needed", -1, -(2**62), 1.5, "1", [1], b"1")
values("time", "seconds", 0.0, -1.0, math.nan, math.inf, 5, "5", [1.0])
values("what is asked for", "report_loss", 1, "yes", 1.0, [True], b"1")
values("version", "version", 0, 3, 5, 2**40, 4.5, "4", [4], b"4")
values("experiment", "experiment", "", "another", 1, b"x", ["x"])


# ---------------------------------------------------------------- the message


@kind("field missing")
def _(good: Letter, draw: Draw) -> Letter:
    needed = [name for name in ("version", "round", "experiment", "hyper", "params", "down", "since", "needed", "fixed")
              if name in good.record]  # fmt: skip
    return good.without(one(draw, *needed))


@kind("field that nobody knows")
def _(good: Letter, draw: Draw) -> Letter:
    name = one(draw, "code", "theta", "../../etc/passwd", "", "x" * 1000, "params ", "Round")
    return good.put(**{name: one(draw, 1, "x", b"x", [1, 2], "import os")})


@kind("field of another type")
def _(good: Letter, draw: Draw) -> Letter:
    name = one(draw, *good.record)
    wrong = [
        each for each in (1, 0.5, "x", b"x", [1], ["x"], [b"x"], True) if type(each) is not type(good.record[name])
    ]
    return good.put(**{name: one(draw, *wrong)})


@kind("no record of ours")
def _(good: Letter, draw: Draw) -> Letter:
    return replace(good, bare=True, others=one(draw, {}, {"fedaccord2": {"a": 1}}, {"fitins.config": {"lr": 0.1}}))


@kind("too many parts")
def _(good: Letter, draw: Draw) -> Letter:
    return replace(good, many=int(draw.integers(20, 200)))


@kind("parts changed on the way")
def _(good: Letter, draw: Draw) -> Letter:
    def spoil(parts: Parts) -> Parts:
        names = list(parts)
        name = names[draw.integers(len(names))]
        content, place = parts[name], draw.integers(len(parts[name]))
        flipped = content[:place] + bytes([content[place] ^ 1 << draw.integers(8)]) + content[place + 1 :]
        wrong = one(draw, b"", b"junk", content[:place], content + b"x", flipped, parts[one(draw, *names)] + b" ")
        return {**parts, name: wrong}

    return replace(good, spoil=spoil)


@kind("a message made up of other parts")
def _(good: Letter, draw: Draw) -> Letter:
    """Put other bytes in place of the message: every part has its right checksum, but they make no message of ours."""
    return replace(good, top=one(draw, b"Message  0\0", b"RecordDict  0\0", b"Evil  0\0", b"", b"junk", draw.bytes(50)))
