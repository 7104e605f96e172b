"""Federated learning that stays on track when clients' data differ wildly."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedaccord.adapters import adapt, merge
    from fedaccord.api import History, federate
    from fedaccord.config import Settings
    from fedaccord.core.errors import FedAccordError, FedAccordWarning
    from fedaccord.core.protocols import (
        Beginning,
        Built,
        ClientPart,
        End,
        Engine,
        Mean,
        Method,
        Outgoing,
        Part,
        Policy,
        Proposal,
        ServerStep,
        Slot,
        Slots,
        Step,
        Work,
    )
    from fedaccord.core.records import ClientData, ClientUpdate, Examples, Hyper, Metric, Observation, Order
    from fedaccord.core.settings import Setting
    from fedaccord.data.sets import DataSet
    from fedaccord.methods.matching.describe import matching_report
    from fedaccord.policy.grid import HyperGrid
    from fedaccord.runtime.weights import load
    from fedaccord.tasks import Task

__version__ = "0.2.0.dev0"
__all__ = [
    "Beginning",
    "Built",
    "ClientData",
    "ClientPart",
    "ClientUpdate",
    "DataSet",
    "End",
    "Engine",
    "Examples",
    "FedAccordError",
    "FedAccordWarning",
    "History",
    "Hyper",
    "HyperGrid",
    "Mean",
    "Method",
    "Metric",
    "Observation",
    "Order",
    "Outgoing",
    "Part",
    "Policy",
    "Proposal",
    "ServerStep",
    "Setting",
    "Settings",
    "Slot",
    "Slots",
    "Step",
    "Task",
    "Work",
    "adapt",
    "federate",
    "load",
    "matching_report",
    "merge",
]

HOMES = {
    "Beginning": "core.protocols",
    "Built": "core.protocols",
    "ClientData": "core.records",
    "ClientPart": "core.protocols",
    "ClientUpdate": "core.records",
    "DataSet": "data.sets",
    "End": "core.protocols",
    "Engine": "core.protocols",
    "Examples": "core.records",
    "FedAccordError": "core.errors",
    "FedAccordWarning": "core.errors",
    "History": "api",
    "Hyper": "core.records",
    "HyperGrid": "policy.grid",
    "Mean": "core.protocols",
    "Method": "core.protocols",
    "Metric": "core.records",
    "Observation": "core.records",
    "Order": "core.records",
    "Outgoing": "core.protocols",
    "Part": "core.protocols",
    "Policy": "core.protocols",
    "Proposal": "core.protocols",
    "ServerStep": "core.protocols",
    "Setting": "core.settings",
    "Settings": "config",
    "Slot": "core.protocols",
    "Slots": "core.protocols",
    "Step": "core.protocols",
    "Task": "tasks",
    "Work": "core.protocols",
    "adapt": "adapters",
    "federate": "api",
    "load": "runtime.weights",
    "matching_report": "methods.matching.describe",
    "merge": "adapters",
}


def __getattr__(name: str) -> Any:
    """Fetch a public name when it is first asked for: `fedaccord --help` need not wait for torch."""
    if name not in HOMES:
        raise AttributeError(f"module 'fedaccord' has no attribute '{name}'")
    return getattr(importlib.import_module(f"fedaccord.{HOMES[name]}"), name)
