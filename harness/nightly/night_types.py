"""One night as the job leaves it and the outputs show it: frozen, None where absent. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from harness.nightly.gate_types import GateLimits, Reading, Series, Verdict
from harness.nightly.sight import ChangePoint, Sight

#: ``cell failed`` and ``run failed`` leave the other runs of the night as they are.
EventKind = Literal[
    "preflight", "server restarted", "run failed", "cell failed", "interrupted", "pruned"
]


@dataclass(frozen=True)
class NightRun:
    """One repeat of one run of the suite; ``seconds`` is its wall time, ``folder`` its run's."""

    name: str
    repeat: int
    exit_code: int
    seconds: float
    #: under the results folder; None when the load made none
    folder: str | None


@dataclass(frozen=True)
class NightEvent:
    """What went wrong or was done beside the plan, at wall-clock seconds."""

    at_wall_s: float
    kind: EventKind
    text: str


@dataclass(frozen=True)
class Judged:
    """A series with all that is known of it. ``level`` is None for a figure of a whole run.

    ``earlier`` are all comparable nights before tonight, oldest first, also those that were kept
    out of the baseline; left empty, the baseline's are shown.
    """

    run: str
    backend: str
    model: str
    level: int | None
    series: Series
    verdict: Verdict
    sight: Sight
    since: ChangePoint | None = None
    earlier: tuple[Reading, ...] = ()

    @property
    def nights(self) -> tuple[Reading, ...]:
        """The nights before tonight that are shown."""
        return self.earlier or self.series.baseline


@dataclass(frozen=True)
class Night:
    """All of a night. ``exit_code``: 0 ok, 1 regression, 2 could not judge, 3 the job failed.

    ``setup_changes`` says per run and backend what differs from the newest night of another
    setup, where tonight's has no comparable baseline.
    """

    night_id: str
    suite: str
    at_wall_s: float
    seconds: float
    kvknee_version: str
    machine: str
    runs: tuple[NightRun, ...]
    judged: tuple[Judged, ...]
    events: tuple[NightEvent, ...]
    setup_changes: tuple[str, ...]
    exit_code: int
    #: those that the gate judged by
    limits: GateLimits = field(default_factory=GateLimits)

    @property
    def alarms(self) -> tuple[Judged, ...]:
        """What fails the night."""
        return tuple(item for item in self.judged if item.verdict.alarm)
