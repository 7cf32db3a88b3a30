"""Reads answers that have ended, in slices, so that reading makes nothing else late.

Users that end together leave hundreds of answers at one instant. Read in one go they would
hold up the event loop for some tenths of a second: next requests would be sent late, and
token events would wait until several share a read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import gevent

from harness.load.clock import Clock
from harness.load.exchange import Ended
from harness.records import RequestRecord

T = TypeVar("T")

#: Reading goes on for this long, or one answer, before the loop gets its turn.
_SLICE_S = 0.002
#: A timer, however short, lets the loop look at every connection first; ``sleep(0)`` does not.
_PAUSE_S = 0.0001


class AnswerReader(Generic[T]):
    """Hands the record of each answer to ``deliver``, in the order in which they ended.

    ``T`` is whatever the caller keeps beside an answer. ``deliver`` must not wait.
    """

    def __init__(self, deliver: Callable[[T, RequestRecord], None], clock: Clock) -> None:
        self._deliver = deliver
        self._clock = clock
        self._unread: deque[tuple[T, Ended]] = deque()
        self._reading = False

    def put(self, beside: T, over: Ended) -> None:
        """Read this one when its turn comes; returns at once."""
        self._unread.append((beside, over))
        if not self._reading:
            self._reading = True
            gevent.spawn(self._read_in_slices)

    def drain(self) -> None:
        """Read all that is left now."""
        while self._unread:
            self._read_next()

    def _read_next(self) -> None:
        beside, over = self._unread.popleft()
        self._deliver(beside, over.record())

    def _read_in_slices(self) -> None:
        try:
            while self._unread:
                end_s = self._clock.monotonic() + _SLICE_S
                self._read_next()
                while self._unread and self._clock.monotonic() < end_s:
                    self._read_next()
                if self._unread:
                    gevent.sleep(_PAUSE_S)
        finally:
            self._reading = False
