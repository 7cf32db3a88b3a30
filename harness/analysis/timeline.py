"""A level over time, thin enough to draw."""

from __future__ import annotations

import numpy as np

from harness.analysis.summary_types import Timeline, Window
from harness.analysis.table import CellTable, Floats
from harness.analysis.windows import in_flight_steps
from harness.observe import names
from harness.observe.series import BackendSeries, Series

#: Points of the in-flight curve, and samples kept of a gauge.
MAX_POINTS = 400


def level_timeline(table: CellTable, window: Window, series: BackendSeries | None) -> Timeline:
    """In-flight requests and the server's gauges from the level's start to its end."""
    start, end = _bounds(table, window)
    sent = ~np.isnan(table.sent_s)
    grid = np.linspace(start, end, MAX_POINTS)
    times, levels = in_flight_steps(table.sent_s[sent], table.end_s[sent])
    flight = np.concatenate([[0.0], levels])[np.searchsorted(times, grid, side="right")]
    samples = _sample_times(series, start, end)
    return Timeline(
        t_s=_rounded(grid - start),
        in_flight=tuple(int(v) for v in flight),
        sample_t_s=_rounded(samples - start),
        running=_values(series, names.RUNNING, samples),
        waiting=_values(series, names.WAITING, samples),
        kv_used_bytes=_values(series, names.KV_USED_BYTES, samples),
        open_s=None if window.open_s is None else window.open_s - start,
        close_s=None if window.close_s is None else window.close_s - start,
    )


def _bounds(table: CellTable, window: Window) -> tuple[float, float]:
    first = float(table.reference_s.min()) if table.n else 0.0
    last = float(table.end_s.max()) if table.n else first
    start = first if window.start_s is None else window.start_s
    end = last if window.end_s is None else window.end_s
    return start, max(end, start)


def _sample_times(series: BackendSeries | None, start_s: float, end_s: float) -> Floats:
    gauge = None
    if series is not None:
        gauge = series.get(names.RUNNING) or series.get(names.KV_USED_BYTES)
    if gauge is None:
        return np.empty(0)
    times = gauge.window(start_s, end_s).t_s
    return times[:: max(1, -(-times.size // MAX_POINTS))]


def _values(series: BackendSeries | None, name: str, at_s: Floats) -> tuple[float | None, ...]:
    gauge: Series | None = series.get(name) if series is not None else None
    if gauge is None or not len(gauge):
        return (None,) * at_s.size
    index = np.searchsorted(gauge.t_s, at_s, side="right") - 1
    return tuple(float(gauge.v[i]) if i >= 0 else None for i in index)


def _rounded(values: Floats) -> tuple[float, ...]:
    return tuple(round(float(v), 4) for v in values)
