"""A closed loop whose levels are chosen as it goes: measured, judged, then the next one.

Users and levels are those of ``harness.load.session``. What differs: a level ends when it
is decided, it is judged before the next one is asked for, and behind the last one a server
of this machine's stack is restarted with what was found.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import gevent

from harness.errors import KvkneeError, printable
from harness.load.clock import Clock
from harness.load.itinerary import Itinerary
from harness.load.level import Level
from harness.load.preflight import PreparedBackend
from harness.load.session import Session
from harness.plan.levels import LevelPolicy
from harness.plan.search_types import VERIFIED, Decision, SearchGoal, SoFar
from harness.records import CellKey, LevelSummary, RequestRecord, RunEvent
from harness.search.judge import Judge
from harness.search.policy import KneePolicy
from harness.search.telling import KneeItinerary, SearchTelling
from harness.search.watch import LevelWatch, SequentialClosing
from harness.workload import Workload

#: a server that is being started when the run is cut short gets so long to be stopped again
_STOP_S = 60.0

#: A level is judged while this process does nothing else. The sample of the client's lag that
#: holds it, one a second, must not lie in the next level's window.
_SETTLE_S = 1.2

logger = logging.getLogger(__name__)


class Restarts(Protocol):
    """Starts a server anew with other flags."""

    def __call__(self, backend: str, level: int) -> None:
        """Ready again when it returns; raises KvkneeError."""
        ...


@dataclass(frozen=True)
class SearchParts:
    """What a search needs beside a load."""

    judge: Judge
    #: makes what watches a level while it runs
    watch: Callable[[CellKey], LevelWatch]
    #: the sequential rule of a level, by what it is to decide
    rule: Callable[[CellKey, tuple[SearchGoal, ...]], Callable[[SoFar], Decision]]
    restart: Restarts
    #: backend -> requests that were predicted to fit
    predicted: Mapping[str, int]
    #: backend -> what to type to have its server as it was before a restart
    start_command: Callable[[str], str] = lambda backend: "kvknee up"
    #: seconds that are left of the whole search; None: it has no limit
    left_s: Callable[[], float | None] = lambda: None

    def telling(
        self,
        policy: KneePolicy,
        workload: Workload,
        backends: Mapping[str, PreparedBackend],
        clock: Clock,
        emit: Callable[[RunEvent], None],
    ) -> SearchTelling:
        """What tells of a search of these backends."""
        infos = {name: backend.info for name, backend in backends.items()}
        return SearchTelling(policy, self.judge, infos, self.predicted, workload.loop, clock, emit)


class KneeSession(Session):
    """The walk; its policy is a KneePolicy."""

    def __init__(
        self,
        policy: KneePolicy,
        workload: Workload,
        backends: Mapping[str, PreparedBackend],
        clock: Clock,
        *,
        parts: SearchParts,
        emit: Callable[[RunEvent], None],
        record: Callable[[RequestRecord], None],
        worker: str,
    ) -> None:
        self._knees = policy
        self._workload = workload
        self._parts = parts
        self._watch: LevelWatch | None = None
        self._restarting: gevent.Greenlet[..., None] | None = None
        self._telling = parts.telling(policy, workload, backends, clock, emit)
        super().__init__(
            policy,
            workload,
            backends,
            clock,
            emit=emit,
            record=partial(self._keep, record),
            worker=worker,
        )

    def abort(self, reason: str) -> None:
        """End the walk now; what was found so far is told."""
        if self._restarting is not None and self.level is not None:
            backend = self.level.cell.backend
            logger.warning("%s was being restarted and is stopped now", backend)
            self._restarting.kill(timeout=_STOP_S)
            command = self._parts.start_command(backend)
            logger.warning("to have it back as it was: %s", command)
        super().abort(reason)
        self._telling.say_found(self._itinerary.found())

    @property
    def _rests(self) -> bool:
        return self._restarting is not None or super()._rests

    def _keep(self, record: Callable[[RequestRecord], None], item: RequestRecord) -> None:
        """A request was read: it is kept, and counted where it belongs to the level."""
        record(item)
        watch, level = self._watch, self.level
        if watch is not None and level is not None and item.cell == watch.cell:
            watch.add(item, level.open_s)

    def _make_levels(self, policy: LevelPolicy) -> Callable[..., Itinerary]:
        def made(*arguments: Any) -> KneeItinerary:
            self._itinerary = KneeItinerary(self._knees, *arguments)
            return self._itinerary

        return made

    def _make_level(self, cell: CellKey) -> Level:
        self._parts.judge.level_begins()
        self._watch = self._parts.watch(cell)
        decide = self._parts.rule(cell, self._itinerary.goals_of(cell))
        longest_s = self._workload.max_level_s
        closing = SequentialClosing(self._watch, decide, longest_s, self._parts.left_s)
        return Level(cell, int(cell.level), closing, self._clock, self._tell)

    def _next_level(self) -> None:
        judged = self.level is not None
        if self.level is not None:
            self._telling.conclude(self.level.cell)
        super()._next_level()
        if judged:
            self._not_before_s = self._clock.monotonic() + _SETTLE_S
        level = self.level
        if level is None:
            self._telling.say_found(self._itinerary.found())
        elif level.cell.variant == VERIFIED:
            self._restarting = gevent.spawn(self._restart, level)
        else:
            self._telling.say_next(level.cell)

    def _restart(self, level: Level) -> None:
        """Restart the server of a level to come, then let the level begin."""
        backend = level.cell.backend
        failed: str | None = None
        try:
            self._parts.restart(backend, int(level.cell.level))
        except KvkneeError as error:
            failed = printable(str(error))
        finally:
            # before the next level is asked for: its server may have to be restarted, too
            self._restarting = None
        if failed is not None:
            self._not_verified(level, failed)
            return
        self._telling.note(
            "server_restarted",
            level.cell,
            {"backend": backend, "flags": f"--max-num-seqs {level.cell.level:.0f}"},
        )
        self._start_when_ready()

    def _not_verified(self, level: Level, why: str) -> None:
        logger.error("%s is not verified: %s", level.cell.backend, why)
        self._telling.note("level_skipped", level.cell, {"reason": why})
        self._levels.completed(
            LevelSummary(cell=level.cell, n_ok=0, n_failed=0, window_s=None, reason="skipped")
        )
        self.level = None
        self._next_level()
