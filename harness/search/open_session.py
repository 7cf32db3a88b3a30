"""An open loop whose rates are chosen as it goes: measured, judged, then the next one.

The walk and its levels are those of ``harness.load.open_walk``. What differs: a window closes
when its level is decided, and the level is judged before the next rate is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from gevent.event import Event

from harness.load.clock import Clock
from harness.load.itinerary import Itinerary
from harness.load.open_clients import ClientMaker, stream_client
from harness.load.open_level import OpenLevel, OpenPhase
from harness.load.open_walk import OpenWalk, wait_for
from harness.load.phases import Progress
from harness.load.preflight import PreparedBackend
from harness.plan.arrivals import OpenLevels, RateSchedule, Schedule
from harness.plan.levels import LevelPolicy
from harness.records import CellKey, LevelSummary, RequestRecord, RunEvent
from harness.search.policy import KneePolicy
from harness.search.session import SearchParts
from harness.search.telling import KneeItinerary
from harness.search.watch import LevelWatch, SequentialClosing
from harness.workload import Workload

#: more than a level has time for: its window closes by the rule or by its limit
_WITHOUT_END = 10**9


class OpenKneeLevels(OpenLevels):
    """The rates that a search asks for, each with arrivals until its time is over."""

    def __init__(self, policy: KneePolicy, workload: Workload) -> None:
        super().__init__((), workload)
        self.knees = policy

    def next_cell(self, done: Sequence[LevelSummary]) -> CellKey | None:
        """The next rate; it gets a place in ``cells``, which numbers its prompts."""
        cell = self.knees.next_cell(done)
        if cell is not None and cell not in self.cells:
            self.cells = (*self.cells, cell)
        return cell

    def schedule(self, cell: CellKey) -> Schedule:
        """The arrivals of one rate; the same for every backend, another for every repeat."""
        work = self._workload
        asked = work.open_loop
        if asked is None:
            raise ValueError("the workload is no open loop")
        return RateSchedule(
            cell.level,
            asked.burstiness,
            f"{work.seed}/{cell.level!r}/{cell.repeat}",
            warmup_s=asked.warmup_s,
            min_requests=_WITHOUT_END,
            min_s=0.0,
            max_s=work.max_level_s,
        )


class OpenKneeWalk(OpenWalk):
    """The walk; its policy is an OpenKneeLevels."""

    def __init__(
        self,
        policy: OpenKneeLevels,
        workload: Workload,
        backends: Mapping[str, PreparedBackend],
        clock: Clock,
        *,
        parts: SearchParts,
        emit: Callable[[RunEvent], None],
        record: Callable[[RequestRecord], None],
        worker: str,
        make_client: ClientMaker = stream_client,
        wait: Callable[[Event, float | None], None] = wait_for,
    ) -> None:
        self._knees = policy.knees
        self._parts = parts
        self._max_level_s = workload.max_level_s
        self._watch: LevelWatch | None = None
        self._telling = parts.telling(policy.knees, workload, backends, clock, emit)
        super().__init__(
            policy,
            workload,
            backends,
            clock,
            emit=emit,
            record=partial(self._keep, record),
            worker=worker,
            make_client=make_client,
            wait=wait,
        )

    def tick(self) -> None:
        """Time passed: close the window once the level is decided."""
        level, watch = self.level, self._watch
        if level is not None and watch is not None and level.phase is OpenPhase.RUNNING:
            self._look(level, watch)
        super().tick()

    def abort(self, reason: str) -> None:
        """End the walk now; what was found so far is told."""
        super().abort(reason)
        self._telling.say_found(self._itinerary.found())

    def _look(self, level: OpenLevel, watch: LevelWatch) -> None:
        now_s, open_s = self._clock.monotonic(), level.open_s
        if open_s is None or now_s < open_s:
            return
        watch.in_flight(now_s, level.in_flight)
        reason = self._closing.reason(Progress(level.start_s, open_s, now_s, sent=0))
        if reason is not None:
            level.close(now_s, reason)
            self._wake.set()

    def _keep(self, record: Callable[[RequestRecord], None], item: RequestRecord) -> None:
        """A request was read: it is kept, and counted where it belongs to the level."""
        record(item)
        watch, level = self._watch, self.level
        if watch is not None and level is not None and item.cell == watch.cell:
            watch.add(item, level.open_s)

    def _make_levels(self, policy: LevelPolicy) -> Callable[..., Itinerary]:
        def made(*arguments: Any) -> KneeItinerary:
            # asked through the walk's own policy, which gives each cell its place
            self._itinerary = KneeItinerary(self._knees, *arguments, asked=policy)
            return self._itinerary

        return made

    def _make_level(self, cell: CellKey) -> OpenLevel:
        self._parts.judge.level_begins()
        self._watch = self._parts.watch(cell)
        decide = self._parts.rule(cell, self._itinerary.goals_of(cell))
        self._closing = SequentialClosing(
            self._watch, decide, self._max_level_s, self._parts.left_s
        )
        return super()._make_level(cell)

    def _next_level(self) -> None:
        if self.level is not None:
            self._telling.conclude(self.level.cell)
        super()._next_level()
        if self.level is None:
            self._telling.say_found(self._itinerary.found())
        else:
            self._telling.say_next(self.level.cell)
