"""AH: adaptive hyper-parameters, the paper's online REINFORCE (Eq. 3 to 7, lines 4 and 16-18)."""

from collections.abc import Mapping
from typing import Any

from fedaccord.core.algorithm import pass_length
from fedaccord.core.protocols import Part, Policy
from fedaccord.core.records import Hyper
from fedaccord.core.settings import at_least, one_of, setting
from fedaccord.policy.grid import HyperGrid
from fedaccord.policy.reinforce import ADAM, ASCENT, SCALED, WALK, Reinforce


class AdaptiveHyper(Part):
    name = "AH"
    about = "the server tunes the hyper-parameters of the grid from round to round"
    settings = (
        one_of(
            (ASCENT, ADAM, SCALED, WALK),
            "psi",
            SCALED,
            "How AH moves psi: plain ascent as printed, Adam, by scaled advantages, or (a control) at random",
        ),
        at_least(0, "hyper_lr", 0.05, "eta_H, the rate at which AH learns."),
        setting("climb", False, "Begin by trying learning rates, as long as they earn more."),
        setting("align", False, "Begin with many SGD iterations where the clients' first steps agree, else with few."),
        at_least(1, "interval", 10, "Z, how many choices back AH looks."),
        setting("precision", 85.0, "A_1 = precision * I.", check=lambda v: 5 <= v <= 400, expected="5 to 400"),
        setting("diagonal", False, "Keep A diagonal: cheaper for many hyper-parameters, no correlations."),
        one_of(
            ("causal", "centred"),
            "baseline",
            "causal",
            "Baseline of the reward: Eq. 7, which the paper uses, or Eq. 6",
        ),
    )

    def tunes(self, settings: Mapping[str, Any]) -> tuple[str, ...]:
        return HyperGrid.parse(settings["grid"]).names

    def policy(self, first: Hyper, settings: Mapping[str, Any]) -> Policy:
        grid = HyperGrid.parse(settings["grid"])
        grid.check(first.values())
        whole_pass = pass_length(settings["clients"], settings["fraction"])
        return Reinforce(
            first,
            grid,
            settings["hyper_lr"],
            settings["interval"],
            settings["precision"],
            settings["diagonal"],
            settings["baseline"],
            grid.place(settings["start"]),
            settings["psi"],
            climb=settings["climb"],
            align=settings["align"],
            hold=1 if settings["cohorts"] == "random" else min(settings["interval"], whole_pass),
        )
