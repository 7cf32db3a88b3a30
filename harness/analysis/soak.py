"""A soak: does memory or latency grow over hours, and is all KV memory given back? Pure.

Each stretch of load gives one point: the medians of TTFT and TPOT over its counted
successes, and the medians of process memory and of KV bytes in the pause behind it, in
which nothing is in flight. The first tenth of the stretches (one at least) is the server
warming up: allocators and caches fill once, and that is no drift.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness.analysis.drift import judge, trend
from harness.analysis.latency import request_times
from harness.analysis.soak_types import BackendSoak, Drift, SoakFigures
from harness.analysis.table import CANCELLED, CellTable, Floats
from harness.analysis.windows import LevelMarks, counted_mask, measure_window
from harness.manifest import Manifest
from harness.observe import names
from harness.observe.series import BackendSeries, Series
from harness.records import CellKey
from harness.workload import Soak

#: Share of the stretches that is warm-up.
WARMUP_SHARE = 0.1
#: A server notices a closed stream at its next token, and its page is a second old.
SETTLE_S = 1.5


@dataclass(frozen=True)
class _Stretch:
    """One stretch of load and the pause behind it, in monotonic seconds."""

    table: CellTable
    marks: LevelMarks
    start_s: float
    end_s: float
    rest_end_s: float


def measure_soak(
    manifest: Manifest,
    tables: Mapping[CellKey, CellTable],
    marks: Mapping[CellKey, LevelMarks],
    series: Mapping[str, BackendSeries],
) -> SoakFigures | None:
    """The figures of a soak; None for any other run."""
    soak = manifest.workload.soak
    if soak is None:
        return None
    return SoakFigures(
        tuple(
            _backend(info.name, soak, _stretches(info.name, soak, tables, marks), series)
            for info in manifest.backends
        )
    )


def _stretches(
    backend: str,
    soak: Soak,
    tables: Mapping[CellKey, CellTable],
    marks: Mapping[CellKey, LevelMarks],
) -> list[_Stretch]:
    """The finished stretches of one backend, in the order of time."""
    found = [
        _Stretch(tables[cell], mark, mark.start_s, mark.end_s, mark.end_s + soak.rest_s)
        for cell, mark in marks.items()
        if cell.backend == backend
        and cell in tables
        and mark.start_s is not None
        and mark.end_s is not None
        and mark.close_s is not None
    ]
    return sorted(found, key=lambda stretch: stretch.start_s)


def _backend(
    name: str, soak: Soak, stretches: Sequence[_Stretch], all_series: Mapping[str, BackendSeries]
) -> BackendSoak:
    series = all_series.get(name)
    memory = series.get(names.PROCESS_RSS_BYTES) if series is not None else None
    kv = series.get(names.KV_USED_BYTES) if series is not None else None
    cold = max(1, math.ceil(len(stretches) * WARMUP_SHARE))
    warm = stretches[cold:]
    bytes_limit = soak.max_memory_growth_bytes
    middles_s = np.array([(s.start_s + s.end_s) / 2 for s in warm])
    ends_s = np.array([s.rest_end_s for s in warm])
    ttft_s, tpot_s = (_latencies(warm, pick) for pick in ("ttft_s", "tpot_s"))
    return BackendSoak(
        backend=name,
        drifts=(
            _of_bytes("process memory", ends_s, _at_rest(warm, memory), bytes_limit),
            _of_bytes("KV bytes at rest", ends_s, _at_rest(warm, kv), bytes_limit),
            _of_seconds("TTFT", middles_s, ttft_s, soak.max_latency_growth),
            _of_seconds("TPOT", middles_s, tpot_s, soak.max_latency_growth),
        ),
        kv_bytes_left=_left(stretches, kv),
        kv_stated=kv is not None,
        cancelled=sum(int((s.table.outcome == CANCELLED).sum()) for s in stretches),
        hours=(warm[-1].end_s - warm[0].start_s) / 3600 if warm else 0.0,
    )


def _of_bytes(name: str, t_s: Floats, values: Floats, limit: float) -> Drift:
    found = trend(t_s, values)
    return Drift(name, "bytes", found, limit if found else None, judge(found, limit))


def _of_seconds(name: str, t_s: Floats, values: Floats, share: float | None) -> Drift:
    found = trend(t_s, values)
    limit = share * found.typical if found is not None and share is not None else None
    return Drift(name, "s", found, limit, judge(found, limit))


def _latencies(stretches: Sequence[_Stretch], name: str) -> Floats:
    """Median over the counted successes of each stretch; NaN without any, shape [n]."""

    def median(stretch: _Stretch) -> float:
        table = stretch.table
        counted = counted_mask(table, measure_window(table, stretch.marks)) & table.ok
        return _median(getattr(request_times(table), name)[counted])

    return _each(stretches, median)


def _at_rest(stretches: Sequence[_Stretch], series: Series | None) -> Floats:
    """Median of a gauge in the pause behind each stretch; NaN without a sample, shape [n]."""
    if series is None:
        return np.full(len(stretches), np.nan)
    return _each(stretches, lambda s: _median(series.window(s.end_s + SETTLE_S, s.rest_end_s).v))


def _left(stretches: Sequence[_Stretch], kv: Series | None) -> float | None:
    """The last sample in the last pause."""
    if kv is None or not stretches:
        return None
    last = stretches[-1]
    return kv.last(last.end_s + SETTLE_S, math.inf)


def _each(stretches: Sequence[_Stretch], get: Callable[[_Stretch], float]) -> Floats:
    return np.array([get(stretch) for stretch in stretches], dtype=np.float64)


def _median(values: Floats) -> float:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if known.size else math.nan
