"""One level on a worker: its users, and the master's orders."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from harness.load.distributed.clock_map import Offset
from harness.load.level_users import LevelUsers
from harness.load.phases import Order, Phase, Tally
from harness.records import CellKey, EventKind, Outcome, RunEvent, Scalar


class WorkerLevel:
    """What ``harness.load.crew`` sees of a level that is decided elsewhere.

    Its users' times are this machine's; orders and tallies are in the master's time.
    """

    def __init__(
        self, cell: CellKey, number: int, offset: Offset, note: Callable[[RunEvent], None]
    ) -> None:
        """``note`` is told of its start and end, in the master's time, for live metrics."""
        self._cell = cell
        self.number = number
        self._offset = offset
        self._note = note
        self._users: LevelUsers | None = None

    @property
    def cell(self) -> CellKey:
        """What is measured."""
        return self._cell

    @property
    def may_send(self) -> bool:
        """Whether a free user sends another request."""
        return self._users is not None and self._users.phase.may_send

    @property
    def in_flight(self) -> int:
        """Requests being made now."""
        return self._users.in_flight if self._users is not None else 0

    def start(self, users: int, first: int) -> None:
        """The users are numbered; they wait for the order to send."""
        self._users = LevelUsers(users, first)

    def obey(self, order: Order, now_s: float) -> None:
        """A phase has begun; ``now_s`` is the master's time."""
        users = self._users
        if users is None:
            return
        users.obey(
            Order(
                phase=order.phase,
                open_s=_own(order.open_s, self._offset),
                close_s=_own(order.close_s, self._offset),
            )
        )
        if order.phase is Phase.WARMUP:
            self._tell("level_start", now_s, {"users": users.users})
        elif order.phase is Phase.DONE:
            self._tell("level_end", now_s, {})

    def tally(self) -> Tally | None:
        """How far its users are; None before the start."""
        if self._users is None:
            return None
        tally = self._users.tally()
        if tally.warm_s is None:
            return tally
        return msgspec.structs.replace(tally, warm_s=self._offset.to_master(tally.warm_s))

    def begun(self, user: int) -> None:
        """A user took up a request."""
        self._started().begun(user)

    def sent(self, user: int, t_sent_s: float) -> None:
        """Its first byte is about to be written."""
        self._started().sent(user, t_sent_s)

    def judged(self, user: int, outcome: Outcome) -> None:
        """It was read."""
        self._started().judged(user, outcome)

    def ended(self, user: int, t_end_s: float) -> None:
        """It is over."""
        self._started().ended(user, t_end_s)

    def _started(self) -> LevelUsers:
        users = self._users
        assert users is not None  # noqa: S101 - nobody sends before the start
        return users

    def _tell(self, kind: EventKind, t_s: float, detail: dict[str, Scalar]) -> None:
        self._note(RunEvent(t_s=t_s, kind=kind, cell=self._cell, detail=detail))


def _own(t_s: float | None, offset: Offset) -> float | None:
    return None if t_s is None else offset.to_own(t_s)
