"""Is the load generator the limit right now?

The report's rule (``harness.analysis.client``) with the report's limits, over the last
seconds instead of a level's window, so that it can be seen while it happens.
"""

from __future__ import annotations

from collections import deque
from statistics import median

from harness.analysis.client import (
    CPU_LIMIT,
    LAG_FLOOR_KERNEL_S,
    LAG_SHARE_KERNEL,
    LATENESS_FLOOR_S,
    LATENESS_SHARE,
)
from harness.analysis.client_samples import MIN_SAMPLES
from harness.live.buckets import NS_PER_S

#: Seconds of samples, and requests, that the verdict looks back over.
_SAMPLES = 5
_REQUESTS = 200


class ClientBound:
    """The last samples of one level."""

    def __init__(self) -> None:
        self._cpu: deque[float] = deque(maxlen=_SAMPLES)
        self._lag_s: deque[float] = deque(maxlen=_SAMPLES)
        self._late_ns: deque[int] = deque(maxlen=_REQUESTS)
        self._ttft_ns: deque[int] = deque(maxlen=_REQUESTS)

    def sampled(self, cpu_ratio: float, lag_s: float) -> None:
        """One sample of the client."""
        self._cpu.append(cpu_ratio)
        self._lag_s.append(lag_s)

    def requested(self, late_ns: int | None, ttft_ns: int | None) -> None:
        """One request has ended."""
        if late_ns is not None:
            self._late_ns.append(late_ns)
        if ttft_ns is not None:
            self._ttft_ns.append(ttft_ns)

    def verdict(self) -> bool | None:
        """Whether the client is the limit; None while there are too few samples."""
        if len(self._cpu) < MIN_SAMPLES:
            return None
        ttft_s = median(self._ttft_ns) / NS_PER_S if self._ttft_ns else 0.0
        late_s = median(self._late_ns) / NS_PER_S if self._late_ns else 0.0
        return (
            median(self._cpu) > CPU_LIMIT
            or median(self._lag_s) > max(LAG_FLOOR_KERNEL_S, LAG_SHARE_KERNEL * ttft_s)
            or late_s > max(LATENESS_FLOOR_S, LATENESS_SHARE * ttft_s)
        )
