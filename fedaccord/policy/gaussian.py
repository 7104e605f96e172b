"""The discrete Gaussian P(h | mu, A) over a grid: probabilities, samples, and the analytic score.

P(h) = N(h | mu, A) / sum_h' N(h' | mu, A). The Gaussian's own constant cancels, so
log P(h) = -1/2 (h - mu)^T A (h - mu) - log sum_h' exp(-1/2 (h' - mu)^T A (h' - mu)).
"""

import functools
import math
from dataclasses import dataclass

import numpy as np

from fedaccord.policy.grid import HyperGrid

Index = tuple[int, ...]


@dataclass(frozen=True)
class Score:
    """The gradient of log P(h | mu, A) with respect to mu, (D,), and to A, (D, D), or to its diagonal, (D,)."""

    mu: np.ndarray
    A: np.ndarray


@functools.lru_cache(maxsize=16)
def grid_points(grid: HyperGrid) -> np.ndarray:
    """Return all points of the grid, (points, D), the last axis running fastest."""
    mesh = np.meshgrid(*(axis.points for axis in grid.axes), indexing="ij")
    return np.stack([part.ravel() for part in mesh], axis=1)


class FullGaussian:
    """A discrete Gaussian with a full precision matrix A (D, D): every pair of hyper-parameters may be correlated."""

    def __init__(self, grid: HyperGrid, mu: np.ndarray, A: np.ndarray):
        self.grid, self.mu, self.A = grid, mu, A
        self.points = grid_points(grid)
        self.p = softmax(-0.5 * np.einsum("nd,de,ne->n", self.points - mu, A, self.points - mu))

    def sample(self, uniform: np.ndarray) -> Index:
        """Draw a grid point; `uniform` holds at least one number in [0, 1)."""
        flat = pick(self.p, float(uniform[0]))
        return tuple(int(i) for i in np.unravel_index(flat, self.shape))

    def probability(self, index: Index) -> float:
        return float(self.p[np.ravel_multi_index(index, self.shape)])

    def score(self, index: Index) -> Score:
        """Return d/dmu = A (h - E[h]) and d/dA = -1/2 ((h - mu)(h - mu)^T - E[(h - mu)(h - mu)^T])."""
        h = self.points[np.ravel_multi_index(index, self.shape)]
        apart = self.points - self.mu
        expected = np.einsum("n,nd,ne->de", self.p, apart, apart)
        own = np.outer(h - self.mu, h - self.mu)
        return Score(self.A @ (h - self.p @ self.points), -0.5 * (own - expected))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(axis.values) for axis in self.grid.axes)


class DiagonalGaussian:
    """A discrete Gaussian with a diagonal A (D,), hence with independent axes.

    Its cost grows with the sum of the axes' lengths, not with their product.
    """

    def __init__(self, grid: HyperGrid, mu: np.ndarray, A: np.ndarray):
        self.grid, self.mu, self.A = grid, mu, A
        self.points = [axis.points for axis in grid.axes]
        self.p = [softmax(-0.5 * a * (points - m) ** 2) for points, m, a in zip(self.points, mu, A, strict=True)]

    def sample(self, uniform: np.ndarray) -> Index:
        """Draw a grid point; `uniform` holds one number in [0, 1) for each axis."""
        return tuple(pick(p, float(u)) for p, u in zip(self.p, uniform, strict=False))

    def probability(self, index: Index) -> float:
        return math.prod(float(p[i]) for p, i in zip(self.p, index, strict=True))

    def score(self, index: Index) -> Score:
        """Return d/dmu = a (h - E[h]) and d/da = -1/2 ((h - mu)^2 - E[(h - mu)^2]), axis by axis."""
        d_mu, d_A = [], []
        for points, p, m, a, i in zip(self.points, self.p, self.mu, self.A, index, strict=True):
            d_mu.append(a * (points[i] - p @ points))
            d_A.append(-0.5 * ((points[i] - m) ** 2 - p @ (points - m) ** 2))
        return Score(np.array(d_mu), np.array(d_A))


def gaussian(grid: HyperGrid, mu: np.ndarray, A: np.ndarray) -> FullGaussian | DiagonalGaussian:
    """Return the discrete Gaussian for the form of A: a matrix or its diagonal."""
    return FullGaussian(grid, mu, A) if A.ndim == 2 else DiagonalGaussian(grid, mu, A)


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max())
    result: np.ndarray = weights / weights.sum()
    return result


def pick(p: np.ndarray, uniform: float) -> int:
    """Return the index at which the cumulative probability passes `uniform`."""
    return min(int(np.searchsorted(np.cumsum(p), uniform, side="right")), len(p) - 1)
