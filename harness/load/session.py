"""Walks the levels of a closed loop whose users all run in this process.

The users are a ``Crew``, the levels an ``Itinerary``; here they meet without anything
between them. ``harness.load.distributed`` joins the same two over Locust's messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from harness.load.clock import Clock
from harness.load.crew import BACK_OFF_S, Crew, Member, Numbering
from harness.load.itinerary import Itinerary
from harness.load.level import Level
from harness.load.phases import Phase
from harness.load.preflight import PreparedBackend
from harness.plan.levels import LevelPolicy
from harness.records import CellKey, RequestRecord, RunEvent
from harness.workload import Workload

__all__ = ["BACK_OFF_S", "WORKER", "Member", "Session"]

#: how the only process of a run is called in its records
WORKER = "local"


class Session:
    """The walk through the levels of one run."""

    def __init__(
        self,
        policy: LevelPolicy,
        workload: Workload,
        backends: Mapping[str, PreparedBackend],
        clock: Clock,
        *,
        emit: Callable[[RunEvent], None],
        record: Callable[[RequestRecord], None],
        worker: str = WORKER,
        back_off_s: float = BACK_OFF_S,
    ) -> None:
        """``worker``: how this process is called in its records."""
        self._clock = clock
        self._emit = emit
        self._rest_s = workload.soak.rest_s if workload.soak is not None else 0.0
        self._not_before_s = clock.monotonic()
        self._levels = self._make_levels(policy)(workload, backends, clock, emit)
        self._crew = self._make_crew(policy)(
            workload,
            backends,
            clock,
            numbering=Numbering(worker),
            record=record,
            changed=self._after_change,
            parked=self._start_when_ready,
            back_off_s=back_off_s,
        )
        self.level: Level | None = None
        self._next_level()

    @property
    def finished(self) -> bool:
        """Whether there is nothing more to do."""
        return self.level is None

    @property
    def wanted_users(self) -> int | None:
        """How many users the current level needs; None when the walk is over."""
        return self.level.users if self.level is not None else None

    @property
    def in_flight(self) -> int:
        """Requests being made now."""
        return self.level.in_flight if self.level is not None else 0

    @property
    def waits_for_users(self) -> bool:
        """Whether the level cannot start for want of users."""
        waits = self.level is not None and self.level.phase is Phase.WAITING
        return waits and not self._rests

    @property
    def _rests(self) -> bool:
        return self._clock.monotonic() < self._not_before_s

    @property
    def awaited(self) -> set[str]:
        """Backends that are idle now and have levels to come."""
        return set() if self.level is None else self._levels.awaited(self.level.cell)

    def join(self) -> Member:
        """A user has come; it calls ``request`` until that is False, then ``leave``."""
        return self._crew.join()

    def leave(self, member: Member) -> None:
        """A user is gone."""
        self._crew.leave(member)

    def request(self, member: Member) -> bool:
        """Wait for a turn and make one request; False when the user is to leave."""
        return self._crew.request(member)

    def tick(self) -> None:
        """Time passed; called some times a second."""
        if self.level is not None:
            self._start_when_ready()
            self.level.tick()
            self._after_change()

    def abort(self, reason: str) -> None:
        """End the walk now: this level ends with the reason, the others are skipped."""
        self._crew.close()
        self._crew.settle()
        level, self.level = self.level, None
        if level is not None:
            self._cut_short(level, reason)
            self._levels.skip_rest(reason)
        self._crew.enter(None)

    def give_up(self, backend: str, reason: str) -> None:
        """Leave out what is left of one backend, and go on with the others."""
        self._levels.give_up(backend, reason)
        level = self.level
        if level is not None and level.cell.backend == backend:
            self._cut_short(level, reason)
            self._next_level()

    def _cut_short(self, level: Level, reason: str) -> None:
        begun = level.phase is not Phase.WAITING
        level.abort(reason)
        self._levels.cut_short(level.summary(), begun=begun)

    def close(self) -> None:
        """Users leave as soon as they are free."""
        self._crew.close()

    def _make_crew(self, policy: LevelPolicy) -> Callable[..., Crew]:
        """What makes the users, from the arguments of ``Crew``."""
        return Crew

    def _make_levels(self, policy: LevelPolicy) -> Callable[..., Itinerary]:
        """What makes the list of levels, from the other arguments of ``Itinerary``."""
        return partial(Itinerary, policy)

    def _make_level(self, cell: CellKey) -> Level:
        """The next level, as its users will find it."""
        limits = self._levels.limits(cell)
        return Level(cell, int(cell.level), limits, self._clock, self._tell)

    def _start_when_ready(self) -> None:
        level = self.level
        if level is None or level.phase is not Phase.WAITING:
            return
        if self._rests:
            return
        if self._crew.present == self._crew.parked == level.users:
            self._crew.start()
            level.start()
            self._crew.wake()

    def _after_change(self) -> None:
        """Move on when this level has come to its end."""
        if self.level is not None and self.level.phase is Phase.DONE:
            self._crew.settle()
            self._levels.completed(self.level.summary())
            self._not_before_s = self._clock.monotonic() + self._rest_s
            self._next_level()

    def _tell(self, event: RunEvent) -> None:
        """A level's event; whoever reads that a level has ended finds all its records."""
        if event.kind == "level_end":
            self._crew.settle()
        self._emit(event)

    def _next_level(self) -> None:
        cell = self._levels.next_cell()
        self.level = None
        if cell is not None:
            self.level = self._make_level(cell)
        self._crew.enter(self.level, self.level.users if self.level is not None else None)
