"""What size of regression the gate can see, and since which night a figure has changed. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from harness.nightly.gate import scaled, threshold, with_counting_noise, worse_change
from harness.nightly.gate_types import GateLimits, Reading, Series
from harness.nightly.metrics import Metric
from harness.nightly.quantiles import normal_quantile
from harness.nightly.spread import robust_spread

_DRAWS = 999
#: a change point leaves so many nights before it; the last night alone may be a new level
_BEFORE = 2
_FEWEST = 5


@dataclass(frozen=True)
class Sight:
    """The smallest regression that is found the same night with probability ``power``.

    ``regression`` and ``night_spread`` are shares of the baseline (absolute for share metrics);
    both None with fewer than the nights that the gate needs.
    """

    regression: float | None
    night_spread: float | None
    nights: int
    power: float


@dataclass(frozen=True)
class ChangePoint:
    """The first night of a new level; ``change`` is a share, ``p_value`` by permutation."""

    night: str
    change: float
    p_value: float


def visible_regression(
    history: Series, limits: GateLimits, gated: int | None = None, power: float = 0.75
) -> Sight:
    """What the gate can see in this user's own history.

    It must pass the threshold t s sqrt(1 + 1/N), and with probability ``power`` tonight's own
    noise, of the same size, must not hide it: z(power) s more. ``gated`` is the size of the
    family (default: the most that is allowed). The baseline's own spread is taken, not the
    family's, so the answer is rather too large than too small.
    """
    readings = history.baseline[-limits.baseline_nights :]
    if len(readings) < max(limits.min_nights, 2):
        return Sight(None, None, len(readings), power)
    values = np.array([scaled(history.metric, item) for item in readings])
    spread = with_counting_noise(history, robust_spread(values))
    tail = limits.false_alarm_rate * limits.night_share / max(gated or limits.max_gated, 1)
    noise = spread.sd * math.sqrt(1.0 + 1.0 / spread.nights)
    seen = threshold(spread, history.metric, tail) + normal_quantile(power) * noise
    return Sight(worse_change(history.metric, seen), spread.sd, spread.nights, power)


def change_point(readings: Sequence[Reading], metric: Metric, seed: int = 20) -> ChangePoint | None:
    """The single step that explains the history best, oldest night first; None with too few.

    For a step before night k of n the statistic is |mean after - mean before| x
    sqrt(k (n - k) / n), which for equal normal noise is the likelihood ratio's. Its p-value is
    that of 999 random orders of the same nights, so it holds whatever their distribution.
    """
    n = len(readings)
    if n < _FEWEST:
        return None
    values = np.array([scaled(metric, item) for item in readings])
    if float(np.ptp(values)) == 0.0:
        return None
    found = _steps(values[None, :])[0]
    best = int(np.argmax(found)) + _BEFORE
    draw = np.random.Generator(np.random.PCG64(seed))
    orders = draw.permuted(np.tile(values, (_DRAWS, 1)), axis=1)
    as_large = int((_steps(orders).max(axis=1) >= found.max() * (1.0 - 1e-12)).sum())
    moved = float(values[best:].mean() - values[:best].mean())
    change = moved if metric.is_share else math.expm1(moved)
    return ChangePoint(readings[best].night, change, (1 + as_large) / (1 + _DRAWS))


def _steps(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """The statistic of each row (orders x nights) for each place of the step."""
    n = rows.shape[1]
    k = np.arange(_BEFORE, n)
    before = np.cumsum(rows, axis=1)[:, k - 1]
    after = rows.sum(axis=1, keepdims=True) - before
    steps: NDArray[np.float64] = np.abs(after / (n - k) - before / k) * np.sqrt(k * (n - k) / n)
    return steps
