"""FedEx: every client draws its own hyper-parameters from a distribution that the server learns (Khodak et al., 2021).

The equations are in policy/exponentiated.py. Clients draw from the whole grid, uniformly at first; FedEx's paper has a
grid that is narrower than the default one, around values that train at all.
"""

from collections.abc import Mapping
from typing import Any

from fedaccord.core.errors import SettingsError
from fedaccord.core.protocols import Part, Policy
from fedaccord.core.records import Hyper
from fedaccord.core.settings import at_least, one_of, setting
from fedaccord.policy.exponentiated import ADAPTIVE, AGGRESSIVE, CONSTANT, DECAYING, Exponentiated
from fedaccord.policy.grid import HyperGrid

SERVERS = ("server_lr",)
"""The server's hyper-parameters, of which a client cannot have values of its own."""


class FedEx(Part):
    name = "FedEx"
    about = (
        "each client draws its own hyper-parameters of the grid; those that ended with a smaller loss become likelier"
    )
    cost = 1.1
    settings = (
        at_least(0, "fedex_rate", 0.0, "eta_0, the rate at which FedEx learns (0: sqrt(2 ln k) for k values)."),
        one_of(
            (DECAYING, ADAPTIVE, AGGRESSIVE, CONSTANT),
            "fedex_schedule",
            DECAYING,
            "What FedEx's rate is divided by: the root of t, of all squared gradients, the gradient, or 1",
        ),
        setting(
            "fedex_baseline",
            0.0,
            "How much of earlier rounds FedEx's baseline remembers (0: the last one's mean loss, 1: all alike).",
            check=lambda v: 0 <= v <= 1,
            expected="in [0, 1]",
        ),
    )

    takes_start = False

    def tunes(self, settings: Mapping[str, Any]) -> tuple[str, ...]:
        return HyperGrid.parse(settings["grid"]).names

    def policy(self, first: Hyper, settings: Mapping[str, Any]) -> Policy:
        grid = HyperGrid.parse(settings["grid"])
        grid.check(name for name in first.values() if name not in SERVERS)
        if settings["start"]:
            raise SettingsError("start: FedEx begins with all values of the grid alike; narrow the grid instead")
        return Exponentiated(
            first, grid, settings["fedex_rate"], settings["fedex_schedule"], settings["fedex_baseline"]
        )
