"""Tells many sockets at once that there is something to read, at little cost for each.

gevent watches each socket by itself, and each wake-up of the process costs as much as
reading an event. Here all sockets of a process lie in one epoll set (epoll(7)), which
gevent watches as one. Where many packets come, the process rests a moment before it looks,
as network cards do before they interrupt: the kernel has stamped the packets on arrival, so
a look half a millisecond later costs no accuracy, and finds several.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import gevent
from gevent.monkey import get_original

from harness.load.clock import Clock

#: libev's EV_READ
_READ_EVENT = 1
#: From this rate on the process rests; below it a moment more is not worth having.
_BUSY_READS_PER_S = 5_000
_REST_S = 0.0005
#: How long reads are counted before their rate is judged anew.
_JUDGED_S = 0.1
#: After so many the timers of the loop have their turn.
_MOST_AT_ONCE = 512

Callback = Callable[[], None]
#: one for each hub, that is for each thread: gevent keeps its resolver in the same way
_LOOPS: WeakKeyDictionary[Any, ReadLoop] = WeakKeyDictionary()


class Watch(Protocol):
    """Watches one socket."""

    def start(self, callback: Callback) -> None:
        """Call back whenever there is something to read, or the peer closed."""
        ...

    def stop(self) -> None:
        """No more calls; a second call does nothing."""
        ...

    def close(self) -> None:
        """Let go of the watch, before the socket is closed."""
        ...


def watch_reads(fd: int, clock: Clock) -> Watch:
    """A watch for this greenlet's hub: a shared one where the system has epoll."""
    hub = gevent.get_hub()
    if not hasattr(select, "epoll"):
        watch: Watch = hub.loop.io(fd, _READ_EVENT)
        return watch
    if hub not in _LOOPS:
        _LOOPS[hub] = ReadLoop(hub.loop.io, clock, get_original("time", "sleep"))
    return _SharedWatch(_LOOPS[hub], fd)


class ReadLoop:
    """The sockets of one hub. Callbacks run in the hub; they must not raise or wait."""

    def __init__(
        self,
        watch: Callable[[int, int], Any],
        clock: Clock,
        rest: Callable[[float], None],
    ) -> None:
        """``watch`` makes the hub's watcher of a descriptor; ``rest`` stops the process."""
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callback] = {}
        self._watcher = watch(self._epoll.fileno(), _READ_EVENT)
        self._monotonic = clock.monotonic
        self._rest = rest
        self._reads, self._since_s = 0, clock.monotonic()
        #: whether packets come so fast that resting pays
        self.busy = False

    def add(self, fd: int, callback: Callback) -> None:
        """Call back while there is something to read."""
        if not self._callbacks:
            self._watcher.start(self.look)
        self._callbacks[fd] = callback
        self._epoll.register(fd, select.EPOLLIN)

    def remove(self, fd: int) -> None:
        """Forget a socket; one that is not there is no fault."""
        if self._callbacks.pop(fd, None) is None:
            return
        self._epoll.unregister(fd)
        if not self._callbacks:
            self._watcher.stop()

    def look(self) -> None:
        """Call back for every socket that has something; rest before it where many do."""
        if self.busy:
            self._rest(_REST_S)
        found = self._epoll.poll(0, _MOST_AT_ONCE)
        callbacks = self._callbacks
        for fd, _ in found:
            # an earlier one of these may have ended another's request
            callback = callbacks.get(fd)
            if callback is not None:
                callback()
        self._reads += len(found)
        now_s = self._monotonic()
        counted_s = now_s - self._since_s
        if counted_s >= _JUDGED_S:
            self.busy = self._reads > _BUSY_READS_PER_S * counted_s
            self._reads, self._since_s = 0, now_s


class _SharedWatch:
    """One socket's place in a loop."""

    def __init__(self, loop: ReadLoop, fd: int) -> None:
        self._loop, self._fd = loop, fd

    def start(self, callback: Callback) -> None:
        self._loop.add(self._fd, callback)

    def stop(self) -> None:
        self._loop.remove(self._fd)

    close = stop
