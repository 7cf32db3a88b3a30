"""One alarm of an event loop, to some tens of microseconds.

uvloop's own timers count whole milliseconds. On Linux the alarm is a timerfd (timerfd_create(2))
on CLOCK_MONOTONIC, which the loop polls like a socket; elsewhere it is the loop's timer.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable
from typing import Any

#: of timerfd_create and timerfd_settime: <time.h>, <sys/timerfd.h>
_CLOCK_MONOTONIC = 1
_ABSOLUTE = 1
_NANOSECONDS = 1_000_000_000


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("it_interval", _Timespec), ("it_value", _Timespec))


class Alarm:
    """Calls ``ring`` once per ``set``; the last call of ``set`` counts."""

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None
        self._fd = -1
        if sys.platform == "linux":
            self._libc: Any = ctypes.CDLL(None, use_errno=True)
            self._fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd >= 0:
            self._spec = _Itimerspec()
            self._argument = ctypes.byref(self._spec)
            loop.add_reader(self._fd, self._rang)

    def set(self, at_s: float) -> None:
        """Ring at that monotonic time; a past one rings at once."""
        if self._fd < 0:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_later(max(0.0, at_s - time.monotonic()), self._ring)
            return
        # 0 would disarm it
        ns = max(1, int(at_s * _NANOSECONDS))
        value = self._spec.it_value
        value.tv_sec, value.tv_nsec = divmod(ns, _NANOSECONDS)
        self._libc.timerfd_settime(self._fd, _ABSOLUTE, self._argument, None)

    def close(self) -> None:
        """No ring any more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _rang(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return
        self._ring()
