"""Limits on one request: for the whole of it, and for silence within it."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol

import gevent

from harness.load.clock import Clock

#: How often a request is looked at, and the silence after which one that has said all is over.
_LOOK_S = 1.0


class ExpiredError(Exception):
    """A limit was reached; the text says which."""


class Progress(Protocol):
    """What a watchdog sees of a request."""

    @property
    def last_read_s(self) -> float | None:
        """Monotonic time of the last read; None before the first."""
        ...

    @property
    def said_all(self) -> bool:
        """Whether only the end of the HTTP framing is missing."""
        ...


class Watchdog:
    """Throws ExpiredError into the greenlet that entered it when a limit is reached.

    Costs nothing per read: it looks once a second, and when a limit *could* be reached.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        request_timeout_s: float,
        idle_timeout_s: float,
        progress: Progress,
    ) -> None:
        self._clock = clock
        self._progress = progress
        now = clock.monotonic()
        self._begun_s = now
        self._deadline_s = now + request_timeout_s
        self._request_text = f"no end within {request_timeout_s:g} s (--request-timeout)"
        self._idle_timeout_s = idle_timeout_s
        self._idle_text = f"nothing received for {idle_timeout_s:g} s (--idle-timeout)"
        self._greenlet = gevent.getcurrent()
        self._timer: object = None

    def __enter__(self) -> Watchdog:
        self._arm(self._begun_s)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._disarm()

    def _last_s(self) -> float:
        last_s = self._progress.last_read_s
        return self._begun_s if last_s is None else last_s

    def _arm(self, now_s: float) -> None:
        self._disarm()
        due_s = min(self._deadline_s, self._last_s() + self._idle_timeout_s, now_s + _LOOK_S)
        # never zero: the loop must have turned before the next check
        timer = gevent.get_hub().loop.timer(max(due_s - now_s, 0.001))
        timer.start(self._check)
        self._timer = timer

    def _disarm(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.stop()  # type: ignore[attr-defined]
            timer.close()  # type: ignore[attr-defined]

    def _check(self) -> None:
        now_s = self._clock.monotonic()
        text = self._reached(now_s)
        if text is None:
            self._arm(now_s)
        else:
            self._greenlet.throw(ExpiredError(text))

    def _reached(self, now_s: float) -> str | None:
        """Which limit is reached, in words."""
        silent_s = now_s - self._last_s()
        if now_s >= self._deadline_s:
            return self._request_text
        if silent_s >= self._idle_timeout_s:
            return self._idle_text
        if silent_s >= _LOOK_S and self._progress.said_all:
            return "no end of the HTTP framing after [DONE]"
        return None
