"""Watches the load generator itself: is the client the bottleneck?

Three figures per second: the largest lag of the event loop (how late a short sleep ended),
the process's CPU time as a ratio of one core, and how many closed connections of the
machine still hold their ports. Kernel stamps keep arrivals exact
through lag, but a lagging client sends its next request late.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import gevent

from harness.load.clock import Clock
from harness.load.ports import time_wait
from harness.records import RunEvent

_LAG_SAMPLE_S = 0.05
_REPORT_S = 1.0


class LagMeter:
    """Collects lag and CPU time between reports. Pure but for the clocks passed in."""

    def __init__(
        self,
        clock: Clock,
        cpu_s: Callable[[], float] = time.process_time,
        closed: Callable[[], int | None] = time_wait,
    ) -> None:
        self._clock = clock
        self._closed = closed
        self.cpu_s = cpu_s
        #: the largest lag since the last report
        self.worst_s = 0.0
        self._since_s = clock.monotonic()
        self._cpu_since_s = cpu_s()

    def woke(self, due_s: float) -> None:
        """A sleep that should have ended at ``due_s`` ended now."""
        self.worst_s = max(self.worst_s, self._clock.monotonic() - due_s)

    def report(self, in_flight: int) -> RunEvent | None:
        """The sample of the last second; None while it is not over."""
        now, cpu = self._clock.monotonic(), self.cpu_s()
        elapsed = now - self._since_s
        if elapsed < _REPORT_S:
            return None
        event = RunEvent(
            t_s=now,
            kind="client_sample",
            detail={
                "loop_lag_s": round(self.worst_s, 6),
                "cpu_ratio": round((cpu - self._cpu_since_s) / elapsed, 4),
                "in_flight": in_flight,
                "time_wait": self._closed(),
            },
        )
        self.worst_s, self._since_s, self._cpu_since_s = 0.0, now, cpu
        return event


def watch_client(
    clock: Clock, in_flight: Callable[[], int], emit: Callable[[RunEvent], None]
) -> None:
    """Sample until killed; the body of a greenlet."""
    meter = LagMeter(clock)
    while True:
        due_s = clock.monotonic() + _LAG_SAMPLE_S
        gevent.sleep(_LAG_SAMPLE_S)
        meter.woke(due_s)
        event = meter.report(in_flight())
        if event is not None:
            emit(event)
