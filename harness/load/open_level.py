"""One level of an open loop as a state machine: send what is due, count what the window holds.

It decides what counts and when the level is over, and knows nothing of sockets, greenlets
or Locust. Every method is told the time.

    RUNNING  requests go out as they are due; those due in the window count
    FOLLOW   the window is closed; uncounted requests go on until the last counted one has
             ended, so that load stays as it is to its last token
    DONE     nothing is in flight
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum

from harness.load.no_answer import NO_ANSWER
from harness.plan.arrivals import Arrival, Schedule
from harness.records import CellKey, EventKind, LevelSummary, Outcome, RunEvent, Scalar

#: So many requests in a row without an answer make one look at the server's health.
_LAST_OUTCOMES = 5


class OpenPhase(Enum):
    """Where a level stands."""

    RUNNING = "running"
    FOLLOW = "follow"
    DONE = "done"


class OpenLevel:
    """One cell being measured by a schedule."""

    def __init__(self, cell: CellKey, schedule: Schedule, emit: Callable[[RunEvent], None]) -> None:
        self.cell = cell
        self.schedule = schedule
        self.phase = OpenPhase.RUNNING
        self.started = False
        self.start_s = 0.0
        self._end_s: float | None = None
        self._emit = emit
        self._reason = schedule.reason
        #: number of the request -> whether it counts
        self._in_flight: dict[int, bool] = {}
        self._n_ok = 0
        self._n_failed = 0
        self._outcomes: deque[Outcome] = deque(maxlen=_LAST_OUTCOMES)

    def start(self, now_s: float) -> None:
        """Load begins: the schedule's zero is now."""
        self.started, self.start_s = True, now_s
        detail: dict[str, Scalar] = {
            "rate_rps": self.cell.level,
            "open_s": self.schedule.open_s,
            "close_s": self.schedule.close_s,
        }
        self._note("level_start", now_s, detail)

    @property
    def in_flight(self) -> int:
        """Requests between ``begun`` and ``ended``."""
        return len(self._in_flight)

    @property
    def unanswered(self) -> bool | None:
        """Whether the last requests got no answer; None before one has ended."""
        if not self._outcomes:
            return None
        return all(outcome in NO_ANSWER for outcome in self._outcomes)

    def wants(self, arrival: Arrival) -> bool:
        """Whether this arrival, the next one, is still to be made."""
        if arrival.at_s <= self.schedule.close_s:
            return True
        return any(self._in_flight.values()) and not self._too_late(arrival)

    def begun(self, number: int, arrival: Arrival) -> None:
        """A request is taken up: it connects, then sends."""
        self._in_flight[number] = self.schedule.counts(arrival)

    def ended(self, number: int) -> None:
        """A request is over, whatever its outcome."""
        self._in_flight.pop(number, None)

    def judged(self, outcome: Outcome) -> None:
        """A request was read."""
        if outcome == "ok":
            self._n_ok += 1
        elif outcome != "cancelled":
            self._n_failed += 1
        self._outcomes.append(outcome)

    def tick(self, now_s: float) -> None:
        """Time passed: close the window when it is over."""
        close_s = self.start_s + self.schedule.close_s
        if self.started and self.phase is OpenPhase.RUNNING and now_s >= close_s:
            self.phase = OpenPhase.FOLLOW
            # the schedule's time, not the moment in which it was noticed
            self._note("window_close", close_s, {"reason": self._reason})

    @property
    def open_s(self) -> float | None:
        """When its window opens or has opened; None before the level has begun."""
        return self.start_s + self.schedule.open_s if self.started else None

    def close(self, now_s: float, reason: str) -> None:
        """Close the window now, and say why: it has shown enough."""
        if self.started and self.phase is OpenPhase.RUNNING:
            self.schedule = self.schedule.until(now_s - self.start_s, reason)
            self._reason = reason
            self.tick(self.start_s + self.schedule.close_s)

    def finish(self, now_s: float) -> None:
        """Everything was sent and has ended."""
        self.tick(now_s)
        self._end(now_s)

    def abort(self, reason: str, now_s: float, unsent: int) -> None:
        """End at once; requests in flight are somebody else's to cancel.

        ``unsent``: requests of the window that were due and had to wait until now.
        """
        self._reason = reason
        self._end(now_s, {"unsent": unsent} if unsent else {})

    def summary(self) -> LevelSummary:
        """What the level policy learns."""
        closed = self.started and self._reason == self.schedule.reason
        window_s = self.schedule.close_s - self.schedule.open_s
        return LevelSummary(
            cell=self.cell,
            n_ok=self._n_ok,
            n_failed=self._n_failed,
            window_s=window_s if closed else None,
            reason=self._reason,
            took_s=None if self._end_s is None else self._end_s - self.start_s,
        )

    def _too_late(self, arrival: Arrival) -> bool:
        """An overloaded server would be followed for ever: as long as the level, no longer."""
        return arrival.at_s > 2 * self.schedule.close_s

    def _end(self, now_s: float, more: dict[str, Scalar] | None = None) -> None:
        if self.phase is OpenPhase.DONE:
            return
        self.phase = OpenPhase.DONE
        if self.started:
            self._end_s = now_s
            self._note("level_end", now_s, {"reason": self._reason, **(more or {})})

    def _note(self, kind: EventKind, t_s: float, detail: dict[str, Scalar]) -> None:
        self._emit(RunEvent(t_s=t_s, kind=kind, cell=self.cell, detail=detail))
