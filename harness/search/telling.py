"""Judges each level of a search once it has ended, and tells what was decided and found."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from harness.load.clock import Clock
from harness.load.itinerary import Itinerary
from harness.manifest import BackendInfo
from harness.plan.levels import LevelPolicy
from harness.plan.search_events import found_detail, verdict_detail
from harness.plan.search_flags import advice, found_flags
from harness.plan.search_reasons import reasons_of
from harness.plan.search_text import found_line, level_line, next_line
from harness.plan.search_types import VERIFIED, Found, SearchGoal
from harness.records import CellKey, EventKind, Loop, RunEvent, Scalar
from harness.search.judge import Judge
from harness.search.policy import KneePolicy

logger = logging.getLogger(__name__)


class KneeItinerary(Itinerary):
    """The levels of a search: what would come next is not known before it is needed."""

    def __init__(
        self, policy: KneePolicy, *arguments: Any, asked: LevelPolicy | None = None
    ) -> None:
        """``asked`` stands before the policy where a walk needs one of its own."""
        super().__init__(asked or policy, *arguments)
        self._knees = policy

    def awaited(self, current: CellKey) -> set[str]:
        """Backends of which not all is known; none while a server is verified."""
        if current.variant == VERIFIED:
            return set()
        return self._knees.unfinished(self._done) - {current.backend, *self._lost}

    def skip_rest(self, reason: str) -> None:
        """Levels that a search would have asked for nobody knows."""

    def goals_of(self, cell: CellKey) -> tuple[SearchGoal, ...]:
        """What the level that comes next is to decide."""
        return self._knees.goals_of(cell, self._done)

    def found(self) -> tuple[Found, ...]:
        """What is known after the levels so far."""
        return self._knees.found(self._done)


class SearchTelling:
    """Tells of one search: into the run's events, and as lines of its log."""

    def __init__(
        self,
        policy: KneePolicy,
        judge: Judge,
        infos: Mapping[str, BackendInfo],
        predicted: Mapping[str, int],
        loop: Loop,
        clock: Clock,
        emit: Callable[[RunEvent], None],
    ) -> None:
        """``predicted``: backend -> requests that its own facts say it holds."""
        self._policy = policy
        self._judge = judge
        self._infos = infos
        self._predicted = predicted
        self._loop = loop
        self._clock = clock
        self._emit = emit
        self._told = False

    def conclude(self, cell: CellKey) -> None:
        """Judge the level that has ended, and say what it was."""
        try:
            verdicts = self._judge.verdicts(cell)
        except Exception:
            # the records are there: a report can still be made of them
            logger.exception("level %s could not be judged", cell.label_in(self._loop))
            verdicts = ()
        self._policy.verdicts.note(cell, verdicts)
        for verdict in verdicts:
            self.note("level_verdict", cell, verdict_detail(verdict))
        logger.info("%s", level_line(cell, verdicts, self._loop))

    def say_next(self, cell: CellKey) -> None:
        """Which level comes next, and what is known so far."""
        known = self._policy.verdicts.of_backend(cell.backend)
        line = next_line(cell, known, self._predicted.get(cell.backend), self._loop)
        self.note("search_next", cell, {"why": line})
        logger.info("%s", line)

    def say_found(self, found: tuple[Found, ...]) -> None:
        """What the search has come to; said once, however often it ends."""
        if self._told:
            return
        self._told = True
        for item in found:
            info = self._infos[item.backend]
            flags = found_flags(info, item, self._loop)
            self.note("search_found", None, found_detail(item, flags))
            reasons = reasons_of(item, self._loop)
            for line in (
                found_line(item, self._loop),
                *(f"  {line}" for line in (reasons.lines if reasons is not None else ())),
                advice(info, item, self._loop),
            ):
                if line:
                    logger.info("%s", line)

    def note(self, kind: EventKind, cell: CellKey | None, detail: dict[str, Scalar]) -> None:
        """Keep an event of now."""
        self._emit(RunEvent(t_s=self._clock.monotonic(), kind=kind, cell=cell, detail=detail))
