"""Percentiles that always carry their n and say when the sample is too small for them.

The method is pinned: linear interpolation between closest ranks, numpy's default and
what vLLM's benchmark reports. A percentile p needs five samples beyond it, on the side
where fewer lie: n >= 5 / (1 - p) above the median (10 for p50, 100 for p95, 500 for p99).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Percentiles that every distribution carries, in percent.
LEVELS: tuple[int, ...] = (5, 25, 50, 75, 90, 95, 99)
#: Percentiles of the failure-adjusted view.
ADJUSTED_LEVELS: tuple[int, ...] = (50, 95, 99)
#: Samples wanted beyond a percentile before it is called sufficient.
SAMPLES_BEYOND = 5


@dataclass(frozen=True)
class Percentile:
    """One percentile: ``value`` in the unit of its distribution, None without samples.

    ``value`` may be +inf in the failure-adjusted view; in JSON that is null.
    """

    p: int
    value: float | None
    insufficient: bool


@dataclass(frozen=True)
class Distribution:
    """Summary of a sample of ``n`` values; every figure is None when n is 0.

    ``std`` is the population's (ddof 0), as vLLM's benchmark computes it.
    """

    n: int
    mean: float | None
    std: float | None
    minimum: float | None
    maximum: float | None
    percentiles: tuple[Percentile, ...]

    def at(self, p: int) -> Percentile:
        """The percentile p (in percent); raises KeyError when it was not computed."""
        for item in self.percentiles:
            if item.p == p:
                return item
        raise KeyError(p)

    def value(self, p: int) -> float | None:
        """The value at percentile p, whether sufficient or not."""
        return self.at(p).value

    def earned(self, p: int) -> float | None:
        """The value at percentile p, or None when n is too small for it."""
        item = self.at(p)
        return None if item.insufficient else item.value


@dataclass(frozen=True)
class AdjustedPercentiles:
    """Percentiles in which each of ``n_failed`` requests counts as +inf."""

    n: int
    n_failed: int
    percentiles: tuple[Percentile, ...]

    def value(self, p: int) -> float | None:
        """The value at percentile p, which may be +inf; raises KeyError."""
        for item in self.percentiles:
            if item.p == p:
                return item.value
        raise KeyError(p)


def samples_needed(p: int) -> int:
    """How many samples percentile p needs: 10 for p50, 100 for p95, 500 for p99."""
    tail = min(p, 100 - p)
    return math.ceil(SAMPLES_BEYOND * 100 / tail)


def insufficient(n: int, p: int) -> bool:
    """True when n samples are too few for percentile p."""
    return n < samples_needed(p)


def distribution(values: NDArray[np.float64]) -> Distribution:
    """Summarise finite values; an empty array gives n = 0 and None everywhere."""
    n = int(values.size)
    if n == 0:
        nothing = tuple(Percentile(p, None, True) for p in LEVELS)
        return Distribution(0, None, None, None, None, nothing)
    found = np.percentile(values, LEVELS)
    return Distribution(
        n=n,
        mean=float(values.mean()),
        std=float(values.std()),
        minimum=float(values.min()),
        maximum=float(values.max()),
        percentiles=tuple(
            Percentile(p, float(v), insufficient(n, p)) for p, v in zip(LEVELS, found, strict=True)
        ),
    )


def failure_adjusted(values: NDArray[np.float64], n_failed: int) -> AdjustedPercentiles:
    """Percentiles over successes and failures, a failure being worse than any success.

    ``inverted_cdf`` takes an element of the sample; linear interpolation next to +inf
    would give NaN.
    """
    n = int(values.size) + n_failed
    if n == 0:
        nothing = tuple(Percentile(p, None, True) for p in ADJUSTED_LEVELS)
        return AdjustedPercentiles(0, 0, nothing)
    everything = np.concatenate([values, np.full(n_failed, np.inf)])
    found = np.percentile(everything, ADJUSTED_LEVELS, method="inverted_cdf")
    return AdjustedPercentiles(
        n=n,
        n_failed=n_failed,
        percentiles=tuple(
            Percentile(p, float(v), insufficient(n, p))
            for p, v in zip(ADJUSTED_LEVELS, found, strict=True)
        ),
    )
