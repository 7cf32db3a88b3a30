"""One level of a closed loop whose users all run in this process.

The phases are decided in ``harness.load.phases``, the users counted in
``harness.load.level_users``; here the two meet without anything between them. Every method
is told the time or reads the injected clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from harness.load.level_users import LevelUsers
from harness.load.no_answer import unanswered
from harness.load.phases import Closing, LevelLimits, LevelPhases, Phase
from harness.records import CellKey, LevelSummary, Outcome, RunEvent

if TYPE_CHECKING:
    from harness.load.clock import Clock

__all__ = ["Level", "LevelLimits", "Phase"]


class Level:
    """One cell being measured by ``users`` users numbered from 0."""

    def __init__(
        self,
        cell: CellKey,
        users: int,
        limits: Closing,
        clock: Clock,
        emit: Callable[[RunEvent], None],
    ) -> None:
        self.cell = cell
        self.users = users
        self._clock = clock
        self._users = LevelUsers(users)
        self._phases = LevelPhases(cell, users, limits, clock, emit, self._users.obey)

    @property
    def phase(self) -> Phase:
        """Where it stands."""
        return self._phases.phase

    @property
    def open_s(self) -> float | None:
        """When its window opened; None before."""
        return self._phases.open_s

    def start(self) -> None:
        """All users are ready: load begins."""
        self._phases.start()

    @property
    def may_send(self) -> bool:
        """Whether a free user sends another request."""
        return self.phase.may_send

    @property
    def in_flight(self) -> int:
        """Requests between ``begun`` and ``ended``."""
        return self._users.in_flight

    @property
    def unanswered(self) -> bool | None:
        """Whether the last request of every user got no answer; None: nothing tells yet."""
        return unanswered(self._users.unanswered, self._users.n_ok, self.phase, self.users)

    def begun(self, user: int) -> None:
        """A user took up a request: it connects, then sends."""
        self._users.begun(user)

    def sent(self, user: int, t_sent_s: float) -> None:
        """Its first byte is about to be written; called again when it is sent anew."""
        self._users.sent(user, t_sent_s)
        # a request sent at the instant of closing is inside the window
        self._phases.heard(self._users, t_sent_s)

    def judged(self, user: int, outcome: Outcome) -> None:
        """A user's request was read, perhaps some time after it ended."""
        self._users.judged(user, outcome)

    def ended(self, user: int, t_end_s: float) -> None:
        """A user's request is over, whatever its outcome."""
        self._users.ended(user, t_end_s)
        self._phases.heard(self._users, t_end_s)

    def tick(self) -> None:
        """Time passed; called now and then so that the time limit holds without traffic."""
        self._phases.heard(self._users, self._clock.monotonic())

    def abort(self, reason: str) -> None:
        """End at once; requests in flight are somebody else's to cancel."""
        self._phases.abort(reason)

    def summary(self) -> LevelSummary:
        """What the level policy learns."""
        return self._phases.summary(self._users.n_ok, self._users.n_failed)
