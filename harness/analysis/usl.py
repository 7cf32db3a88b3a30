"""The Universal Scalability Law over the levels, and the throughput knee that follows. Pure.

Gunther (2007, Guerrilla Capacity Planning, chapter 4): n requests in flight give

    X(n) = lambda n / (1 + sigma (n - 1) + kappa n (n - 1))

sigma is what they wait for each other, kappa what they cost each other. As n / X it is linear
in its terms: n / X = a + b n + c n^2 with a = (1 - sigma) / lambda, b = (sigma - kappa) /
lambda, c = kappa / lambda. So it is fitted by least squares of the relative error, with a, b, c
of 0 at least: of the seven sets of terms the best one whose terms are all positive. No scaling
of either axis and no order of the levels changes the answer.

The curve's gain per doubling at n is 2^e - 1, e being its slope between logarithms,
e = (a - c n^2) / (a + b n + c n^2). The knee is where that falls below the stated gain:
c (1 + e) n^2 + b e n - a (1 - e) = 0. The peak is at sqrt(a / c).

Its interval: each of 500 seeded draws moves every rate by its own error (from its
requests) and by a relative residual of the fit, and is fitted again; of 95 % of them the knee
lies within. Draws without a knee count as knees beyond all levels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from harness.analysis.curve_draws import middle, moves, scaled
from harness.analysis.table import Floats

#: Levels that three terms and their scatter need.
LEAST_LEVELS = 5
_SEED = 2007
_TERMS = 3
#: from no term but one to all three
_SETS = tuple(chosen for size in (1, 2, 3) for chosen in combinations(range(_TERMS), size))
#: a scaled normal matrix worse than this has terms that cannot be told apart
_WORST_CONDITION = 1e12


@dataclass(frozen=True)
class Usl:
    """The fitted law: its terms a, b, c, its knee and peak in levels, inf where it has none."""

    terms: tuple[float, float, float]
    knee: float
    low: float
    high: float
    peak: float
    rms: float

    @property
    def law(self) -> tuple[float, float, float]:
        """lambda (tokens/s of one request), sigma, kappa."""
        a, b, c = self.terms
        scale = 1.0 / (a + b + c)
        return float(scale), float((b + c) * scale), float(c * scale)

    def rate(self, levels: Floats) -> Floats:
        """The curve at some levels."""
        a, b, c = self.terms
        return np.asarray(levels / (a + b * levels + c * levels**2), dtype=np.float64)


def fit_usl(levels: Floats, rates: Floats, errors: Floats, gain: float) -> Usl | None:
    """Fit the law to rates of distinct levels, all of shape [n] and above 0.

    ``errors`` are the rates' own relative errors, 0 where unknown; ``gain`` per doubling is
    that of the knee. None with fewer than ``LEAST_LEVELS`` levels.
    """
    if levels.size < LEAST_LEVELS:
        return None
    x, y, spread = scaled(levels, rates, errors)
    best = _fit(x, y[None, :])[0]
    shown = x / _per_rate(x, best[None, :])[0]
    residuals = y / shown - 1.0
    rms = float(np.sqrt(np.mean(residuals**2)))
    drawn = _fit(x, shown * np.exp(moves(residuals, spread, _TERMS, _SEED)))
    low, high = middle(_knees(drawn, gain))
    knee = float(_knees(best[None, :], gain)[0])
    a, b, c = (float(term) for term in best)
    scale_x, scale_y = float(levels.max()), float(rates.max())
    return Usl(
        terms=(a * scale_x / scale_y, b / scale_y, c / scale_x / scale_y),
        knee=knee * scale_x,
        low=min(low, knee) * scale_x,
        high=max(high, knee) * scale_x,
        peak=math.sqrt(a / c) * scale_x if c > 0 else math.inf,
        rms=rms,
    )


def _per_rate(x: Floats, terms: Floats) -> Floats:
    """n / X of each fit, shape [fits, levels]."""
    return np.asarray(terms @ _columns(x).T, dtype=np.float64)


def _columns(x: Floats) -> Floats:
    return np.stack([np.ones_like(x), x, x**2], axis=1)


def _fit(x: Floats, rates: Floats) -> Floats:
    """Terms of the best fit to each row of ``rates`` [fits, levels], shape [fits, 3]."""
    wanted = x / rates
    # relative error: each equation over what it should give
    rows = _columns(x)[None, :, :] / wanted[:, :, None]
    squares = rows.transpose(0, 2, 1) @ rows
    products = rows.sum(axis=1)
    best = np.zeros((rates.shape[0], _TERMS))
    least = np.full(rates.shape[0], np.inf)
    for chosen in _SETS:
        terms = _solved(squares, products, list(chosen))
        misses = ((rows @ terms[:, :, None])[:, :, 0] - 1.0) ** 2
        size = np.where((terms >= 0).all(axis=1), misses.sum(axis=1), np.inf)
        # fewer terms win where more explain nothing beyond rounding
        better = size < least * (1 - 1e-9) - 1e-18
        best[better], least[better] = terms[better], size[better]
    return best


def _solved(squares: Floats, products: Floats, chosen: list[int]) -> Floats:
    """Least squares with some of the terms, the others 0; -1 where it has no solution."""
    part = squares[:, chosen][:, :, chosen]
    terms = np.zeros((squares.shape[0], _TERMS))
    known = np.linalg.cond(part) <= _WORST_CONDITION
    found = np.full((squares.shape[0], len(chosen)), -1.0)
    found[known] = np.linalg.solve(part[known], products[known][:, chosen, None])[:, :, 0]
    terms[:, chosen] = found
    return terms


def _knees(terms: Floats, gain: float) -> Floats:
    """Where the gain per doubling falls below ``gain``, inf where it never does; shape [fits]."""
    e = math.log2(1.0 + gain)
    a, b, c = terms.T
    first, square, last = b * e, c * (1 + e), a * (1 - e)
    root = first + np.sqrt(first**2 + 4 * square * last)
    # of both forms of the root the one that divides by no difference
    with np.errstate(divide="ignore", invalid="ignore"):
        # a term n^2 alone falls from the start; a constant alone rises for ever
        return np.where(root > 0, 2 * last / root, np.where(c > 0, 0.0, np.inf))
