"""Federated learning that stays on track when clients' data differ wildly."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedaccord.api import History, federate
    from fedaccord.config import Settings
    from fedaccord.core.errors import FedAccordError, FedAccordWarning
    from fedaccord.core.records import ClientData, Examples
    from fedaccord.methods.matching.describe import matching_report
    from fedaccord.policy.grid import HyperGrid
    from fedaccord.tasks import Task

__version__ = "0.1.0"
__all__ = [
    "ClientData",
    "Examples",
    "FedAccordError",
    "FedAccordWarning",
    "History",
    "HyperGrid",
    "Settings",
    "Task",
    "federate",
    "matching_report",
]

HOMES = {
    "ClientData": "core.records",
    "Examples": "core.records",
    "FedAccordError": "core.errors",
    "FedAccordWarning": "core.errors",
    "History": "api",
    "HyperGrid": "policy.grid",
    "Settings": "config",
    "Task": "tasks",
    "federate": "api",
    "matching_report": "methods.matching.describe",
}


def __getattr__(name: str) -> Any:
    """A public name is fetched when it is first asked for: `fedaccord --help` need not wait for torch."""
    if name not in HOMES:
        raise AttributeError(f"module 'fedaccord' has no attribute '{name}'")
    return getattr(importlib.import_module(f"fedaccord.{HOMES[name]}"), name)
