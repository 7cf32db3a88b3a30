"""Clocks, passed in so that tests can fake them; the map from kernel stamps to monotonic.

Every time in a record is ``CLOCK_MONOTONIC``. Kernel receive stamps are wall-clock
(``CLOCK_REALTIME``); the offset between the two is sampled before and after each request.
NTP slews both clocks alike, so the offset changes only when wall time is *stepped*: the
stamps of such a request cannot be mapped and its arrivals fall back to the monotonic time
at which the client read them.
"""

from __future__ import annotations

import time
from typing import Protocol

#: A change of offset above this is a step; sampling noise is some microseconds.
STEP_LIMIT_S = 0.0005


class Clock(Protocol):
    """What the load needs of time."""

    def monotonic(self) -> float:
        """Seconds of ``CLOCK_MONOTONIC``."""
        ...

    def wall(self) -> float:
        """Seconds since the epoch; may be stepped."""
        ...


class SystemClock:
    """The machine's clocks."""

    #: as they are: read after every packet, so another call around them would count
    monotonic = staticmethod(time.monotonic)
    wall = staticmethod(time.time)


def wall_offset_s(clock: Clock, tries: int = 3) -> float:
    """Wall minus monotonic time: the tightest of a few samples.

    The wall clock is read between two monotonic reads; where the process was preempted
    between them they lie far apart, so the sample with the narrowest bracket is taken.
    """
    best_width, best_offset = float("inf"), 0.0
    for _ in range(tries):
        before = clock.monotonic()
        wall = clock.wall()
        after = clock.monotonic()
        if after - before < best_width:
            best_width, best_offset = after - before, wall - (before + after) / 2
    return best_offset


def clock_step_s(offset_before_s: float, offset_after_s: float) -> float | None:
    """By how much wall time was stepped between two samples; None when it was not."""
    step = offset_after_s - offset_before_s
    return step if abs(step) > STEP_LIMIT_S else None
