"""The master's walk through the levels, with workers that never come."""

from __future__ import annotations

from typing import Any

from harness.load.clock import SystemClock
from harness.load.distributed.conductor import Conductor
from harness.plan.levels import FixedLevels, interleaved_cells
from harness.records import RunEvent
from tests.load.test_settings import settings


class EmptyFleet:
    """No worker has told anything."""

    def __init__(self) -> None:
        self.crew: list[Any] = []
        self.on_progress: Any = None

    def send_all(self, message: object) -> None:
        """Nobody hears."""


def test_a_level_that_waits_when_the_run_ends_is_skipped_with_the_reason() -> None:
    cells = interleaved_cells([("a", "default")], (1.0, 2.0), 8, 4)
    events: list[RunEvent] = []
    fleet: Any = EmptyFleet()
    workload = settings(levels="1,2").workload
    conductor = Conductor(
        FixedLevels(cells), workload, ["a"], SystemClock(), fleet, "run", events.append
    )
    assert conductor.waits_for_users
    conductor.abort("users_lost")
    assert conductor.finished
    assert [(event.kind, event.cell, event.detail) for event in events] == [
        ("level_skipped", cell, {"reason": "users_lost"}) for cell in cells
    ]
