"""The search as the load asks it: the next level, and behind the last one what is verified."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from harness.plan.search_types import Found, LevelVerdict
from harness.records import CellKey, LevelSummary

#: variant of a cell that is measured after its server was restarted with what was found
VERIFIED = "verified"


class Search(Protocol):
    """Where the knees are looked for; see ``harness.plan.knee_search``."""

    def next_cell(self, done: Sequence[LevelSummary]) -> CellKey | None:
        """The next level; None when all is known or time is up."""
        ...

    def found(self) -> tuple[Found, ...]:
        """What is known now, per backend and goal."""
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
        cell = self._search.next_cell([item for item in done if not item.cell.variant])
        if cell is not None:
            return cell
        finished = {item.cell for item in done}
        cells = [self._verifying(found) for found in self.found() if self._worth(found)]
        return next((cell for cell in cells if cell not in finished), None)

    def found(self) -> tuple[Found, ...]:
        """What is known now."""
        return self._search.found()

    def capacity_of(self, backend: str) -> Found | None:
        """How many requests at once a backend was found to hold."""
        return next(
            (f for f in self.found() if f.backend == backend and f.goal == "capacity"), None
        )

    def unfinished(self) -> set[str]:
        """Backends of which not all is found yet."""
        return {found.backend for found in self.found() if found.status == "undecided"}

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
