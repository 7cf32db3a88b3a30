"""Does a figure trend over time? A line or a step through it, and how sure that is. Pure.

Least squares, the slope's error widened by how much neighbours resemble each other: n points
with correlation r between neighbours tell what n (1 - r) / (1 + r) points without it tell
(Bayley and Hammersley 1946). r is that of the residuals, raised by (2 + 4 r) / n: a short series
shows too little of it by (1 + 4 r) / n (Kendall 1954), and the line takes as much again of 1 / n.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.analysis.drift import alike, student
from harness.analysis.table import Floats

#: Fewer points tell nothing about a trend.
LEAST_POINTS = 8
#: Of a step, points on each side.
LEAST_SIDE = 3


@dataclass(frozen=True)
class Slope:
    """A line's change from the first point to the last, over the median, and its interval."""

    change: float
    half: float

    @property
    def significant(self) -> bool:
        """Whether the interval leaves 0 out."""
        return abs(self.change) > self.half


def slope(t_s: Floats, values: Floats, z: float) -> Slope | None:
    """The trend of ``values`` over ``t_s``, both of shape [n], NaN left out.

    ``z`` is the normal quantile of the interval. None with too few points, or values around 0:
    their change is then no share of anything.
    """
    known = ~np.isnan(values)
    t, y = t_s[known], values[known]
    n = t.size
    if n < LEAST_POINTS or np.ptp(t) <= 0:
        return None
    typical = float(np.median(y))
    if typical <= 0:
        return None
    x = t - t.mean()
    squares = float(x @ x)
    per_s = float(x @ y) / squares
    rest = y - y.mean() - per_s * x
    r = alike(rest, taken=2.0)
    spread = np.sqrt(float(rest @ rest) / (n - 2) / squares * (1 + r) / (1 - r))
    half = student(max(4.0, n * (1 - r) / (1 + r)) - 2, z) * float(spread)
    scale = float(np.ptp(t)) / typical
    return Slope(per_s * scale, half * scale)


def step(t_s: Floats, values: Floats, z: float) -> Slope | None:
    """The best step from one level to another, ``LEAST_SIDE`` points on each side at least.

    A line through a step leaves residuals that look like correlated noise, so a step needs a test
    of its own. Arguments and None as in ``slope``; ``z`` must make up for the choice of the place.
    """
    known = ~np.isnan(values)
    t, y = t_s[known], values[known]
    n = t.size
    typical = float(np.median(y)) if n else 0.0
    if n < LEAST_POINTS or typical <= 0:
        return None
    y = y[np.argsort(t, kind="stable")]
    left = np.arange(LEAST_SIDE, n - LEAST_SIDE + 1)
    sums = np.cumsum(y)
    before, after = sums[left - 1] / left, (sums[-1] - sums[left - 1]) / (n - left)
    place = int(np.argmax((after - before) ** 2 * left * (n - left)))
    first = int(left[place])
    rest = y - np.where(np.arange(n) < first, before[place], after[place])
    r = alike(rest, taken=2.0)
    spread = np.sqrt(float(rest @ rest) / (n - 2) * (1 / first + 1 / (n - first)))
    spread *= np.sqrt((1 + r) / (1 - r))
    half = student(max(4.0, n * (1 - r) / (1 + r)) - 2, z) * float(spread)
    return Slope(float(after[place] - before[place]) / typical, half / typical)
