"""The levels of a run, as its policy names them: which is next, which are left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from harness.load.clock import Clock
from harness.load.phases import LevelLimits
from harness.plan.levels import LevelPolicy
from harness.records import CellKey, LevelSummary, RunEvent, Workload

#: The policy is asked for this many levels at most once the run has been cut short.
_MAX_SKIPPED = 1000


class Itinerary:
    """What was measured, and what the policy asks for next."""

    def __init__(self, policy: LevelPolicy, workload: Workload) -> None:
        self._policy = policy
        self._workload = workload
        self._done: list[LevelSummary] = []

    def next_cell(self) -> CellKey | None:
        """The next level; None when there is none."""
        return self._policy.next_cell(self._done)

    def completed(self, summary: LevelSummary) -> None:
        """A level is over."""
        self._done.append(summary)

    def limits(self, cell: CellKey) -> LevelLimits:
        """When that level's window closes."""
        work = self._workload
        listed = dict(zip(work.levels, work.min_requests, strict=True))
        return LevelLimits(
            # a policy may choose levels that the user did not list
            min_requests=listed.get(cell.level, work.min_requests[-1]),
            min_level_s=work.min_level_s,
            max_level_s=work.max_level_s,
        )

    def awaited(self, current: CellKey) -> set[str]:
        """Backends with levels to come, other than the one that is loaded now."""
        return {cell.backend for cell in self._rest(current)} - {current.backend}

    def skip_rest(self, reason: str, clock: Clock, emit: Callable[[RunEvent], None]) -> None:
        """Say of every level not reached that it was skipped."""
        for cell in self._rest(None):
            now = clock.monotonic()
            emit(RunEvent(t_s=now, kind="level_skipped", cell=cell, detail={"reason": reason}))

    def _rest(self, current: CellKey | None) -> Iterator[CellKey]:
        """The levels that the policy would still ask for if nothing more were measured."""
        done = list(self._done)
        if current is not None:
            done.append(_unmeasured(current))
        for _ in range(_MAX_SKIPPED):
            cell = self._policy.next_cell(done)
            if cell is None:
                return
            done.append(_unmeasured(cell))
            yield cell


def _unmeasured(cell: CellKey) -> LevelSummary:
    """The summary of a level that was not run."""
    return LevelSummary(cell=cell, n_ok=0, n_failed=0, window_s=None, reason="skipped")
