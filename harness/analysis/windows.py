"""The measured window of a level, derived again from records and events.

It opens when every user has completed a request, and closes at the ``window_close``
event. Counted are the requests sent inside; they are followed to their end. Ramp, warm-up
and drain are left out and shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeGuard

import numpy as np

from harness.analysis.summary_types import ClosedBy, Window
from harness.analysis.table import CANCELLED, Bools, CellTable, Floats
from harness.records import CellKey, RunEvent, Scalar

#: A user's pause up to this long between two requests is no gap in the load.
RESPAWN_GAP_S = 0.005
#: The load is full when all users are in flight for this share of the time.
FULL_SHARE = 0.99
#: More users than any level has: a damaged event can state more.
_MOST_USERS = 10**6
#: Below this share of the users in flight on average a level is not the one asked for. A
#: pause of a twentieth of a request's time at every turn still passes: on a busy machine
#: pauses add up over many users to a window that is rarely full, yet carry little load away.
LOAD_SHARE = 0.95


@dataclass(frozen=True)
class LevelMarks:
    """What the events say about one cell; None where the run did not get that far."""

    users: int
    start_s: float | None = None
    close_s: float | None = None
    end_s: float | None = None
    reason: str | None = None
    lost_s: float | None = None
    skipped: str | None = None
    #: left out on purpose, before the run or as it went
    planned: bool = False
    #: it began anew then: what was recorded before does not count
    redone_s: float | None = None
    #: of an open loop: (open, close) of the window, from ``start_s``
    schedule_s: tuple[float, float] | None = None
    #: of an open loop: requests of the window that were never sent
    unsent: int = 0


def level_marks(events: Iterable[RunEvent]) -> dict[CellKey, LevelMarks]:
    """The marks of every cell that an event names, in order of appearance."""
    marks: dict[CellKey, LevelMarks] = {}
    for event in events:
        if event.cell is None:
            continue
        known = marks.get(event.cell) or LevelMarks(users=users_of(event.cell))
        marks[event.cell] = _marked(known, event)
    return marks


def users_of(cell: CellKey) -> int:
    """The users of a level that no event speaks of; a damaged one has what users can be."""
    return round(min(max(cell.level, 1), _MOST_USERS))


def _is_users(value: object) -> TypeGuard[float]:
    """Whether an event's number of users can be one."""
    return isinstance(value, int | float) and 1 <= value <= _MOST_USERS


def _marked(marks: LevelMarks, event: RunEvent) -> LevelMarks:
    detail = event.detail
    if event.kind == "level_redone":
        return LevelMarks(users=marks.users, redone_s=event.t_s)
    if event.kind == "level_start":
        users = detail.get("users")
        return replace(
            marks,
            start_s=event.t_s,
            # a resumed run measures what was skipped when it was interrupted
            skipped=None,
            users=int(users) if _is_users(users) else marks.users,
            schedule_s=_schedule_s(detail),
        )
    if event.kind == "window_close":
        if marks.close_s is not None:
            return marks
        return replace(marks, close_s=event.t_s, reason=_text(detail.get("reason")))
    if event.kind == "level_end":
        unsent = detail.get("unsent")
        return replace(
            marks,
            end_s=event.t_s,
            reason=_text(detail.get("reason")) or marks.reason,
            unsent=unsent if isinstance(unsent, int) else 0,
        )
    if event.kind == "backend_lost":
        return replace(marks, lost_s=event.t_s)
    if event.kind == "level_skipped":
        reason = _text(detail.get("reason")) or "no reason given"
        return replace(marks, skipped=reason, planned=detail.get("planned") is True)
    return marks


def redone(marks: Mapping[CellKey, LevelMarks]) -> dict[CellKey, float]:
    """The cells that were begun anew, and when."""
    return {cell: m.redone_s for cell, m in marks.items() if m.redone_s is not None}


def _schedule_s(detail: Mapping[str, Scalar]) -> tuple[float, float] | None:
    opened, closed = detail.get("open_s"), detail.get("close_s")
    if isinstance(opened, int | float) and isinstance(closed, int | float):
        return float(opened), float(closed)
    return None


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def measure_window(table: CellTable, marks: LevelMarks) -> Window:
    """The window of one cell; a torn run gives what can be said."""
    opened = _open_s(table, marks.users)
    close, closed_by = closing(table, marks)
    if opened is None or close is None or close < opened:
        opened = None
    draft = Window(
        users=marks.users,
        start_s=marks.start_s,
        open_s=opened,
        close_s=close if opened is not None else None,
        last_counted_s=None,
        end_s=marks.end_s,
        closed_by=closed_by if opened is not None else "never",
        reason=marks.reason,
        full_share=None,
        ramp_s=None,
        warmup_s=None,
        follow_s=None,
        drain_s=None,
    )
    return _with_durations(table, draft)


def counted_mask(table: CellTable, window: Window) -> Bools:
    """Which requests are counted: those sent in [open, close], shape [n].

    In an open loop those *due* in it: one that left late is not the next window's.
    """
    if window.open_s is None or window.close_s is None:
        return np.zeros(table.n, dtype=np.bool_)
    sent = table.intended_s if window.by_schedule else table.reference_s
    return np.asarray((sent >= window.open_s) & (sent <= window.close_s), dtype=np.bool_)


def in_flight_steps(start_s: Floats, end_s: Floats) -> tuple[Floats, Floats]:
    """Requests in flight as a step function: at ``times[i]`` it becomes ``level[i]``."""
    times = np.concatenate([start_s, end_s])
    steps = np.concatenate([np.ones(start_s.size), -np.ones(end_s.size)])
    order = np.lexsort((-steps, times))
    return times[order], np.cumsum(steps[order])


def share_at_least(
    times: Floats, levels: Floats, wanted: float, start_s: float, end_s: float
) -> float | None:
    """Share of [start, end] during which a step function is at least ``wanted``."""
    if end_s <= start_s:
        return None
    clipped, values = clip_steps(times, levels, start_s, end_s)
    held = np.diff(np.append(clipped, end_s))
    return float(held[values >= wanted].sum() / (end_s - start_s))


def mean_level(times: Floats, levels: Floats, start_s: float, end_s: float) -> float | None:
    """Mean of a step function over [start, end]; None when that has no length."""
    if end_s <= start_s:
        return None
    clipped, values = clip_steps(times, levels, start_s, end_s)
    held = np.diff(np.append(clipped, end_s))
    return float((held * values).sum() / (end_s - start_s))


def clip_steps(
    times: Floats, levels: Floats, start_s: float, end_s: float
) -> tuple[Floats, Floats]:
    """A step function on [start, end]: its first time is ``start_s``."""
    before = int(np.searchsorted(times, start_s, side="right"))
    after = int(np.searchsorted(times, end_s, side="left"))
    first = levels[before - 1] if before else 0.0
    return (
        np.concatenate([[start_s], times[before:after]]),
        np.concatenate([[first], levels[before:after]]),
    )


def busy_intervals(table: CellTable, after_failures: bool = False) -> tuple[Floats, Floats]:
    """(start, end) of the requests in flight, a user's short pauses closed.

    With ``after_failures`` its pauses after failed requests are closed too, of any length.
    """
    sent = table.reference_s if after_failures else table.sent_s
    rows = ~np.isnan(sent)
    user, start, end = table.user[rows], sent[rows], table.end_s[rows].copy()
    order = np.lexsort((start, user))
    user, start, end = user[order], start[order], end[order]
    short = start[1:] - end[:-1] <= RESPAWN_GAP_S
    if after_failures:
        short |= ~table.ok[rows][order][:-1]
    follows = (user[1:] == user[:-1]) & short
    end[:-1] = np.where(follows, np.maximum(end[:-1], start[1:]), end[:-1])
    return start, end


def _open_s(table: CellTable, users: int) -> float | None:
    """When the last of ``users`` users ended its first request; a failure ends one too."""
    ended = table.outcome != CANCELLED
    if not ended.any() or users < 1:
        return None
    order = np.argsort(table.end_s[ended], kind="stable")
    first_of_user = np.unique(table.user[ended][order], return_index=True)[1]
    firsts = np.sort(table.end_s[ended][order][first_of_user])
    return float(firsts[users - 1]) if firsts.size >= users else None


def closing(table: CellTable, marks: LevelMarks) -> tuple[float | None, ClosedBy]:
    """When a window closed, and by what; a torn run gives what can be said."""
    if marks.close_s is not None:
        return marks.close_s, "event"
    if marks.lost_s is not None:
        return marks.lost_s, "lost"
    if marks.end_s is not None:
        return marks.end_s, "level_end"
    return (float(table.end_s.max()), "lost") if table.n else (None, "never")


def _with_durations(table: CellTable, window: Window) -> Window:
    counted = counted_mask(table, window)
    last = last_counted_s(table, counted)
    start, end = busy_intervals(table)
    times, levels = in_flight_steps(start, end)
    full_from = times[levels >= window.users][:1]
    full_s = float(full_from[0]) if full_from.size else None
    full_share = load_share = None
    if window.open_s is not None and last is not None:
        full_share = share_at_least(times, levels, window.users, window.open_s, last)
        offered = in_flight_steps(*busy_intervals(table, after_failures=True))
        mean = mean_level(*offered, window.open_s, last)
        load_share = None if mean is None or not window.users else mean / window.users
    return replace(
        window,
        last_counted_s=last,
        full_share=full_share,
        load_share=load_share,
        ramp_s=between_s(window.start_s, full_s),
        warmup_s=between_s(full_s, window.open_s),
        follow_s=between_s(window.close_s, last),
        drain_s=between_s(last, window.end_s),
    )


def last_counted_s(table: CellTable, counted: Bools) -> float | None:
    """When the last token of the counted requests came; None when there are none."""
    if not counted.any():
        return None
    token = table.sent_s[counted] + table.last_s[counted]
    return float(np.where(np.isnan(token), table.end_s[counted], token).max())


def between_s(start_s: float | None, end_s: float | None) -> float | None:
    """Seconds from start to end, 0 when end lies before; None when either is unknown."""
    if start_s is None or end_s is None:
        return None
    return max(0.0, end_s - start_s)
