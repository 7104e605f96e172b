"""The tuner's story in one run as plain values: P(h | psi_t), its mean and spread, rewards, a sentence per round."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fedaccord.policy.gaussian import FullGaussian, gaussian
from fedaccord.policy.grid import Axis, HyperGrid
from fedaccord.policy.reinforce import LABELS

MAPS, CURVE, SENTENCES = 200, 4000, 2000
"""The most rounds that the heat map, a curve and the table of sentences have (in full detail)."""


def story(lines: Sequence[Mapping[str, Any]], text: str, detail: float) -> dict[str, Any] | None:
    """Return the tuner's story in one run, or None if its log has no P(h | psi) on its grid, which `text` describes.

    Such a run was not tuned, or by another policy. `detail`, at most 1, is the share of the rounds to keep.
    """
    if not any((line.get("policy") or {}).get("mu") for line in lines):
        return None
    grid = HyperGrid.parse(text)
    tuned = [line for line in lines if is_gaussian(line.get("policy") or {}, len(grid.axes))]
    if not tuned:
        return None
    mapped = [tuned[i] for i in evenly(len(tuned), MAPS, detail)]
    drawn = [tuned[i] for i in evenly(len(tuned), CURVE, detail)]
    moved = [line for line, after in itertools.zip_longest(tuned, tuned[1:]) if has_moved(line, after)]
    told = [moved[i] for i in evenly(len(moved), SENTENCES, detail)]
    noted, listed = {line["round"]: line for line in (*mapped, *told)}, {line["round"] for line in told}
    return {
        "axes": [
            {"name": axis.name, "label": label_of(axis.name), "values": list(axis.values), "log": axis.log}
            for axis in grid.axes
        ],
        "of": len(tuned),
        "moved": len(moved),
        "curves": curves(drawn, grid),
        "maps": maps(mapped, grid),
        "notes": [note(noted[round], grid, round in listed) for round in sorted(noted)],
    }


def is_gaussian(policy: Mapping[str, Any], D: int) -> bool:
    """Return whether this is a discrete Gaussian over D axes; another policy may log anything under these names."""
    try:
        mu, A = np.array(policy["mu"], np.float64), np.array(policy["A"], np.float64)
    except (KeyError, TypeError, ValueError):
        return False
    return mu.shape == (D,) and A.shape in ((D,), (D, D))


def evenly(count: int, limit: int, detail: float = 1.0) -> list[int]:
    """Return at most `limit` of the numbers 0 .. count - 1, evenly spaced, always with the first and the last."""
    kept = min(count, max(2, int(detail * min(count, limit))))
    return sorted(set(np.linspace(0, count - 1, kept).round().astype(int).tolist())) if count else []


def has_moved(line: Mapping[str, Any], after: Mapping[str, Any] | None) -> bool:
    """Return whether psi moved or a guard acted in a round.

    The newest round always counts, since what it did to psi is not in the log yet.
    """
    return bool(line.get("guard")) or after is None or line["policy"]["mu"] != after["policy"]["mu"]


def label_of(name: str) -> str:
    return LABELS.get(name, name.replace("_", " "))


def note(line: Mapping[str, Any], grid: HyperGrid, listed: bool) -> dict[str, Any]:
    policy = line["policy"]
    return {
        "round": line["round"],
        "choice": [line["hyper"].get(name) for name in grid.names],
        "p": number(policy.get("p")),
        "reward": number(line.get("reward")),
        "why": policy.get("why") or "",
        "guard": line.get("guard"),
        "listed": listed,
    }


def curves(lines: Sequence[Mapping[str, Any]], grid: HyperGrid) -> dict[str, Any]:
    """Return mu in real units with one standard deviation to either side, the draws, the rewards and the baseline."""
    mu = np.array([line["policy"]["mu"] for line in lines])
    sd = spread(np.array([line["policy"]["A"] for line in lines]))
    found: dict[str, Any] = {"rounds": [line["round"] for line in lines], "axes": []}
    for d, axis in enumerate(grid.axes):
        edges = {"mean": mu[:, d], "low": mu[:, d] - sd[:, d], "high": mu[:, d] + sd[:, d]}
        found["axes"].append(
            {name: [number(value) for value in real(axis, edge)] for name, edge in edges.items()}
            | {"drawn": [number(line["hyper"].get(axis.name)) for line in lines]}
        )
    found["reward"] = [number(line.get("reward")) for line in lines]
    found["baseline"] = [number(line["policy"].get("baseline")) for line in lines]
    return found


def spread(A: np.ndarray) -> np.ndarray:
    """Return standard deviations in normalised units, (rounds, D); A is the precision, the covariance's inverse."""
    variances = np.diagonal(np.linalg.inv(A), axis1=1, axis2=2) if A.ndim == 3 else 1 / A
    deviations: np.ndarray = np.sqrt(variances)
    return deviations


def real(axis: Axis, points: np.ndarray) -> list[float]:
    """Convert normalised points to the hyper-parameter's units; past the grid, where nothing is drawn, to its end."""
    scaled = np.interp(points, axis.points, axis.scale(np.array(axis.values)))
    values: list[float] = (np.exp(scaled) if axis.log else scaled).tolist()
    return values


def maps(lines: Sequence[Mapping[str, Any]], grid: HyperGrid) -> dict[str, Any]:
    """Return P(h | psi_t) over every pair of axes, with the others summed out.

    Places are in grid steps, so that all cells have the same size.
    """
    D = len(grid.axes)
    pairs = list(itertools.combinations(range(D), 2)) if D > 1 else [(0, 0)]
    tables: list[list[list[float]]] = [[] for _ in pairs]
    for line in lines:
        for table, pair in zip(tables, marginals(grid, line["policy"], pairs), strict=True):
            table.append([round(p, 5) for p in pair.T.ravel().tolist()])  # the second axis goes up, row by row
    mu = np.array([line["policy"]["mu"] for line in lines])
    steps = [np.interp(mu[:, d], axis.points, np.arange(len(axis.values))) for d, axis in enumerate(grid.axes)]
    return {
        "rounds": [line["round"] for line in lines],
        "pairs": [{"x": x, "y": y, "p": table} for (x, y), table in zip(pairs, tables, strict=True)],
        "mu": np.stack(steps, axis=1).round(3).tolist(),
        "at": [[nearest(a, line["hyper"].get(a.name)) for a in grid.axes] for line in lines],
    }


def nearest(axis: Axis, value: float | None) -> int | None:
    """Return the index of the axis's value that is nearest to this one, or None for None."""
    return None if value is None else min(range(len(axis.values)), key=lambda i: abs(axis.values[i] - value))


def marginals(grid: HyperGrid, policy: Mapping[str, Any], pairs: Sequence[tuple[int, int]]) -> list[np.ndarray]:
    """Return a table of probabilities for each pair (x, y), (values of x, values of y); for one axis, (values, 1)."""
    P = gaussian(grid, np.array(policy["mu"]), np.array(policy["A"]))
    if isinstance(P, FullGaussian):
        whole = P.p.reshape(P.shape)
        return [
            whole.sum(axis=tuple(set(range(whole.ndim)) - {x, y})).reshape(P.shape[x], -1 if x != y else 1)
            for x, y in pairs
        ]
    return [np.outer(P.p[x], P.p[y]) if x != y else P.p[x][:, None] for x, y in pairs]


def number(value: Any, digits: int = 5) -> float | int | None:
    """Return a number rounded to the digits that the page needs, or None for what is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.{digits}g}")
