"""What the analysis says of an open loop beyond what it says of any level."""

from __future__ import annotations

from dataclasses import dataclass

from harness.analysis.percentiles import Distribution


@dataclass(frozen=True)
class OpenFigures:
    """What only an open loop has: rates asked for and reached, lateness, backlog."""

    #: requests due in the window, those never sent included; all that were sent
    due: int
    unsent: int
    rate_due_rps: float | None
    #: requests of the window over the time until the last of them had left
    rate_sent_rps: float | None
    #: sent - intended
    lateness_s: Distribution
    max_concurrency: int | None
    #: requests of the window that waited because so many were in flight
    kept_back: int
    #: the rate rises all through the level
    ramp: bool
    #: each request has its own lengths
    replayed: bool
    #: due and not ended, mean of each quarter of the window
    outstanding: tuple[float, ...]
    #: due and not ended at the window's end, less those at its start
    growth: int
    #: more came due than the server ended, all through the window
    over_saturated: bool
