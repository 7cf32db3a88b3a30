"""Decides that a backend is lost: no user gets an answer, and nor does ``/health``.

A backend whose turn is not now has no users; of it ``/health`` alone tells.
"""

from __future__ import annotations

from collections.abc import Callable

from harness.load.clock import Clock

#: ``/health`` must fail for this long, so that a short hiccup or a restart of a proxy
#: does not end a run.
LOST_AFTER_S = 5.0


class BackendWatch:
    """Asked again and again about each backend that the run still needs."""

    def __init__(
        self, clock: Clock, healthy: Callable[[str], bool], lost_after_s: float = LOST_AFTER_S
    ) -> None:
        """``healthy(backend)`` asks the server; it may take some seconds to fail."""
        self._clock = clock
        self._healthy = healthy
        self._lost_after_s = lost_after_s
        self._sick_since_s: dict[str, float] = {}

    def is_lost(self, backend: str, *, unanswered: bool | None) -> bool:
        """Whether to give it up. ``unanswered``: no user's last request got an answer.

        None: that is not known, as while a level begins; the time that it has been sick goes
        on, or levels that all fail within seconds would each begin it anew.
        """
        if unanswered is None:
            return False
        if not unanswered or self._healthy(backend):
            self._sick_since_s.pop(backend, None)
            return False
        now = self._clock.monotonic()
        return now - self._sick_since_s.setdefault(backend, now) >= self._lost_after_s
