"""A slope over time and how sure it is: Theil and Sen's, with a bootstrap. Pure.

Theil (1950) and Sen (1968): the median of the slopes of all pairs of points. A quarter of
the points may be wild without moving it, so one garbage collection or one cold minute makes
no drift. Its spread comes from resampling the residuals, with a fixed seed: the same points
always give the same interval.

Memory and latency of neighbouring stretches resemble each other, and n such points tell less
than n that do not. So the spread is widened by sqrt((1 + r) / (1 - r)) and counted as that of
n (1 - r) / (1 + r) points, r being the residuals' correlation with their neighbours, raised
by (1 + 4 r) / n, by which a short series shows too little of it (Kendall 1954). The interval
is slope -+ Student's t x spread. In simulations of 17 to 100 points it held the true slope in
92 to 95 of 100 cases without correlation, and in 87 to 95 with r = 0.5; an interval from
resampled blocks in 67 to 84.
"""

from __future__ import annotations

import numpy as np

from harness.analysis.soak_types import DriftState, Trend
from harness.analysis.table import Floats

#: Fewer points give no slope worth a verdict.
LEAST_POINTS = 5
#: More points than this are thinned to as many medians: all pairs are looked at.
MOST_POINTS = 120
RESAMPLES = 999
#: of the normal distribution: 95 % lie within
_Z = 1.959964
#: Neighbours that resemble each other more than this are no points at all.
_MOST_ALIKE = 0.9
_SEED = 1968
_HOUR_S = 3600.0


def trend(t_s: Floats, values: Floats) -> Trend | None:
    """The slope of ``values`` over time, both of shape [n]; None with too few points.

    Values that are NaN are left out.
    """
    known = ~np.isnan(values)
    x, y = _thinned(t_s[known] / _HOUR_S, values[known])
    if x.size < LEAST_POINTS or np.ptp(x) <= 0:
        return None
    pairs = np.triu_indices(x.size, k=1)
    apart = x[pairs[1]] - x[pairs[0]]
    # two points of one time have no slope
    pairs = (pairs[0][apart > 0], pairs[1][apart > 0])
    apart = apart[apart > 0]
    slope = _slope(y, pairs, apart)
    half = _half_width(y - slope * x, pairs, apart)
    return Trend(
        slope_per_h=slope,
        low_per_h=slope - half,
        high_per_h=slope + half,
        typical=float(np.median(y)),
        n=int(x.size),
    )


def judge(found: Trend | None, limit_per_h: float | None) -> DriftState:
    """Whether a growth up to the limit is all that can be; shrinking is no drift."""
    if found is None:
        return "not_measured"
    if limit_per_h is None:
        return "not_judged"
    if found.high_per_h <= limit_per_h:
        return "steady"
    return "drifts" if found.low_per_h > limit_per_h else "unclear"


def _slope(y: Floats, pairs: tuple[np.ndarray, np.ndarray], apart: Floats) -> float:
    return float(np.median((y[pairs[1]] - y[pairs[0]]) / apart))


def _half_width(rest: Floats, pairs: tuple[np.ndarray, np.ndarray], apart: Floats) -> float:
    """Half of the interval, from the residuals of shape [n]."""
    n = rest.size
    rows = np.random.default_rng(_SEED).integers(0, n, (RESAMPLES, n))
    spread = float(np.std([_slope(rest[row], pairs, apart) for row in rows]))
    r = alike(rest)
    widened = spread * np.sqrt(n / (n - 2) * (1 + r) / (1 - r))
    return student(max(4.0, n * (1 - r) / (1 + r)) - 2) * float(widened)


def alike(rest: Floats, taken: float = 1.0) -> float:
    """Correlation of each residual with its neighbour, 0 at least, 0.9 at most.

    ``taken`` over n is what an estimate of uncorrelated residuals lacks on average.
    """
    centred = rest - rest.mean()
    power = float(centred @ centred)
    if not power:
        return 0.0
    seen = float(centred[1:] @ centred[:-1]) / power
    return min(_MOST_ALIKE, max(0.0, seen + (taken + 4 * seen) / rest.size))


def student(freedom: float, z: float = _Z) -> float:
    """Student's t, by the first terms of its expansion (Abramowitz, Stegun 26.7.5).

    ``z`` is the normal distribution's quantile of the same level: 95 % by default.
    """
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return float(z + first / freedom + second / freedom**2 + third / freedom**3)


def _thinned(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    if x.size <= MOST_POINTS:
        return x, y
    parts = np.array_split(np.arange(x.size), MOST_POINTS)
    return (
        np.array([np.median(x[part]) for part in parts]),
        np.array([np.median(y[part]) for part in parts]),
    )
