"""The phases of a level, decided over the users of one process or of many.

    WARMUP   all users send; ends when every user's first request has ended
    MEASURE  requests sent now are counted
    FOLLOW   the window is closed; users go on uncounted until the last counted request
             has ended, so that load stays full to its last token
    DRAIN    nobody sends any more; ends when nothing is in flight
    DONE

One ``LevelPhases`` decides for the whole level. What it knows of the users it is told as a
``CrewState``: their own bookkeeping where they run in this process (``LevelUsers``), the sum
of the workers' tallies where they do not. What it decides leaves as an ``Order``, which in
one process is obeyed at once and elsewhere arrives a little later; so it moves on only when
every process acts on the last order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

import msgspec

from harness.records import CellKey, EventKind, LevelSummary, RunEvent, Scalar

if TYPE_CHECKING:
    from harness.load.clock import Clock


class Phase(Enum):
    """Where a level stands."""

    WAITING = "waiting"
    WARMUP = "warmup"
    MEASURE = "measure"
    FOLLOW = "follow"
    DRAIN = "drain"
    DONE = "done"

    @property
    def may_send(self) -> bool:
        """Whether a free user sends another request."""
        return self in (Phase.WARMUP, Phase.MEASURE, Phase.FOLLOW)


_ORDER = {phase: place for place, phase in enumerate(Phase)}


@dataclass(frozen=True)
class Progress:
    """How far a level has come; ``open_s`` is None before its window opened."""

    start_s: float
    open_s: float | None
    now_s: float
    #: requests sent since the window opened
    sent: int


class Closing(Protocol):
    """Decides when a level's window closes."""

    def reason(self, so_far: Progress) -> str | None:
        """Why it closes now; None while it stays open."""
        ...


@dataclass(frozen=True)
class LevelLimits:
    """A window closes when enough was sent over enough time, or when time is up."""

    min_requests: int
    min_level_s: float
    max_level_s: float

    def reason(self, so_far: Progress) -> str | None:
        """``complete``, ``time_limit`` or None."""
        open_s = so_far.open_s
        if (
            open_s is not None
            and so_far.now_s - open_s >= self.min_level_s
            and so_far.sent >= self.min_requests
        ):
            return "complete"
        overdue = so_far.now_s - so_far.start_s >= self.max_level_s
        return "time_limit" if overdue else None


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A phase has begun; the window's edges as far as they are known."""

    phase: Phase
    open_s: float | None = None
    close_s: float | None = None


class CrewState(Protocol):
    """What the decision needs to know of all users of a level."""

    @property
    def warm_s(self) -> float | None:
        """When the last user's first request ended; None while one has not."""
        ...

    @property
    def counted_sent(self) -> int:
        """Requests sent since the window opened."""
        ...

    @property
    def counted_in_flight(self) -> int:
        """Of the requests sent inside the window, those that have not ended."""
        ...

    @property
    def in_flight(self) -> int:
        """All requests that have not ended."""
        ...

    def acts_on(self, phase: Phase) -> bool:
        """Whether every process has heard that this phase has begun."""
        ...


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """What one process tells of its users at one level; times are the deciding process's."""

    phase: Phase
    users: int
    warm_s: float | None
    counted_sent: int
    counted_in_flight: int
    in_flight: int
    #: users whose last request got no answer
    unanswered: int
    n_ok: int
    n_failed: int


class Totals:
    """The tallies of all processes, added up; None stands for one not heard of yet."""

    def __init__(self, tallies: Iterable[Tally | None]) -> None:
        heard = list(tallies)
        self._tallies = [tally for tally in heard if tally is not None]
        self._complete = len(self._tallies) == len(heard)

    @property
    def warm_s(self) -> float | None:
        """The latest of all; a process without users has nobody to wait for."""
        times = [tally.warm_s for tally in self._tallies if tally.users]
        known = [time_s for time_s in times if time_s is not None]
        whole = self._complete and len(known) == len(times)
        return max(known) if known and whole else None

    @property
    def counted_sent(self) -> int:
        """Over all processes."""
        return sum(tally.counted_sent for tally in self._tallies)

    @property
    def counted_in_flight(self) -> int:
        """Over all processes."""
        return sum(tally.counted_in_flight for tally in self._tallies)

    @property
    def in_flight(self) -> int:
        """Over all processes."""
        return sum(tally.in_flight for tally in self._tallies)

    @property
    def unanswered(self) -> int:
        """Over all processes."""
        return sum(tally.unanswered for tally in self._tallies)

    @property
    def n_ok(self) -> int:
        """Over all processes."""
        return sum(tally.n_ok for tally in self._tallies)

    @property
    def n_failed(self) -> int:
        """Over all processes."""
        return sum(tally.n_failed for tally in self._tallies)

    def acts_on(self, phase: Phase) -> bool:
        """Whether each of them has told of this phase, or of a later one."""
        return self._complete and all(
            _ORDER[tally.phase] >= _ORDER[phase] for tally in self._tallies
        )


class LevelPhases:
    """Decides when a level's window opens and closes, and when the level is over."""

    def __init__(
        self,
        cell: CellKey,
        users: int,
        limits: Closing,
        clock: Clock,
        emit: Callable[[RunEvent], None],
        order: Callable[[Order], None],
    ) -> None:
        """``order`` is called with each phase as it begins, but not for an abort."""
        self.cell = cell
        self.users = users
        self.phase = Phase.WAITING
        self._limits = limits
        self._clock = clock
        self._emit = emit
        self._order = order
        self._start_s = 0.0
        self._open_s: float | None = None
        self._close_s: float | None = None
        self._end_s: float | None = None
        self._reason = "complete"

    def start(self) -> None:
        """All users are ready: load begins."""
        self._start_s = self._clock.monotonic()
        self._enter(Phase.WARMUP)
        self._note("level_start", self._start_s, {"users": self.users})

    def heard(self, crews: CrewState, now_s: float) -> None:
        """Something changed, or time passed: move on as far as it goes."""
        if self.phase is Phase.WARMUP and crews.warm_s is not None:
            self._open_s = crews.warm_s
            self._enter(Phase.MEASURE)
        self._close_when_due(crews, now_s)
        self._move_on(crews, now_s)

    def abort(self, reason: str) -> None:
        """End at once; requests in flight are somebody else's to cancel."""
        if self.phase is Phase.DONE:
            return
        now = self._clock.monotonic()
        started = self.phase is not Phase.WAITING
        self.phase = Phase.DONE
        self._reason = reason
        if started:
            self._end_s = now
            self._note("level_end", now, {"reason": reason})

    def summary(self, n_ok: int, n_failed: int) -> LevelSummary:
        """What the level policy learns."""
        window_s = None
        if self._open_s is not None and self._close_s is not None:
            window_s = self._close_s - self._open_s
        return LevelSummary(
            cell=self.cell,
            n_ok=n_ok,
            n_failed=n_failed,
            window_s=window_s,
            reason=self._reason,
            took_s=None if self._end_s is None else self._end_s - self._start_s,
        )

    @property
    def open_s(self) -> float | None:
        """When the window opened; None before."""
        return self._open_s

    def _close_when_due(self, crews: CrewState, now_s: float) -> None:
        """Close the window where its limits say so."""
        if self.phase not in (Phase.WARMUP, Phase.MEASURE):
            return
        so_far = Progress(self._start_s, self._open_s, now_s, crews.counted_sent)
        reason = self._limits.reason(so_far)
        if reason is None:
            return
        self._reason = reason
        self._close_s = now_s
        self._enter(Phase.FOLLOW)
        self._note("window_close", now_s, {"reason": self._reason})

    def _move_on(self, crews: CrewState, now_s: float) -> None:
        if self.phase is Phase.FOLLOW and _ended(crews, Phase.FOLLOW, crews.counted_in_flight):
            self._enter(Phase.DRAIN)
        if self.phase is Phase.DRAIN and _ended(crews, Phase.DRAIN, crews.in_flight):
            self._end_s = now_s
            self._enter(Phase.DONE)
            self._note("level_end", now_s, {"reason": self._reason})

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self._order(Order(phase=phase, open_s=self._open_s, close_s=self._close_s))

    def _note(self, kind: EventKind, t_s: float, detail: dict[str, Scalar]) -> None:
        self._emit(RunEvent(t_s=t_s, kind=kind, cell=self.cell, detail=detail))


def _ended(crews: CrewState, phase: Phase, open_requests: int) -> bool:
    """Whether a phase that waits for requests is over: nobody may start one unheard of."""
    return not open_requests and crews.acts_on(phase)
