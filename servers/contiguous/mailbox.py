"""Hands events from the engine thread to the coroutine that answers one request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from servers.contiguous.sequence import Event, Sequence


class Mailbox:
    """Events of one request, in order; used on the event loop only."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._closed = False
        self._waiter: asyncio.Future[None] | None = None

    def put(self, event: Event) -> None:
        """Add an event and wake the reader."""
        self._events.append(event)
        self._notify()

    def close(self) -> None:
        """The client has left: the reader gets nothing more."""
        self._closed = True
        self._notify()

    async def take(self) -> list[Event]:
        """All events that are there, at least one; none once closed."""
        if not self._events and not self._closed:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self._closed:
            return []
        events, self._events = self._events, []
        return events

    def _notify(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class LoopDelivery:
    """The engine's ``deliver``: one wake-up of the event loop per step, not per token."""

    def __init__(self) -> None:
        self._call: Callable[..., object] | None = None

    def bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Deliver on this loop from now on."""
        self._call = loop.call_soon_threadsafe

    def unbind(self) -> None:
        """Drop what comes from now on: the loop is about to close."""
        self._call = None

    def __call__(self, batch: list[tuple[Sequence, Event]]) -> None:
        """From the engine's thread."""
        if self._call is not None:
            self._call(_distribute, batch)


def _distribute(batch: list[tuple[Sequence, Event]]) -> None:
    for sequence, event in batch:
        sequence.sink(event)
