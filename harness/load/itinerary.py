"""The levels of a run, as its policy names them: which is next, which are left out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from harness.load.clock import Clock
from harness.load.phases import LevelLimits
from harness.plan.levels import LevelPolicy, Skip
from harness.records import CellKey, LevelSummary, RunEvent, Scalar
from harness.workload import Workload

#: The policy is asked for this many levels at most once the run has been cut short.
_MAX_SKIPPED = 10_000


class Itinerary:
    """What was measured, and what the policy asks for next."""

    def __init__(
        self,
        policy: LevelPolicy,
        workload: Workload,
        backends: Collection[str],
        clock: Clock,
        emit: Callable[[RunEvent], None],
    ) -> None:
        """``backends``: the names of all; ``emit`` is told of every level that is left out."""
        self._policy = policy
        self._workload = workload
        self._backends = frozenset(backends)
        self._clock = clock
        self._emit = emit
        self._done: list[LevelSummary] = []
        #: backend -> why nothing more is asked of it
        self._lost: dict[str, str] = {}

    def next_cell(self) -> CellKey | None:
        """The next level; None when there is none. What comes before it is left out."""
        while isinstance(step := self._step(self._done), Skip):
            self._skipped(step.cell, step.reason, planned=step.cell.backend not in self._lost)
            self._done.append(_unmeasured(step.cell))
        return step

    def completed(self, summary: LevelSummary) -> None:
        """A level is over."""
        self._done.append(summary)

    def cut_short(self, summary: LevelSummary, *, begun: bool) -> None:
        """A level was ended from outside; one that had not begun is left out with the rest."""
        if begun:
            self.completed(summary)

    def give_up(self, backend: str, reason: str) -> None:
        """Leave out all levels to come of one backend."""
        self._lost[backend] = reason

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
        wanted = self._backends - {current.backend, *self._lost}
        found: set[str] = set()
        for step in self._rest(current):
            # with all of them found the rest of a long list need not be looked at
            if found == wanted:
                break
            if isinstance(step, CellKey):
                found.add(step.backend)
        return found & wanted

    def skip_rest(self, reason: str) -> None:
        """Say of every level not reached that it was skipped."""
        for step in self._rest(None):
            if isinstance(step, Skip):
                self._skipped(step.cell, step.reason, planned=step.cell.backend not in self._lost)
            else:
                self._skipped(step, reason, planned=False)

    def _step(self, done: Sequence[LevelSummary]) -> CellKey | Skip | None:
        step = self._policy.next_cell(done)
        if isinstance(step, CellKey) and step.backend in self._lost:
            return Skip(step, self._lost[step.backend])
        return step

    def _skipped(self, cell: CellKey, reason: str, *, planned: bool) -> None:
        detail: dict[str, Scalar] = {"reason": reason} | ({"planned": True} if planned else {})
        now_s = self._clock.monotonic()
        self._emit(RunEvent(t_s=now_s, kind="level_skipped", cell=cell, detail=detail))

    def _rest(self, current: CellKey | None) -> Iterator[CellKey | Skip]:
        """What the policy would still ask for if nothing more were measured."""
        done = list(self._done)
        if current is not None:
            done.append(_unmeasured(current))
        for _ in range(_MAX_SKIPPED):
            step = self._step(done)
            if step is None:
                return
            done.append(_unmeasured(step.cell if isinstance(step, Skip) else step))
            yield step


def _unmeasured(cell: CellKey) -> LevelSummary:
    """The summary of a level that was not run."""
    return LevelSummary(cell=cell, n_ok=0, n_failed=0, window_s=None, reason="skipped")
