"""A client. Its node is started with --node-config 'client=0 private="/where/it/keeps/theta"'."""

from pathlib import Path

from task import task

from fedaccord.flower.apps import client_app
from fedaccord.flower.node import Limits
from fedaccord.runtime.federation import member_of_task

LIMITS = Limits(max_steps=200, min_lr=0.001, max_lr=1.0)  # whatever the server asks for, no more than this


def make(node):
    return member_of_task(task, task.resolved(), int(node["client"]), Path(node["private"]), LIMITS)


app = client_app(make)
