"""The search as the load asks it: the next level, and behind the last one what is verified."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from harness.plan.search_types import VERIFIED, Found, LevelVerdict, SearchGoal
from harness.records import CellKey, LevelSummary

#: how a level ends that was not cut short
OWN_ENDS = frozenset({"complete", "collapse", "time_limit"})


class Search(Protocol):
    """Where the knees are looked for; see ``harness.plan.knee_search``."""

    def next_cell(self, done: Sequence[LevelSummary]) -> CellKey | None:
        """The next level; None when all is known or time is up."""
        ...

    def has_time(self, done: Sequence[LevelSummary]) -> bool:
        """Whether the budget has room for one more level."""
        ...

    def found(self, done: Sequence[LevelSummary]) -> tuple[Found, ...]:
        """What is known after these levels, per backend and goal."""
        ...

    def goal_of(self, backend: str, done: Sequence[LevelSummary]) -> SearchGoal | None:
        """For which goal a backend's next level is measured; None when it wants none."""
        ...


class Verdicts:
    """What each finished level was; the search asks it, the walk tells it."""

    def __init__(self) -> None:
        self._known: dict[CellKey, tuple[LevelVerdict, ...]] = {}

    def note(self, cell: CellKey, verdicts: tuple[LevelVerdict, ...]) -> None:
        """A level has ended."""
        self._known[cell] = verdicts

    def of(self, cell: CellKey) -> tuple[LevelVerdict, ...]:
        """All that a level says; nothing of one that was not measured."""
        return self._known.get(cell, ())

    def of_backend(self, backend: str) -> tuple[LevelVerdict, ...]:
        """All of one backend's levels, in the order in which they were measured."""
        return tuple(
            verdict
            for cell, verdicts in self._known.items()
            if cell.backend == backend and not cell.variant
            for verdict in verdicts
        )


def _searched(done: Sequence[LevelSummary]) -> list[LevelSummary]:
    """The levels of the search itself that came to an end of their own."""
    return [item for item in done if not item.cell.variant and item.reason in OWN_ENDS]


class KneePolicy:
    """The levels of a search, then one level for each server that can be restarted."""

    def __init__(
        self,
        search: Search,
        verdicts: Verdicts,
        modes: dict[str, str],
        lengths: tuple[int, int],
        restartable: Collection[str] = (),
    ) -> None:
        """``modes``: each backend's cache mode; ``lengths``: prompt and output tokens.

        ``restartable``: the backends whose servers are ours, where what is found is verified.
        """
        self.verdicts = verdicts
        self._search = search
        self._modes = modes
        self._lengths = lengths
        self._restartable = frozenset(restartable)

    def next_cell(self, done: Sequence[LevelSummary]) -> CellKey | None:
        """The next level of the search; after its end those that verify."""
        cell = self._search.next_cell(_searched(done))
        if cell is not None:
            return cell
        # by the time of all levels: one that verifies is as long as the others
        if not self._search.has_time(done):
            return None
        finished = {item.cell for item in done}
        cells = [self._verifying(found) for found in self.found(done) if self._worth(found)]
        return next((cell for cell in cells if cell not in finished), None)

    def found(self, done: Sequence[LevelSummary]) -> tuple[Found, ...]:
        """What is known after these levels."""
        return self._search.found(_searched(done))

    def goals_of(self, cell: CellKey, done: Sequence[LevelSummary]) -> tuple[SearchGoal, ...]:
        """What the level that comes next is to decide."""
        goal = self._search.goal_of(cell.backend, _searched(done))
        return ("capacity",) if goal is None else (goal,)

    def unfinished(self, done: Sequence[LevelSummary]) -> set[str]:
        """Backends that have levels to come."""
        ended = _searched(done)
        return {name for name in self._modes if self._search.goal_of(name, ended) is not None}

    def _worth(self, found: Found) -> bool:
        held = found.last_good is not None and found.last_good >= 1
        return (
            found.goal == "capacity"
            and found.status == "found"
            and held
            and found.backend in self._restartable
        )

    def _verifying(self, found: Found) -> CellKey:
        return CellKey(
            found.backend,
            self._modes[found.backend],
            *self._lengths,
            found.last_good or 1.0,
            variant=VERIFIED,
        )
