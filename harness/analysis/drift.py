"""A slope over time and how sure it is: Theil and Sen's, with a block bootstrap. Pure.

Theil (1950) and Sen (1968): the median of the slopes of all pairs of points. A quarter of
the points may be wild without moving it, so one garbage collection or one cold minute makes
no drift. Memory and latency of neighbouring stretches resemble each other; so the interval
comes from resampling the residuals in blocks (Kuensch 1989), with a fixed seed: the same
points always give the same interval. Blocks have n^(1/3) points.
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
#: percentiles of the interval
INTERVAL = (2.5, 97.5)
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
    low, high = np.percentile(_resampled(x, y, slope, pairs, apart), INTERVAL)
    return Trend(
        slope_per_h=slope,
        low_per_h=min(float(low), slope),
        high_per_h=max(float(high), slope),
        typical=float(np.median(y)),
        n=int(x.size),
    )


def judge(found: Trend | None, limit_per_h: float | None) -> DriftState:
    """Whether a growth up to the limit is all that can be; shrinking is no drift."""
    if found is None or limit_per_h is None:
        return "not_measured"
    if found.high_per_h <= limit_per_h:
        return "steady"
    return "drifts" if found.low_per_h > limit_per_h else "unclear"


def _slope(y: Floats, pairs: tuple[np.ndarray, np.ndarray], apart: Floats) -> float:
    return float(np.median((y[pairs[1]] - y[pairs[0]]) / apart))


def _resampled(
    x: Floats, y: Floats, slope: float, pairs: tuple[np.ndarray, np.ndarray], apart: Floats
) -> Floats:
    """Slopes of the line with its residuals drawn anew in blocks, shape [RESAMPLES]."""
    rest = y - slope * x
    fitted = slope * x + np.median(rest)
    rest = rest - np.median(rest)
    size = max(1, round(x.size ** (1 / 3)))
    draw = np.random.default_rng(_SEED)
    starts = draw.integers(0, x.size - size + 1, (RESAMPLES, -(-x.size // size)))
    rows = (starts[:, :, None] + np.arange(size)).reshape(RESAMPLES, -1)[:, : x.size]
    return np.array([_slope(fitted + rest[row], pairs, apart) for row in rows])


def _thinned(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    if x.size <= MOST_POINTS:
        return x, y
    parts = np.array_split(np.arange(x.size), MOST_POINTS)
    return (
        np.array([np.median(x[part]) for part in parts]),
        np.array([np.median(y[part]) for part in parts]),
    )
