"""AH: adaptive hyper-parameters, the paper's online REINFORCE (Eq. 3 to 7, lines 4, 17 and 18)."""

import math
from collections.abc import Mapping
from typing import Any

from fedaccord.core.cohorts import pass_length
from fedaccord.core.protocols import Part, Policy
from fedaccord.core.records import Hyper
from fedaccord.core.settings import at_least, one_of, setting
from fedaccord.policy.grid import HyperGrid
from fedaccord.policy.pace import Pace
from fedaccord.policy.reinforce import ADAM, ASCENT, LARGEST, SCALED, SMALLEST, WALK, Reinforce

LONGEST = 4
"""The most rounds of a pass over the clients for which a choice is held for whole passes."""


class AdaptiveHyper(Part):
    name = "AH"
    about = "the server tunes the hyper-parameters of the grid from round to round"
    settings = (
        one_of(
            (ASCENT, ADAM, SCALED, WALK),
            "psi",
            SCALED,
            "How AH moves psi: plain ascent as printed, Adam, by scaled advantages, or (a control) at random",
            printed=ASCENT,
        ),
        at_least(0, "hyper_lr", 0.02, "eta_H, the rate at which AH learns.", printed=0.01),
        setting(
            "step_search",
            True,
            "The server looks for the length of its step, by the running mean's loss on its set.",
            printed=False,
        ),
        setting(
            "follow",
            True,
            "The rate follows the length of the server's step, the SGD iterations how far the clients agree.",
            printed=False,
        ),
        at_least(
            1, "hold", 4, "Rounds that AH holds a choice for; whole passes if it can, at most Z rounds.", printed=1
        ),
        at_least(1, "interval", 10, "Z, how many choices back AH looks.", printed=5),
        setting(
            "precision",
            600.0,
            "A_1 = precision * I.",
            check=lambda v: SMALLEST <= v <= LARGEST,
            expected=f"{SMALLEST:g} to {LARGEST:g}",
            printed=85.0,
        ),
        setting("diagonal", False, "Keep A diagonal: cheaper for many hyper-parameters, no correlations."),
        one_of(
            ("causal", "centred"),
            "baseline",
            "causal",
            "Baseline of the reward where psi = ascent: Eq. 7, which the paper uses, or Eq. 6",
        ),
    )

    def tunes(self, settings: Mapping[str, Any]) -> tuple[str, ...]:
        return HyperGrid.parse(settings["grid"]).names

    def policy(self, first: Hyper, settings: Mapping[str, Any]) -> Policy:
        grid, late = HyperGrid.parse(settings["grid"]), settings["evaluate"] == "clients"
        grid.check(first.values())
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
            late=late,
            pace=Pace(grid, lap(settings), late) if settings["follow"] else None,
            hold=rounds_held(settings),
        )

    def stretches(self, settings: Mapping[str, Any]) -> bool:
        return bool(settings["step_search"])

    def follows(self, settings: Mapping[str, Any]) -> bool:
        return bool(settings["follow"]) and "lr" in self.tunes(settings)


def rounds_held(settings: Mapping[str, Any]) -> int:
    """Return for how many rounds a choice is held: `hold`, rounded up to whole passes if they are short, at most Z."""
    one = 1 if settings["cohorts"] == "random" else whole_pass(settings)
    held = one * math.ceil(settings["hold"] / one) if one <= LONGEST else int(settings["hold"])
    return min(held, int(settings["interval"]))


def lap(settings: Mapping[str, Any]) -> int:
    """Return how many rounds are judged together: a pass over the clients, or LONGEST rounds of a longer one."""
    return min(LONGEST, whole_pass(settings))


def whole_pass(settings: Mapping[str, Any]) -> int:
    """Return how many rounds it takes until every client has trained; one that is alone trains in every round."""
    return 1 if settings["alone"] else pass_length(settings["clients"], settings["fraction"])
