"""What the tests of the real federation share: settings, waiting, and a grid in memory."""

import contextlib
import sys
from pathlib import Path

import torch
from flwr.app import ConfigRecord, Message, RecordDict

from fedaccord import config
from fedaccord.core.packages import encode
from fedaccord.flower.adapter import open_grid
from fedaccord.flower.certificates import Link
from fedaccord.flower.wire import RECORD, records_of
from fedaccord.tasks import find_task

FEDACCORD = [sys.executable, "-m", "fedaccord.cli"]
RMAH = {"method": "FA+RM+AH", "split": "dirichlet", "alpha": 0.3, "rounds": 5, "grid": "lr = 0.1, 0.2; steps = 4, 8"}


def settings_for(task="digits", clients=3, **own):
    return config.make(find_task(task).defaults("dirichlet"), {"task": task, "clients": clients, **RMAH, **own})


def private_files(folder: Path) -> dict[str, list[str]]:
    """client -> its files of theta_i; a name carries round and checksum."""
    found: dict[str, list[str]] = {}
    for file in sorted(folder.rglob("*.safetensors")):
        found.setdefault(file.parent.name, []).append(file.name)
    return found


@contextlib.contextmanager
def grid_of(local):
    link = Link(local.address, (local.keys / "ca.pem").read_bytes(), secret=(local.keys / "secret").read_bytes())
    with open_grid(link) as grid:
        yield grid


class Wire:
    """A grid in memory, for what honest software never sends. `answers`: node -> a function from message to reply."""

    def __init__(self, answers):
        self.answers, self.replies, self.pushed = answers, {}, []
        self.away: set[int] = set()

    def get_node_ids(self):
        return [node for node in self.answers if node not in self.away]

    def push_messages(self, messages):
        numbers = []
        for message in messages:
            number = f"m{len(self.pushed)}"
            message.metadata.__dict__["_message_id"] = number
            self.pushed.append(message)
            numbers.append(number)
            reply = self.answers[message.metadata.dst_node_id](message)
            if reply is not None:
                self.replies[number] = reply
        return numbers

    def pull_messages(self, numbers):
        found = [self.replies.pop(number) for number in numbers if number in self.replies]
        for reply in found:
            if isinstance(reply, Exception):
                raise reply
        return found


def client(number, **changes):
    """An honest client of a model of two numbers, but for the changes."""

    def answer(message):
        if message.metadata.message_type == "query":
            record = ConfigRecord({"client": number})
        else:
            params = {"w": torch.full((2,), float(number))}
            own = {"client": number, "round": records_of(message)["round"], "examples": 5, "loss": 0.5}
            record = ConfigRecord({**own, "params": encode(params), **changes})
        return Message(RecordDict({RECORD: record}), reply_to=message)

    return answer
