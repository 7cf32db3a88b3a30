"""Limits on one request: for the whole of it, and for silence within it."""

from __future__ import annotations

from types import TracebackType

import gevent

from harness.load.clock import Clock


class ExpiredError(Exception):
    """A limit was reached; the text says which."""


class Watchdog:
    """Throws ExpiredError into the greenlet that entered it when a limit is reached.

    Costs nothing per read: silence is checked when the idle time *could* have passed,
    not by a timer that every read sets anew.
    """

    def __init__(self, clock: Clock, *, request_timeout_s: float, idle_timeout_s: float) -> None:
        self._clock = clock
        now = clock.monotonic()
        self._deadline_s = now + request_timeout_s
        self._request_text = f"no end within {request_timeout_s:g} s (--request-timeout)"
        self._idle_timeout_s = idle_timeout_s
        self._idle_text = f"nothing received for {idle_timeout_s:g} s (--idle-timeout)"
        self._last_s = now
        self._greenlet = gevent.getcurrent()
        self._timer: object = None

    def touch(self, now_s: float) -> None:
        """Something was received."""
        self._last_s = now_s

    def end_within(self, seconds: float) -> None:
        """All that matters has arrived: wait no longer than this for the rest."""
        self._deadline_s = min(self._deadline_s, self._clock.monotonic() + seconds)
        self._arm()

    def __enter__(self) -> Watchdog:
        self._arm()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._disarm()

    def _arm(self) -> None:
        self._disarm()
        due_s = min(self._deadline_s, self._last_s + self._idle_timeout_s)
        # never zero: the loop must have turned before the next check
        delay_s = max(due_s - self._clock.monotonic(), 0.001)
        timer = gevent.get_hub().loop.timer(delay_s)
        timer.start(self._check)
        self._timer = timer

    def _disarm(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.stop()  # type: ignore[attr-defined]
            timer.close()  # type: ignore[attr-defined]

    def _check(self) -> None:
        now = self._clock.monotonic()
        if now >= self._deadline_s:
            self._greenlet.throw(ExpiredError(self._request_text))
        elif now >= self._last_s + self._idle_timeout_s:
            self._greenlet.throw(ExpiredError(self._idle_text))
        else:
            self._arm()
