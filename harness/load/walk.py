"""What a run needs of the thing that makes the requests, closed loop or open.

A walk goes through the levels that its policy names. ``harness.load.session.Session`` is
the closed loop: a level is a number of users, each with one request in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from harness.load.clock import Clock
from harness.load.plan import RunPlan
from harness.load.preflight import PreparedBackend
from harness.plan.levels import LevelPolicy
from harness.records import CellKey, RequestRecord, RunEvent
from harness.workload import Workload


class CurrentLevel(Protocol):
    """The level being measured."""

    @property
    def cell(self) -> CellKey:
        """What is measured."""
        ...

    @property
    def unanswered(self) -> bool | None:
        """Whether the last requests got no answer: the backend may be gone. None: not known."""
        ...


class Course(Protocol):
    """The levels of a run as they are gone through, wherever the requests are made."""

    @property
    def level(self) -> CurrentLevel | None:
        """The level being measured; None when the walk is over."""
        ...

    @property
    def finished(self) -> bool:
        """Whether there is nothing more to do."""
        ...

    @property
    def wanted_users(self) -> int | None:
        """How many of Locust's users the current level needs; None when the walk is over."""
        ...

    @property
    def in_flight(self) -> int:
        """Requests being made now."""
        ...

    @property
    def waits_for_users(self) -> bool:
        """Whether the level cannot start for want of users."""
        ...

    @property
    def awaited(self) -> set[str]:
        """Backends that are idle now and have levels to come."""
        ...

    def tick(self) -> None:
        """Time passed; called some times a second."""
        ...

    def abort(self, reason: str) -> None:
        """End the walk now: this level ends with the reason, the others are skipped."""
        ...

    def give_up(self, backend: str, reason: str) -> None:
        """A backend is gone: leave out what is left of it, and go on where that can be."""
        ...

    def close(self) -> None:
        """Users leave as soon as they are free."""
        ...


class Walk(Course, Protocol):
    """A course whose users are in this process."""

    def join(self) -> Any:
        """A user has come; it calls ``request`` until that is False, then ``leave``.

        What is given stands for the user; only the walk looks into it.
        """
        ...

    def leave(self, member: Any) -> None:
        """A user is gone."""
        ...

    def request(self, member: Any) -> bool:
        """Let a user do its next piece of work; False when it is to leave."""
        ...


class WalkMaker(Protocol):
    """Makes the walk of one run."""

    def __call__(
        self,
        policy: LevelPolicy,
        workload: Workload,
        backends: Mapping[str, PreparedBackend],
        clock: Clock,
        *,
        emit: Callable[[RunEvent], None],
        record: Callable[[RequestRecord], None],
        worker: str,
    ) -> Walk:
        """Ready to start with its first level; ``worker`` stands in the records."""
        ...


class CourseMaker(Protocol):
    """Makes the course of one run, whose directory has its name."""

    def __call__(
        self,
        plan: RunPlan,
        run: str,
        *,
        emit: Callable[[RunEvent], None],
        record: Callable[[RequestRecord], None],
    ) -> Course:
        """Ready to start with its first level."""
        ...
