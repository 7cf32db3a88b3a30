"""The knee search: a level policy that starts at the prediction, goes past, and bisects. Pure.

What it does follows from the levels that are done alone, so a resumed run goes on where it
was. Levels are whole multiples of ``unit`` (one user, or a step of a rate). A level's verdicts
are asked for every goal, so one goal uses the levels measured for the other. Several backends
take turns: while one drains the other works.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from harness.plan.bracketing import Bracket, Known, bracket_of, next_level, step_of
from harness.plan.knee_interval import knee_interval, put_together
from harness.plan.levels import MAX_LEVEL
from harness.plan.search_types import (
    Found,
    FoundStatus,
    LevelVerdict,
    Searched,
    SearchGoal,
)
from harness.records import CellKey, LevelSummary

VerdictOf = Callable[[CellKey], Sequence[LevelVerdict]]
#: so many levels in a row that measured nothing, such as after a metrics page was lost, end a goal
BLIND_LEVELS = 2


class KneeSearch:
    """Finds the knees of one or several backends; see ``harness.plan.levels.LevelPolicy``."""

    def __init__(
        self,
        searched: Sequence[Searched],
        prompt_tokens: int,
        output_tokens: int,
        verdict_of: VerdictOf,
        *,
        max_level: float = MAX_LEVEL,
        resolution: float = 0.05,
        unit: float = 1.0,
        budget_left_s: Callable[[], float | None] | None = None,
    ) -> None:
        """``verdict_of`` analyses a level that has ended; it is asked again for the same one.

        ``resolution`` is a share of the level; the bracket is never narrower than one
        ``unit``. ``budget_left_s`` gives the seconds left; None: no budget.
        """
        self.searched = tuple(searched)
        self._lengths = prompt_tokens, output_tokens
        self._verdict_of = verdict_of
        self._top = max(1, round(max_level / unit))
        self._resolution, self._unit = resolution, unit
        self._budget_left_s = budget_left_s

    def next_cell(self, done: Sequence[LevelSummary]) -> CellKey | None:
        """The next level to measure; None when every goal is answered or the budget is spent."""
        if not self.has_time(done):
            return None
        for backend in self._in_turn(done):
            measured = self._measured(backend, done)
            for goal in backend.goals:
                wanted = self._wanted(backend, goal, measured, done)
                if wanted is not None:
                    return self._cell(backend, wanted, len(measured.get(wanted, ())))
        return None

    def goal_of(self, backend: str, done: Sequence[LevelSummary]) -> SearchGoal | None:
        """For which goal a backend's next level is measured; None when it wants none."""
        for item in self.searched:
            if item.name == backend:
                measured = self._measured(item, done)
                return next((g for g in item.goals if self._wanted(item, g, measured, done)), None)
        return None

    def found(self, done: Sequence[LevelSummary]) -> tuple[Found, ...]:
        """What is known of each backend and goal, in their order, after these levels."""
        return tuple(
            self._found(backend, goal, self._measured(backend, done), done)
            for backend in self.searched
            for goal in backend.goals
        )

    def has_time(self, done: Sequence[LevelSummary]) -> bool:
        """Whether the budget has room for one more level that is as long as those so far."""
        left = self._budget_left_s() if self._budget_left_s is not None else None
        if left is None:
            return True
        took = [item.took_s for item in done if item.took_s is not None]
        # a level that cannot end in time is not begun
        return left > 0 and (not took or left >= sum(took) / len(took))

    def _in_turn(self, done: Sequence[LevelSummary]) -> list[Searched]:
        """The backends, the one after the last measured first."""
        names = [item.name for item in self.searched]
        last = done[-1].cell.backend if done else None
        first = names.index(last) + 1 if last in names else 0
        return [*self.searched[first:], *self.searched[:first]]

    def _cell(self, backend: Searched, level: int, repeat: int) -> CellKey:
        return CellKey(backend.name, backend.mode, *self._lengths, level * self._unit, repeat)

    def _measured(
        self, backend: Searched, done: Sequence[LevelSummary]
    ) -> dict[int, list[Sequence[LevelVerdict]]]:
        """The verdicts of each level, one sequence per repeat."""
        found: dict[int, list[Sequence[LevelVerdict]]] = {}
        for summary in done:
            if summary.cell.backend == backend.name:
                level = round(summary.cell.level / self._unit)
                found.setdefault(level, []).append(self._verdict_of(summary.cell))
        return found

    def _wanted(
        self,
        backend: Searched,
        goal: SearchGoal,
        measured: Mapping[int, Sequence[Sequence[LevelVerdict]]],
        done: Sequence[LevelSummary],
    ) -> int | None:
        if self._blind(backend, goal, done):
            return None
        # the prediction is one of memory: the SLO's knee may lie anywhere
        start = None
        if goal == "capacity" and backend.start is not None:
            start = min(max(1, round(backend.start / self._unit)), self._top)
        known = {
            level: _known(of_goal(repeats, goal, level * self._unit), len(repeats))
            for level, repeats in measured.items()
        }
        return next_level(known, start, self._top, self._resolution)

    def _blind(self, backend: Searched, goal: SearchGoal, done: Sequence[LevelSummary]) -> bool:
        """Whether the last levels measured nothing of a goal: a higher one would not either."""
        own = [item.cell for item in done if item.cell.backend == backend.name][-BLIND_LEVELS:]
        said = [of_goal([self._verdict_of(cell)], goal, cell.level) for cell in own]
        return len(said) == BLIND_LEVELS and all(
            item.state == "undecided"
            and item.share is None
            and item.cause == "unknown"
            # one that was too slow says where to look: below it
            and not item.too_slow
            for item in said
        )

    def _found(
        self,
        backend: Searched,
        goal: SearchGoal,
        measured: Mapping[int, Sequence[Sequence[LevelVerdict]]],
        done: Sequence[LevelSummary],
    ) -> Found:
        said = {
            level: of_goal(measured[level], goal, level * self._unit) for level in sorted(measured)
        }
        known = {level: _known(item, len(measured[level])) for level, item in said.items()}
        bracket = bracket_of(known)
        ended = self._wanted(backend, goal, measured, done) is None
        shown = _shown(bracket, said)
        low, beyond = knee_interval(tuple(said.values()))
        return Found(
            backend=backend.name,
            goal=goal,
            status=self._status(bracket, known, ended),
            last_good=None if bracket.good is None else bracket.good * self._unit,
            first_bad=None if bracket.bad is None else bracket.bad * self._unit,
            low=low,
            high=None if beyond is None else beyond - self._unit,
            cause=shown.cause if shown is not None else None,
            evidence=shown.evidence if shown is not None else (),
            against=shown.against if shown is not None else (),
            levels=tuple(said.values()),
        )

    def _status(self, bracket: Bracket, known: Mapping[int, Known], ended: bool) -> FoundStatus:
        if not ended or not known:
            return "budget"
        if bracket.bad is None:
            return "not_reached" if bracket.good == self._top else "undecided"
        if bracket.good is None:
            return "below_first" if bracket.bad == 1 else "undecided"
        narrow = bracket.bad - bracket.good <= step_of(bracket.good, self._resolution)
        return "found" if narrow else "undecided"


def of_goal(
    repeats: Sequence[Sequence[LevelVerdict]], goal: SearchGoal, level: float
) -> LevelVerdict:
    """What a level's repeats say of a goal together; undecided where they say nothing."""
    said = [item for verdicts in repeats for item in verdicts if item.goal == goal]
    if said:
        return put_together(said)
    return LevelVerdict(
        level=level,
        goal=goal,
        state="undecided",
        share=None,
        low=None,
        high=None,
        threshold=0.0,
        n=0,
        cause="unknown",
        evidence=("the level gave no verdict",),
    )


def _known(verdict: LevelVerdict, times: int) -> Known:
    return Known(verdict.state, times, verdict.ceiling)


def _shown(bracket: Bracket, said: Mapping[int, LevelVerdict]) -> LevelVerdict | None:
    """The verdict whose cause and evidence are the answer's."""
    if bracket.bad is not None:
        return said[bracket.bad]
    if bracket.unsure:
        return said[bracket.unsure[0]]
    return said[bracket.good] if bracket.good is not None else None
