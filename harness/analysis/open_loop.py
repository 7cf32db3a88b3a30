"""The window of an open loop's level, the rates it reached, how late requests left. Pure.

The window lies in the schedule: it opens after the warm-up and closes when the schedule
says so. Counted are the requests *due* in it, whenever they left and however long they
took, so that a stall cannot hide the requests that it held up (coordinated omission).
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np

from harness.analysis.open_types import OpenFigures
from harness.analysis.percentiles import distribution
from harness.analysis.summary_types import Window
from harness.analysis.table import Bools, CellTable, Floats
from harness.analysis.windows import (
    LevelMarks,
    between_s,
    closing,
    counted_mask,
    in_flight_steps,
    last_counted_s,
    mean_level,
)
from harness.workload import OpenLoop

#: A level is over-saturated when what is due and not ended grows by more than this share of
#: all that came due, quarter by quarter, and by more than chance does: so many times the
#: standard deviation of as many Poisson arrivals.
GROWTH_SHARE = 0.10
GROWTH_SIGMAS = 3.0
_QUARTERS = 4


def open_window(table: CellTable, marks: LevelMarks) -> Window:
    """The window of one cell; a torn run gives what can be said."""
    start, schedule = marks.start_s, marks.schedule_s
    opened = None if start is None or schedule is None else start + schedule[0]
    close, closed_by = closing(table, marks)
    if opened is None or close is None or close <= opened:
        opened = close = None
    draft = Window(
        users=0,
        start_s=start,
        open_s=opened,
        close_s=close,
        last_counted_s=None,
        end_s=marks.end_s,
        closed_by=closed_by if opened is not None else "never",
        reason=marks.reason,
        full_share=None,
        ramp_s=None,
        warmup_s=between_s(start, opened),
        follow_s=None,
        drain_s=None,
        by_schedule=True,
    )
    last = last_counted_s(table, counted_mask(table, draft))
    return replace(
        draft,
        last_counted_s=last,
        follow_s=between_s(close, last),
        drain_s=between_s(last, marks.end_s),
    )


def measure_open(
    table: CellTable, window: Window, counted: Bools, asked: OpenLoop, unsent: int
) -> OpenFigures:
    """What the schedule asked for in the window, and what became of it."""
    sent_s = table.sent_s[counted]
    late = sent_s - table.intended_s[counted]
    due = int(counted.sum()) + unsent
    waited = slot_free_s(table, asked.max_concurrency)[counted] > table.intended_s[counted]
    outstanding, growth = _outstanding(table, window)
    return OpenFigures(
        due=due,
        unsent=unsent,
        rate_due_rps=due / window.length_s if window.length_s else None,
        rate_sent_rps=_rate_sent(sent_s, window),
        lateness_s=distribution(late[~np.isnan(late)]),
        max_concurrency=asked.max_concurrency,
        kept_back=int(waited.sum()),
        ramp=asked.ramp is not None,
        replayed=asked.trace is not None,
        outstanding=outstanding,
        growth=growth,
        over_saturated=asked.ramp is None and over_saturated(outstanding, growth, due),
    )


def slot_free_s(table: CellTable, most: int | None) -> Floats:
    """Before when each request had to wait for others, shape [n]; -inf where it had not.

    With at most C in flight and in order of their times, request k (from 0) can go when
    k - C + 1 requests have ended: at the end number k - C in order of time. Requests sent
    after it end after it was sent, so they do not disturb that order.
    """
    free = np.full(table.n, -np.inf)
    if most is None or table.n <= most:
        return free
    order = np.argsort(table.intended_s, kind="stable")
    free[order[most:]] = np.sort(table.end_s)[: table.n - most]
    return free


def over_saturated(outstanding: tuple[float, ...], growth: int, due: int) -> bool:
    """Whether the backlog grew all through the window, beyond chance."""
    rising = bool(outstanding) and bool(np.all(np.diff(outstanding) > 0))
    return rising and growth > max(GROWTH_SHARE * due, GROWTH_SIGMAS * math.sqrt(due))


def _rate_sent(sent_s: Floats, window: Window) -> float | None:
    """Over the window, or until the last of its requests had left where that was later."""
    known = sent_s[~np.isnan(sent_s)]
    if window.span is None or not known.size:
        return None
    start, close = window.span
    return float(known.size / (max(close, float(known.max())) - start))


def _outstanding(table: CellTable, window: Window) -> tuple[tuple[float, ...], int]:
    """Mean per quarter of the requests due and not ended, and the growth over the window."""
    if window.span is None:
        return (), 0
    start, close = window.span
    times, levels = in_flight_steps(table.intended_s, table.end_s)
    edges = [float(edge) for edge in np.linspace(start, close, _QUARTERS + 1)]
    means = [mean_level(times, levels, a, b) for a, b in pairwise(edges)]
    at = np.concatenate([[0.0], levels])[np.searchsorted(times, [start, close], side="right")]
    return tuple(mean or 0.0 for mean in means), int(at[1] - at[0])
