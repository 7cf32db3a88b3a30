"""Prediction against measurement, as the report shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.kv.capacity import Capacity

#: which of the two predictions the recorded arrivals fit
Fits = Literal["worst", "steady"]


@dataclass(frozen=True)
class Forecast:
    """The two predicted capacities, which of them fits what was recorded, and why."""

    worst: Capacity
    steady: Capacity
    fits: Fits
    why: str
    #: measured against the one that fits, in words with numbers; the first line sums it up
    difference: tuple[str, ...] = ()

    @property
    def fitting(self) -> Capacity:
        """The one that the measured knee is held against."""
        return self.worst if self.fits == "worst" else self.steady


@dataclass(frozen=True)
class Mover:
    """What one change would make of the predicted concurrency."""

    change: str
    old: int
    #: None where a figure is not known; ``working`` says which
    new: int | None
    #: the formula with its numbers, or why there is none
    working: str
