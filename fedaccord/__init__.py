"""Federated learning that stays on track when clients' data differ wildly."""

from fedaccord.api import History, federate
from fedaccord.client.describe import matching_report
from fedaccord.config import Settings
from fedaccord.errors import FedAccordError
from fedaccord.policy.grid import HyperGrid
from fedaccord.records import ClientData, Examples
from fedaccord.tasks import Task

__version__ = "0.1.0"
__all__ = [
    "ClientData",
    "Examples",
    "FedAccordError",
    "History",
    "HyperGrid",
    "Settings",
    "Task",
    "federate",
    "matching_report",
]
