"""From a worker's clock to the master's, estimated from round trips. Pure.

A worker notes its own time, the master answers with its own: somewhere between the worker's
two readings both clocks were read at once. With the middle as the guess the error is at most
half of the round trip, so the narrowest of the last round trips is taken (Cristian, 1989:
"Probabilistic clock synchronization").
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path

#: Round trips that are looked back over, one a second: clocks drift by some 10 us a second.
_KEPT = 60
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Offset:
    """Added to the worker's time it gives the master's, to within the uncertainty."""

    offset_s: float
    uncertainty_s: float

    def to_master(self, own_s: float) -> float:
        """A time of the worker's clock in the master's."""
        return own_s + self.offset_s

    def to_own(self, t_s: float) -> float:
        """A time of the master's clock in the worker's."""
        return t_s - self.offset_s


SAME_CLOCK = Offset(0.0, 0.0)


class ClockMap:
    """The round trips of one worker."""

    def __init__(self, *, same_kernel: bool) -> None:
        """Processes of one kernel share ``CLOCK_MONOTONIC`` unless a namespace parts them."""
        self._same_kernel = same_kernel
        self._trips: deque[Offset] = deque(maxlen=_KEPT)

    @property
    def trips(self) -> int:
        """How many are known."""
        return len(self._trips)

    def answered(self, sent_own_s: float, master_s: float, received_own_s: float) -> None:
        """A round trip has ended."""
        middle = (sent_own_s + received_own_s) / 2
        self._trips.append(Offset(master_s - middle, (received_own_s - sent_own_s) / 2))

    def offset(self) -> Offset:
        """The best guess; on one kernel no guess is needed, unless every trip denies it."""
        if not self._trips:
            return SAME_CLOCK
        best = min(self._trips, key=lambda trip: trip.uncertainty_s)
        if self._same_kernel and abs(best.offset_s) <= best.uncertainty_s:
            return SAME_CLOCK
        return best


def boot_id(path: Path = _BOOT_ID) -> str | None:
    """Linux' name for this boot of this kernel; None elsewhere."""
    try:
        return path.read_text(encoding="ascii").strip() or None
    except OSError:
        return None
