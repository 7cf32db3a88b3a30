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
from harness.plan.search_events import found_detail, verdict_detail
from harness.plan.search_flags import found_flags
from harness.plan.search_text import found_line, level_line, next_line
from harness.plan.search_types import Decision, Found, SearchGoal, SoFar
from harness.records import (
    CellKey,
    EventKind,
    LevelSummary,
    RequestRecord,
    RunEvent,
    Scalar,
    Workload,
)
from harness.search.judge import Judge
from harness.search.policy import VERIFIED, KneePolicy
from harness.search.watch import LevelWatch, SequentialClosing

#: a server that is being started when the run is cut short gets so long to be stopped again
_STOP_S = 60.0

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


class KneeItinerary(Itinerary):
    """The levels of a search: what would come next is not known before it is needed."""

    def __init__(self, policy: KneePolicy, *arguments: object) -> None:
        super().__init__(policy, *arguments)  # type: ignore[arg-type]
        self._knees = policy

    def awaited(self, current: CellKey) -> set[str]:
        """Backends of which not all is known; none while a server is verified."""
        if current.variant == VERIFIED:
            return set()
        return self._knees.unfinished(self._done) - {current.backend, *self._lost}

    def goals_of(self, cell: CellKey) -> tuple[SearchGoal, ...]:
        """What the level that comes next is to decide."""
        return self._knees.goals_of(cell, self._done)

    def found(self) -> tuple[Found, ...]:
        """What is known after the levels so far."""
        return self._knees.found(self._done)

    def skip_rest(self, reason: str) -> None:
        """Levels that a search would have asked for nobody knows."""


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
        self._infos = {name: backend.info for name, backend in backends.items()}
        self._parts = parts
        self._watch: LevelWatch | None = None
        self._restarting: gevent.Greenlet[..., None] | None = None
        self._told = False
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
        if self._restarting is not None:
            self._restarting.kill(timeout=_STOP_S)
        super().abort(reason)
        self._tell_found()

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
        closing = SequentialClosing(self._watch, decide, self._workload.max_level_s)
        return Level(cell, int(cell.level), closing, self._clock, self._tell)

    def _next_level(self) -> None:
        if self.level is not None:
            self._conclude(self.level.cell)
        super()._next_level()
        level = self.level
        if level is None:
            self._tell_found()
        elif level.cell.variant == VERIFIED:
            self._restarting = gevent.spawn(self._restart, level)
        else:
            self._say_next(level.cell)

    def _conclude(self, cell: CellKey) -> None:
        """Judge the level that has ended, and say what it was."""
        try:
            verdicts = self._parts.judge.verdicts(cell)
        except Exception:
            # the records are there: a report can still be made of them
            logger.exception("level %s could not be judged", cell.label)
            verdicts = ()
        self._knees.verdicts.note(cell, verdicts)
        for verdict in verdicts:
            self._note("level_verdict", cell, verdict_detail(verdict))
        logger.info("%s", level_line(cell, verdicts, self._workload.loop))

    def _say_next(self, cell: CellKey) -> None:
        line = next_line(
            cell,
            self._knees.verdicts.of_backend(cell.backend),
            self._parts.predicted.get(cell.backend),
            self._workload.loop,
        )
        self._note("search_next", cell, {"why": line})
        logger.info("%s", line)

    def _tell_found(self) -> None:
        """What the search has come to, once."""
        if self._told:
            return
        self._told = True
        for found in self._itinerary.found():
            flags = found_flags(self._infos[found.backend], found)
            self._note("search_found", None, found_detail(found, flags))
            logger.info("%s", found_line(found, self._workload.loop))

    def _restart(self, level: Level) -> None:
        """Restart the server of a level to come, then let the level begin."""
        backend = level.cell.backend
        try:
            self._parts.restart(backend, int(level.cell.level))
        except KvkneeError as error:
            self._not_verified(level, printable(str(error)))
            return
        finally:
            self._restarting = None
        flags: dict[str, Scalar] = {"backend": backend, "max_num_seqs": int(level.cell.level)}
        self._note("server_restarted", level.cell, flags)
        self._start_when_ready()

    def _not_verified(self, level: Level, why: str) -> None:
        logger.error("%s is not verified: %s", level.cell.backend, why)
        self._note("level_skipped", level.cell, {"reason": why})
        self._levels.completed(
            LevelSummary(cell=level.cell, n_ok=0, n_failed=0, window_s=None, reason="skipped")
        )
        self.level = None
        self._next_level()

    def _note(self, kind: EventKind, cell: CellKey | None, detail: dict[str, Scalar]) -> None:
        self._emit(RunEvent(t_s=self._clock.monotonic(), kind=kind, cell=cell, detail=detail))
