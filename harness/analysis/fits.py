"""Least squares with confidence intervals by the bootstrap; numpy only.

The intervals are percentile intervals of the pairs bootstrap (Efron and Tibshirani 1993, An
Introduction to the Bootstrap, 9.5 and 13.3): whole observations are drawn again with
replacement, so that neither normal nor equal errors are assumed. What belongs together (the
gaps of one request) is drawn together. The draws come from a fixed seed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.analysis.fit_types import Interval
from harness.analysis.table import Floats, Ints

DRAWS = 1000
METHOD = f"95 % percentile interval of {DRAWS:,} bootstrap draws of whole observations"
_LOW, _HIGH = 2.5, 97.5
#: columns whose scaled normal matrix is worse than this cannot be told apart
_WORST_CONDITION = 1e10
#: a fit that more than this share of the draws cannot determine hangs on very few observations
_MOST_UNDETERMINED = 0.05
#: of draws x observations that are worked on together: some 8 MiB
_MOST_AT_ONCE = 10**6


@dataclass(frozen=True)
class Fitted:
    """Coefficients with their intervals, one per column, and the size of the residuals."""

    terms: tuple[Interval, ...]
    rms: float


def polynomial(x: Floats, degree: int) -> Floats:
    """Columns 1, x, x^2, ... up to ``degree``, shape [n, degree + 1]."""
    return np.stack([x**power for power in range(degree + 1)], axis=1)


def fit(columns: Floats, y: Floats, together: Ints | None = None) -> Fitted | None:
    """Fit y = columns @ terms; ``columns`` [n, k], ``y`` [n], ``together`` [n] group numbers.

    None where the columns cannot be told apart, by all observations or, without three or so of
    them, by the rest; or where there are fewer groups than columns + 2.
    """
    groups = np.arange(y.size) if together is None else np.unique(together, return_inverse=True)[1]
    count = int(groups.max(initial=-1)) + 1
    k = columns.shape[1]
    if count < k + 2:
        return None
    scale = np.abs(columns).max(axis=0)
    if not np.all(scale > 0):
        return None
    x = columns / scale
    squares, products = _sums(x, y, groups, count)
    whole = squares.sum(axis=0)
    if np.linalg.cond(whole) > _WORST_CONDITION:
        return None
    best = np.linalg.solve(whole, products.sum(axis=0))
    drawn = _drawn(squares, products, count)
    if drawn.shape[0] < (1.0 - _MOST_UNDETERMINED) * DRAWS:
        return None
    low, high = np.percentile(drawn, [_LOW, _HIGH], axis=0)
    rms = float(np.sqrt(np.mean((y - x @ best) ** 2)))
    terms = tuple(
        # the interval of a skewed estimate can miss the estimate itself
        Interval(
            float(best[i] / scale[i]),
            float(min(low[i], best[i]) / scale[i]),
            float(max(high[i], best[i]) / scale[i]),
        )
        for i in range(k)
    )
    return Fitted(terms, rms)


def _sums(x: Floats, y: Floats, groups: Ints, count: int) -> tuple[Floats, Floats]:
    """Per group: X'X [groups, k, k] and X'y [groups, k]."""
    k = x.shape[1]
    squares = np.zeros((count, k, k))
    products = np.zeros((count, k))
    np.add.at(squares, groups, x[:, :, None] * x[:, None, :])
    np.add.at(products, groups, x * y[:, None])
    return squares, products


def _drawn(squares: Floats, products: Floats, count: int) -> Floats:
    """Coefficients of each draw that determines them, shape [draws, k]."""
    generator = np.random.default_rng(0)
    k = products.shape[1]
    at_once = max(1, min(DRAWS, _MOST_AT_ONCE // count))
    found = [np.empty((0, k))]
    for start in range(0, DRAWS, at_once):
        draws = min(at_once, DRAWS - start)
        times = generator.multinomial(count, np.full(count, 1.0 / count), size=draws)
        weights = times.astype(np.float64)
        matrices = (weights @ squares.reshape(count, k * k)).reshape(draws, k, k)
        sums = weights @ products
        known = np.linalg.cond(matrices) <= _WORST_CONDITION
        found.append(np.linalg.solve(matrices[known], sums[known][:, :, None])[:, :, 0])
    return np.concatenate(found)
