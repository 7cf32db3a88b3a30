"""Leads the workers through the levels of a run: the master's half of a closed loop."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from harness.load.clock import Clock
from harness.load.distributed.messages import EnterLevel, Obey, Progress, StartUsers
from harness.load.itinerary import Itinerary
from harness.load.no_answer import unanswered
from harness.load.phases import LevelPhases, Order, Phase, Totals
from harness.plan.levels import LevelPolicy
from harness.records import CellKey, RunEvent
from harness.workload import Workload

if TYPE_CHECKING:
    from harness.load.distributed.fleet import Fleet


class SharedLevel:
    """One level whose users lie on several workers."""

    def __init__(self, phases: LevelPhases, totals: Callable[[], Totals]) -> None:
        self.phases = phases
        self._totals = totals

    @property
    def cell(self) -> CellKey:
        """What is measured."""
        return self.phases.cell

    @property
    def unanswered(self) -> bool | None:
        """Whether the last request of every user got no answer; None: nothing tells yet."""
        totals = self._totals()
        return unanswered(totals.unanswered, totals.n_ok, self.phases.phase, self.phases.users)


class Conductor:
    """The course of one run."""

    def __init__(
        self,
        policy: LevelPolicy,
        workload: Workload,
        backends: Collection[str],
        clock: Clock,
        fleet: Fleet,
        run: str,
        emit: Callable[[RunEvent], None],
    ) -> None:
        """Send the workers the first level; ``backends`` are the names of all."""
        self._clock = clock
        self._fleet = fleet
        self._run = run
        self._emit = emit
        self._levels = Itinerary(policy, workload, backends, clock, emit)
        #: of the current level, counted from 1
        self._number = 0
        self.level: SharedLevel | None = None
        fleet.on_progress = self.tick
        self._next_level()

    @property
    def finished(self) -> bool:
        """Whether there is nothing more to do."""
        return self.level is None

    @property
    def wanted_users(self) -> int | None:
        """How many users the current level needs; None when the walk is over."""
        return self.level.phases.users if self.level is not None else None

    @property
    def in_flight(self) -> int:
        """Requests being made now, as far as the workers have told."""
        return self._totals().in_flight

    @property
    def waits_for_users(self) -> bool:
        """Whether the level cannot start for want of users."""
        return self.level is not None and self.level.phases.phase is Phase.WAITING

    @property
    def awaited(self) -> set[str]:
        """Backends that are idle now and have levels to come."""
        return set() if self.level is None else self._levels.awaited(self.level.cell)

    def tick(self) -> None:
        """Time passed, or a worker has told something."""
        level = self.level
        if level is None:
            return
        if level.phases.phase is Phase.WAITING:
            self._start_when_ready(level.phases)
            return
        totals = self._totals()
        level.phases.heard(totals, self._clock.monotonic())
        if level.phases.phase is Phase.DONE:
            self._levels.completed(level.phases.summary(totals.n_ok, totals.n_failed))
            self._next_level()

    def abort(self, reason: str) -> None:
        """End the walk now: this level ends with the reason, the others are skipped."""
        level, self.level = self.level, None
        if level is not None:
            totals = self._totals()
            begun = level.phases.phase is not Phase.WAITING
            level.phases.abort(reason)
            summary = level.phases.summary(totals.n_ok, totals.n_failed)
            self._levels.cut_short(summary, begun=begun)
            self._levels.skip_rest(reason)
        self.close()

    def give_up(self, backend: str, reason: str) -> None:
        """A backend is gone: the walk ends."""
        self._levels.give_up(backend, reason)
        self.abort(reason)

    def close(self) -> None:
        """Users leave as soon as they are free."""
        self._fleet.send_all(EnterLevel(run=self._run, number=self._number, cell=None))

    def _start_when_ready(self, phases: LevelPhases) -> None:
        """Number the users, worker after worker, once all of them wait."""
        told = self._progress()
        present = [progress.present if progress is not None else 0 for progress in told]
        parked = sum(progress.parked for progress in told if progress is not None)
        if None in told or sum(present) != phases.users or parked != phases.users:
            return
        first = 0
        for remote, users in zip(self._fleet.crew, present, strict=True):
            start = StartUsers(run=self._run, number=self._number, first=first, users=users)
            self._fleet.send(remote, start)
            first += users
        phases.start()

    def _next_level(self) -> None:
        cell = self._levels.next_cell()
        self.level = None
        self._number += 1
        if cell is not None:
            limits = self._levels.limits(cell)
            phases = LevelPhases(
                cell, int(cell.level), limits, self._clock, self._emit, self._order
            )
            self.level = SharedLevel(phases, self._totals)
        self._fleet.send_all(EnterLevel(run=self._run, number=self._number, cell=cell))

    def _order(self, order: Order) -> None:
        self._fleet.send_all(Obey(run=self._run, number=self._number, order=order))

    def _progress(self) -> list[Progress | None]:
        """What each worker told of this level; None for one that has not."""
        told = [remote.progress for remote in self._fleet.crew]
        return [
            progress if progress is not None and progress.number == self._number else None
            for progress in told
        ]

    def _totals(self) -> Totals:
        return Totals(
            progress.tally if progress is not None else None for progress in self._progress()
        )
