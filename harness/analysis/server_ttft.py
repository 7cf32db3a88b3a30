"""Holds the client's TTFT against the server's own histogram."""

from __future__ import annotations

import numpy as np

from harness.analysis.server_ttft_types import ServerTtft
from harness.analysis.summary_types import Window
from harness.analysis.table import CellTable, Floats
from harness.observe import names
from harness.observe.series import BackendSeries, Series


def measure_server_ttft(
    table: CellTable, window: Window, series: BackendSeries | None
) -> ServerTtft | None:
    """Both sides' mean TTFT of one cell; None where the server states none or none ended.

    The scrapes are the last one before the window opens and the first one after its last
    counted token, inside the level, or else the outermost ones inside the window.
    """
    sums = _series(series, names.TTFT_SECONDS_SUM)
    counts = _series(series, names.TTFT_SECONDS_COUNT)
    if series is None or sums is None or counts is None:
        return None
    span = _scrapes_around(counts.t_s, window)
    if span is None or counts.resets(*span):
        return None
    mean, n = _mean(sums, counts, *span)
    arrived = (table.sent_s + table.first_s)[table.events > 0]
    first = table.first_s[table.events > 0]
    own = first[(arrived > span[0]) & (arrived <= span[1])]
    if mean is None or not own.size:
        return None
    client = float(own.mean())
    return ServerTtft(
        start_s=span[0],
        end_s=span[1],
        server_mean_s=mean,
        server_n=n,
        client_mean_s=client,
        client_n=int(own.size),
        difference_s=client - mean,
        queue_mean_s=_queue(series, span),
    )


def _series(series: BackendSeries | None, name: str) -> Series | None:
    return None if series is None else series.get(name)


def _scrapes_around(at_s: Floats, window: Window) -> tuple[float, float] | None:
    """The two scrapes between which the counters are read; None without two."""
    if window.span is None:
        return None
    opened, closed = window.span
    ended = max(closed, window.last_counted_s or closed)
    # beyond the level's own time another level's requests would be counted
    low = window.start_s if window.start_s is not None else opened
    high = window.end_s if window.end_s is not None else ended
    own = at_s[(at_s >= low) & (at_s <= high)]
    if own.size < 2:
        return None
    before, after = own[own <= opened], own[own >= ended]
    start = float(before[-1]) if before.size else float(own[0])
    end = float(after[0]) if after.size else float(own[-1])
    return (start, end) if end > start else None


def _mean(sums: Series, counts: Series, start_s: float, end_s: float) -> tuple[float | None, int]:
    """Mean of what a histogram took in between two scrapes, and how many that were."""
    total, n = sums.increase(start_s, end_s), counts.increase(start_s, end_s)
    if total is None or not n or not np.isfinite(total):
        return None, 0
    return total / n, round(n)


def _queue(series: BackendSeries, span: tuple[float, float]) -> float | None:
    sums = series.get(names.QUEUE_SECONDS_SUM)
    counts = series.get(names.QUEUE_SECONDS_COUNT)
    return None if sums is None or counts is None else _mean(sums, counts, *span)[0]
