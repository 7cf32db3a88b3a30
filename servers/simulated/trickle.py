"""Bytes that are sent in order with pauses between them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from servers.simulated.link import Link


def _nothing() -> None:
    """For a part that nobody waits for."""


class Part(NamedTuple):
    """Some bytes, sent ``gap_s`` after what was sent before."""

    data: bytes
    gap_s: float = 0.0
    #: called just before they are sent
    before: Callable[[], None] = _nothing
    #: called when they have been
    after: Callable[[], None] = _nothing


class Trickle:
    """A queue of parts to one link."""

    def __init__(self, loop: asyncio.AbstractEventLoop, link: Link) -> None:
        self._loop = loop
        self._link = link
        self._queue: deque[Part] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, part: Part) -> None:
        """Send it when its turn has come: at once where nothing waits and it has no gap."""
        self._queue.append(part)
        if self._timer is None and len(self._queue) == 1:
            self._next()

    def cancel(self) -> None:
        """Nothing more is sent."""
        self._queue.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _next(self) -> None:
        while self._queue:
            if self._queue[0].gap_s > 0:
                self._timer = self._loop.call_later(self._queue[0].gap_s, self._due)
                return
            self._send()

    def _due(self) -> None:
        self._timer = None
        self._send()
        self._next()

    def _send(self) -> None:
        # taken off the queue last, so that what is added meanwhile waits its turn
        part = self._queue[0]
        part.before()
        if part.data:
            self._link.send(part.data)
        part.after()
        if self._queue:
            self._queue.popleft()
