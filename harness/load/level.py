"""One level of a closed loop as a state machine: warm up, measure, follow, drain.

It decides who may send and what counts, and knows nothing of sockets, greenlets or
Locust. Every method is told the time or reads the injected clock.

    WARMUP   all users send; ends when every user's first request has ended
    MEASURE  requests sent now are counted
    FOLLOW   the window is closed; users go on uncounted until the last counted request
             has ended, so that load stays full to its last token
    DRAIN    nobody sends any more; ends when nothing is in flight
    DONE
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from harness.records import CellKey, EventKind, LevelSummary, Outcome, RunEvent, Scalar

if TYPE_CHECKING:
    from harness.load.clock import Clock

#: Outcomes after which the server may be gone.
_NO_ANSWER: frozenset[Outcome] = frozenset({"connect", "reset", "truncated", "timeout"})


class Phase(Enum):
    """Where a level stands."""

    WAITING = "waiting"
    WARMUP = "warmup"
    MEASURE = "measure"
    FOLLOW = "follow"
    DRAIN = "drain"
    DONE = "done"


@dataclass(frozen=True)
class LevelLimits:
    """When a level's window closes."""

    min_requests: int
    min_level_s: float
    max_level_s: float


class Level:
    """One cell being measured by ``users`` users numbered from 0."""

    def __init__(
        self,
        cell: CellKey,
        users: int,
        limits: LevelLimits,
        clock: Clock,
        emit: Callable[[RunEvent], None],
    ) -> None:
        self.cell = cell
        self.users = users
        self.phase = Phase.WAITING
        self._limits = limits
        self._clock = clock
        self._emit = emit
        self._start_s = 0.0
        self._open_s: float | None = None
        self._close_s: float | None = None
        self._reason = "complete"
        #: users whose first request has not ended
        self._cold = set(range(users))
        #: user -> whether its request in flight is counted; None until it is sent
        self._in_flight: dict[int, bool | None] = {}
        self._counted_sent = 0
        self._n_ok = 0
        self._n_failed = 0
        #: users whose last request got no answer
        self._unanswered: set[int] = set()

    def start(self) -> None:
        """All users are ready: load begins."""
        self._start_s = self._clock.monotonic()
        self.phase = Phase.WARMUP
        self._note("level_start", self._start_s, {"users": self.users})

    @property
    def may_send(self) -> bool:
        """Whether a free user sends another request."""
        return self.phase in (Phase.WARMUP, Phase.MEASURE, Phase.FOLLOW)

    @property
    def in_flight(self) -> int:
        """Requests between ``begun`` and ``ended``."""
        return len(self._in_flight)

    @property
    def unanswered(self) -> bool:
        """Whether the last request of every user got no answer."""
        return self.may_send and len(self._unanswered) == self.users

    def begun(self, user: int) -> None:
        """A user took up a request: it connects, then sends."""
        self._in_flight[user] = None

    def sent(self, user: int, t_sent_s: float) -> None:
        """Its first byte is about to be written; called again when it is sent anew."""
        if self._in_flight[user] is None:
            counted = self.phase is Phase.MEASURE
            self._in_flight[user] = counted
            self._counted_sent += counted
        # a request sent at the instant of closing is inside the window
        self._close_when_due(t_sent_s)

    def judged(self, user: int, outcome: Outcome) -> None:
        """A user's request was read, perhaps some time after it ended."""
        if outcome == "ok":
            self._n_ok += 1
        elif outcome != "cancelled":
            self._n_failed += 1
        if outcome in _NO_ANSWER:
            self._unanswered.add(user)
        else:
            self._unanswered.discard(user)

    def ended(self, user: int, t_end_s: float) -> None:
        """A user's request is over, whatever its outcome."""
        self._in_flight.pop(user, None)
        self._cold.discard(user)
        if self.phase is Phase.WARMUP and not self._cold:
            self.phase = Phase.MEASURE
            self._open_s = t_end_s
        self._close_when_due(t_end_s)
        self._move_on(t_end_s)

    def tick(self) -> None:
        """Time passed; called now and then so that the time limit holds without traffic."""
        now = self._clock.monotonic()
        self._close_when_due(now)
        self._move_on(now)

    def abort(self, reason: str) -> None:
        """End at once; requests in flight are somebody else's to cancel."""
        if self.phase is Phase.DONE:
            return
        now = self._clock.monotonic()
        started = self.phase is not Phase.WAITING
        self.phase = Phase.DONE
        self._reason = reason
        if started:
            self._note("level_end", now, {"reason": reason})

    def summary(self) -> LevelSummary:
        """What the level policy learns."""
        window_s = None
        if self._open_s is not None and self._close_s is not None:
            window_s = self._close_s - self._open_s
        return LevelSummary(
            cell=self.cell,
            n_ok=self._n_ok,
            n_failed=self._n_failed,
            window_s=window_s,
            reason=self._reason,
        )

    def _close_when_due(self, now_s: float) -> None:
        """Close the window: enough was sent over enough time, or time is up."""
        if self.phase not in (Phase.WARMUP, Phase.MEASURE):
            return
        overdue = now_s - self._start_s >= self._limits.max_level_s
        enough = (
            self._open_s is not None
            and self._counted_sent >= self._limits.min_requests
            and now_s - self._open_s >= self._limits.min_level_s
        )
        if not (enough or overdue):
            return
        if not enough:
            self._reason = "time_limit"
        self._close_s = now_s
        self.phase = Phase.FOLLOW
        self._note("window_close", now_s, {"reason": self._reason})

    def _move_on(self, now_s: float) -> None:
        if self.phase is Phase.FOLLOW and not any(self._in_flight.values()):
            self.phase = Phase.DRAIN
        if self.phase is Phase.DRAIN and not self._in_flight:
            self.phase = Phase.DONE
            self._note("level_end", now_s, {"reason": self._reason})

    def _note(self, kind: EventKind, t_s: float, detail: dict[str, Scalar]) -> None:
        self._emit(RunEvent(t_s=t_s, kind=kind, cell=self.cell, detail=detail))
