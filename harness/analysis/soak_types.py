"""What a soak found of each backend: trends, and what was left at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: ``unclear``: the interval reaches beyond the limit, so more time is needed
DriftState = Literal["steady", "drifts", "unclear", "not_measured", "not_judged"]


@dataclass(frozen=True)
class Trend:
    """A straight line through a figure over time: Theil and Sen's slope and its interval.

    Per hour; the figure's own unit (bytes or seconds).
    """

    slope_per_h: float
    #: the interval of 95 %
    low_per_h: float
    high_per_h: float
    #: median of the figure, for scale
    typical: float
    #: points, one per stretch of load
    n: int


@dataclass(frozen=True)
class Drift:
    """One figure's trend held against the growth that is no drift."""

    name: str
    #: of the figure: ``bytes`` or ``s``
    unit: Literal["bytes", "s"]
    #: None with too few points
    trend: Trend | None
    #: growth per hour that is no drift, in the figure's unit; None without a trend
    limit_per_h: float | None
    state: DriftState


@dataclass(frozen=True)
class BackendSoak:
    """One backend over the whole soak."""

    backend: str
    drifts: tuple[Drift, ...]
    #: the last sample of KV bytes in use with nothing in flight; None: not measured
    kv_bytes_left: float | None
    #: whether the server states its KV bytes at all
    kv_stated: bool
    #: streams that the clients closed before their end
    cancelled: int
    #: from the first stretch that counts to the last
    hours: float

    @property
    def passed(self) -> bool:
        """Nothing drifts, nothing is unclear, no KV byte is left, something was measured.

        A server that states its KV bytes must have stated them in the last pause, too.
        """
        states = {drift.state for drift in self.drifts}
        if self.kv_stated and self.kv_bytes_left is None:
            return False
        return not self.kv_bytes_left and "steady" in states and not states & {"drifts", "unclear"}


@dataclass(frozen=True)
class SoakFigures:
    """What a soak says."""

    backends: tuple[BackendSoak, ...]

    @property
    def passed(self) -> bool:
        """Whether every backend passed, and there was one."""
        return bool(self.backends) and all(backend.passed for backend in self.backends)
