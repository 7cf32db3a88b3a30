"""Which part of a level's window is steady: detected, not assumed. Pure.

The window is cut into 12 to 40 bins, each about as long as a request where that leaves enough
of them, so that users who started together do not look like a rise and fall. A stretch of bins
is steady when the load is full (``LOAD_SHARE`` of the users have a request in flight on average
over the stretch, and ``BIN_LOAD_SHARE`` in each bin) and none of three figures trends in it:
output tokens per second, TTFT (medians of requests that follow each other), and KV usage
(samples of the server). A figure trends when a line through it, or a step, leaves 0 out of its
interval (``harness.analysis.slopes``) *and* its change is more than 5 % of the median: less does
not shape a level.

**False alarms.** On a level that is steady the whole window is said to trend in at most 5 of
100 cases, neighbouring points correlated by up to 0.5: in 1 without correlation, in 2 to 5 at
0.5, in up to 11 at 0.7, by simulation of all three figures with 12, 20 and 40 points, normal and
skewed. That is why the intervals are so wide: 99.9 % for a line, and more for a step, whose place
is chosen to be the best one.

**What is missed.** A stretch half as long shows the same trend with a third of the certainty,
and the longest of many stretches is the one that looks steadiest. So once the window trends, a
stretch of it must pass intervals of 95 % and 99.8 %. A slow trend may still leave a steady
stretch that is none; it is then shorter than the window, which the report shows.

**What follows.** The figures of a level stay those of its whole window: they are the same for
every reader of the records, and a stretch chosen by looking at the data would bias them. A
window without a steady stretch of at least half of it is flagged, beside the level and in what
the knees say of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from harness.analysis.latency import RequestTimes
from harness.analysis.slopes import LEAST_POINTS, Slope, slope, step
from harness.analysis.steady_types import Move, Steady, SteadyState
from harness.analysis.summary_types import Window
from harness.analysis.table import Bools, CellTable, Floats
from harness.analysis.windows import LOAD_SHARE, busy_intervals, in_flight_steps, mean_level
from harness.observe import names
from harness.observe.series import BackendSeries

#: A change of less than this share of the median over a stretch is no trend.
LEAST_CHANGE = 0.05
#: Share of the users in flight on average below which a bin is in no steady stretch.
BIN_LOAD_SHARE = 0.9
#: Share of the window that must be steady.
LEAST_SHARE = 0.5
#: Normal quantiles of the intervals of a line and of a step: over the window, and in a stretch
#: of a window that trends.
Z_WINDOW, Z_STRETCH = (3.29, 4.5), (1.96, 3.09)
LEAST_BINS, MOST_BINS = 12, 40


@dataclass(frozen=True)
class Figures:
    """What must not trend: per name the points (time, value); and the load of each bin."""

    #: of the bins, shape [bins + 1]
    edges_s: Floats
    #: requests in flight on average over the users, shape [bins]
    load: Floats
    points: Mapping[str, tuple[Floats, Floats]]


def find_steady(
    table: CellTable,
    window: Window,
    counted: Bools,
    times: RequestTimes,
    series: BackendSeries | None,
) -> Steady | None:
    """The steady stretch of one cell; None when its window never opened.

    Where the load need not be full (an open loop, users who think) only the trends are judged.
    """
    if window.span is None or not counted.any():
        return None
    edges = _edges(window.span, times.e2e_s[counted])
    needs_full = not window.by_schedule and window.full_share is not None
    found = Figures(
        edges_s=edges,
        load=_load(table, edges, window.users) if needs_full else np.ones(edges.size - 1),
        points={
            "throughput": (_middles(edges), _token_rates(table, edges)),
            "TTFT": _grouped(table.reference_s[counted], times.ttft_s[counted]),
            "KV usage": _usage(series, window.span),
        },
    )
    return longest(found, needs_full=needs_full)


def longest(found: Figures, *, needs_full: bool = True) -> Steady:
    """The longest steady stretch; of several of one length the last one."""
    edges, bins = found.edges_s, found.load.size
    full_bins = float((found.load >= LOAD_SHARE).mean()) if needs_full else None
    moves, told = _moves(found)
    if not told:
        return Steady("too_short", full_bins=full_bins)
    # the likeliest to trend first
    order = sorted(found.points, key=lambda name: name not in {move.name for move in moves})
    for first, last in _stretches(found.load):
        start, end = float(edges[first]), float(edges[last])
        if last - first == bins:
            calm = not moves
        else:
            calm = all(_calm(found.points[name], start, end, moves, name) for name in order)
        if calm:
            share = (last - first) / bins
            state: SteadyState = "part" if share >= LEAST_SHARE else "none"
            state = "whole" if last - first == bins else state
            return Steady(state, start, end - start, share, full_bins, moves)
    return Steady("none", full_bins=full_bins, moves=moves)


def _moves(found: Figures) -> tuple[tuple[Move, ...], bool]:
    """What trends over the whole window, and whether any figure has enough points to tell."""
    moves, told = [], False
    for name, (t, values) in found.points.items():
        lines = [
            (line, _trends(line))
            for fit, z in zip((slope, step), Z_WINDOW, strict=True)
            if (line := fit(t, values, z)) is not None
        ]
        told |= bool(lines)
        changes = [line.change for line, trends in lines if trends]
        if changes:
            moves.append(Move(name, max(changes, key=abs)))
    return tuple(moves), told


def _calm(
    points: tuple[Floats, Floats],
    start_s: float,
    end_s: float,
    moves: tuple[Move, ...],
    name: str,
) -> bool:
    """Whether a figure does not trend in a stretch; one too short to tell is as in the window."""
    t, values = points
    inside = (t >= start_s) & (t <= end_s)
    line = slope(t[inside], values[inside], Z_STRETCH[0])
    if line is None:
        return name not in {move.name for move in moves}
    if _trends(line):
        return False
    jump = step(t[inside], values[inside], Z_STRETCH[1])
    return jump is None or not _trends(jump)


def _stretches(load: Floats) -> Iterator[tuple[int, int]]:
    """(first, past the last) of the runs of bins with full load, the longest and last first."""
    enough = np.concatenate([[0], np.cumsum(load >= BIN_LOAD_SHARE)])
    sums = np.concatenate([[0.0], np.cumsum(load)])
    for length in range(load.size, LEAST_POINTS - 1, -1):
        for first in range(load.size - length, -1, -1):
            full = sums[first + length] - sums[first] >= LOAD_SHARE * length
            if full and enough[first + length] - enough[first] == length:
                yield first, first + length


def _trends(line: Slope) -> bool:
    return line.significant and abs(line.change) > LEAST_CHANGE


def _edges(span: tuple[float, float], e2e_s: Floats) -> Floats:
    known = e2e_s[~np.isnan(e2e_s)]
    length = span[1] - span[0]
    turn = float(np.median(known)) if known.size else length
    bins = int(np.clip(length / max(turn, length / MOST_BINS), LEAST_BINS, MOST_BINS))
    return np.linspace(*span, bins + 1)


def _middles(edges_s: Floats) -> Floats:
    return np.asarray((edges_s[:-1] + edges_s[1:]) / 2, dtype=np.float64)


def _load(table: CellTable, edges_s: Floats, users: int) -> Floats:
    """Share of the users with a request in flight in each bin, pauses after failures apart."""
    times, levels = in_flight_steps(*busy_intervals(table, after_failures=True))
    means = [mean_level(times, levels, start, end) or 0.0 for start, end in pairwise(edges_s)]
    return np.asarray(means, dtype=np.float64) / max(1, users)


def _token_rates(table: CellTable, edges_s: Floats) -> Floats:
    """Output tokens per second of each bin, shape [bins]."""
    bins = edges_s.size - 1
    width = float(edges_s[1] - edges_s[0])
    place = np.floor((table.token_times_s() - edges_s[0]) / width)
    inside = (place >= 0) & (place < bins) & np.repeat(table.ok, table.events)
    weights = table.token_weights()[inside]
    sums = np.bincount(place[inside].astype(np.int64), weights=weights, minlength=bins)
    return np.asarray(sums / width, dtype=np.float64)


def _grouped(t_s: Floats, values: Floats) -> tuple[Floats, Floats]:
    """Mean times and medians of up to ``MOST_BINS`` groups of values that follow each other."""
    known = ~np.isnan(values)
    t, v = t_s[known], values[known]
    order = np.argsort(t, kind="stable")
    # a median of three shows no single wild request
    groups = int(np.clip(t.size // 3, min(t.size, LEAST_POINTS), MOST_BINS))
    if not groups:
        return np.empty(0), np.empty(0)
    parts = np.array_split(order, groups)
    return (
        np.array([t[part].mean() for part in parts]),
        np.array([np.median(v[part]) for part in parts]),
    )


def _usage(series: BackendSeries | None, span: tuple[float, float]) -> tuple[Floats, Floats]:
    gauge = None
    if series is not None:
        gauge = series.get(names.KV_USAGE_RATIO) or series.get(names.KV_USED_BYTES)
    if gauge is None:
        return np.empty(0), np.empty(0)
    inside = gauge.window(*span)
    return _grouped(inside.t_s, inside.v) if len(inside) > MOST_BINS else (inside.t_s, inside.v)
