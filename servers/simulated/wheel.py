"""Many deadlines, one alarm: what is due is done in the order of its time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Protocol

from servers.simulated.alarm import Alarm

#: how many deadlines are met before the loop may read its sockets again: at some 15 us each
#: a request waits a millisecond for its time stamp at most
_AT_ONCE = 64
#: after a turn the next one comes no sooner: waking up costs as much as a deadline, and with a
#: thousand streams there is one every 20 us
_REST_S = 0.0001


class Item(Protocol):
    """Something with deadlines."""

    def fire(self) -> float | None:
        """Do what is due; returns the next deadline (monotonic seconds), None for no more."""
        ...


class Wheel:
    """Fires items when they are due; ``idle`` is called whenever none is left."""

    def __init__(self, loop: asyncio.AbstractEventLoop, idle: Callable[[], None]) -> None:
        self._loop = loop
        self._idle = idle
        self._heap: list[tuple[float, int, Item]] = []
        self._count = 0
        self._set_for = float("inf")
        self._turning = False
        self._alarm = Alarm(loop, self._turn)

    def add(self, due_s: float, item: Item) -> None:
        """Fire ``item`` at that time."""
        self._count += 1
        heappush(self._heap, (due_s, self._count, item))
        if due_s < self._set_for and not self._turning:
            self._arm()

    def close(self) -> None:
        """Nothing fires any more."""
        self._heap.clear()
        self._alarm.close()

    def _arm(self, earliest_s: float = 0.0) -> None:
        self._set_for = max(self._heap[0][0], earliest_s)
        self._alarm.set(self._set_for)

    def _turn(self) -> None:
        """Fire what is due, a limited number; the rest after the loop has looked around."""
        heap, monotonic = self._heap, time.monotonic
        self._turning = True
        left = _AT_ONCE
        try:
            while heap and left and heap[0][0] <= monotonic():
                _, number, item = heappop(heap)
                due_s = item.fire()
                if due_s is not None:
                    heappush(heap, (due_s, number, item))
                left -= 1
        finally:
            self._turning = False
            self._set_for = float("inf")
            if heap and left:
                self._arm(monotonic() + _REST_S)
            elif heap:
                # a time in the past rings in the loop's next round
                self._arm()
        if not heap:
            self._idle()
