"""A server's gauges at given times; None where it states no such figure."""

from __future__ import annotations

import numpy as np

from harness.analysis.table import Floats
from harness.observe.series import BackendSeries


def at_times(series: BackendSeries, name: str, times: Floats) -> Floats | None:
    """A gauge at the times of scrapes, the last value before where it lacks one, shape [n]."""
    gauge = series.get(name)
    if gauge is None or not len(gauge):
        return None
    places = np.clip(np.searchsorted(gauge.t_s, times, side="right") - 1, 0, None)
    return np.asarray(gauge.v[places], dtype=np.float64)


def mean_at(series: BackendSeries, name: str, times: Floats) -> float | None:
    """Its mean over those times."""
    values = at_times(series, name, times)
    return None if values is None else float(values.mean())


def largest_at(series: BackendSeries, name: str, times: Floats) -> float | None:
    """Its largest value at those times."""
    values = at_times(series, name, times)
    return None if values is None else float(values.max())
