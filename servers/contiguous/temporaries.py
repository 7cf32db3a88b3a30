"""What a step allocates and frees again: logits, attention, copies of the cache.

torch's CUDA allocator counts it exactly: the peak within a step, less what was allocated
before or after it, whichever is more (so KV that the step stores, or frees, is not counted).
The peak counter is reset at every step. Figures are those of the steps of the last
``WINDOW_S`` seconds, so that whoever scrapes as often misses none, two scrapers do not take
each other's, and a level's figures are its own. On a CPU torch keeps no such count: absent.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

#: seconds for which a step's figures are shown
WINDOW_S = 5.0


@dataclass(frozen=True)
class StepPeak:
    """The largest figures of some steps, in bytes."""

    temporary_bytes: int
    #: torch.cuda.max_memory_allocated
    allocated_bytes: int


class StepPeaks:
    """``begin`` and ``end`` on the engine's thread, ``latest`` on any."""

    def __init__(
        self,
        clock: Callable[[], float],
        stats: Callable[[], Mapping[str, int]] = torch.cuda.memory_stats,
        reset: Callable[[], None] = torch.cuda.reset_peak_memory_stats,
    ) -> None:
        self._clock = clock
        self._stats = stats
        self._reset = reset
        self._before = 0
        self._lock = threading.Lock()
        self._steps: deque[tuple[float, StepPeak]] = deque()

    def begin(self) -> None:
        """A step begins."""
        self._reset()
        self._before = self._stats()["allocated_bytes.all.current"]

    def end(self) -> None:
        """It has ended."""
        stats, now = self._stats(), self._clock()
        peak, after = stats["allocated_bytes.all.peak"], stats["allocated_bytes.all.current"]
        with self._lock:
            self._steps.append((now, StepPeak(peak - max(self._before, after), peak)))
            while now - self._steps[0][0] > WINDOW_S:
                self._steps.popleft()

    def latest(self) -> StepPeak | None:
        """The largest of the last ``WINDOW_S`` seconds; None when no step ended in them."""
        since = self._clock() - WINDOW_S
        with self._lock:
            recent = [peak for at, peak in self._steps if at >= since]
        if not recent:
            return None
        return StepPeak(
            max(peak.temporary_bytes for peak in recent),
            max(peak.allocated_bytes for peak in recent),
        )


def step_peaks(device: torch.device, clock: Callable[[], float]) -> StepPeaks | None:
    """A meter where torch can count; None on a CPU."""
    return StepPeaks(clock) if device.type == "cuda" else None
