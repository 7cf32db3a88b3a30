"""The steady part of a level's window, as the report shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: ``whole``      nothing trends over the whole window
#: ``part``       the longest stretch in which nothing trends is half of the window or more
#: ``none``       it is shorter, or there is none
#: ``too_short``  too few points to tell
SteadyState = Literal["whole", "part", "none", "too_short"]


@dataclass(frozen=True)
class Move:
    """A figure that trends over the whole window."""

    #: ``throughput``, ``TTFT``, ``KV usage``
    name: str
    #: change from start to end by the fitted line, over the median
    change: float


@dataclass(frozen=True)
class Steady:
    """The longest stretch of a window that is steady; monotonic seconds, None without one."""

    state: SteadyState
    start_s: float | None = None
    length_s: float | None = None
    #: of the window
    share: float | None = None
    #: share of the window's bins in which the load was full; None where none is asked for
    full_bins: float | None = None
    #: what trends over the whole window
    moves: tuple[Move, ...] = ()

    @property
    def unsteady(self) -> bool:
        """Whether at least half of the window should be steady and is not."""
        return self.state == "none"
