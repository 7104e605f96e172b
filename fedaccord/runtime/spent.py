"""The privacy that a run has cost its clients, as a number and as a sentence."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedaccord.server.privacy import EPSILON, SECRET


def epsilon_spent(rounds: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the newest epsilon in the log; None if the run has no noise, or so little that epsilon says nothing."""
    found = [line["method"][EPSILON] for line in rounds if EPSILON in (line.get("method") or {})]
    return found[-1] if found else None


def privacy_sentence(rounds: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> str | None:
    """State the differential privacy that a run may claim; return None if it was run without noise."""
    if not settings.get("dp_noise"):
        return None
    spent = epsilon_spent(rounds)
    if spent is None:
        return f"differential privacy: none to speak of, dp_noise = {settings['dp_noise']:g} is too little"
    return (
        f"differential privacy of a client's taking part: epsilon = {spent:.4g} at delta = {settings['dp_delta']:g}, "
        f"without anything taken off for random cohorts; only of the model, and only while {SECRET} stays secret"
    )
