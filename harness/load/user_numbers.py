"""Numbers of users in the form in which Locust takes them. Pure."""

from __future__ import annotations

#: Locust complains about more; a level of 1,000 users takes 10 s to gather.
_MAX_SPAWN_RATE = 100
#: Makes a spawn rate another one for Locust, and the same for everybody else.
_NUDGE = 0.001


class UserNumbers:
    """How many users there should be, as a shape tells Locust once a second.

    Locust acts on changes only. A level with fewer users may begin and end between two
    ticks; its surplus users leave by themselves, and the next level waits for them in vain.
    """

    def __init__(self) -> None:
        self._last = 0
        self._nudge = 0.0

    def tick(self, wanted: int, *, missing: bool) -> tuple[int, float]:
        """(users, spawn rate), another pair than the last when users are ``missing``."""
        if missing and wanted == self._last:
            self._nudge = _NUDGE - self._nudge
        self._last = wanted
        return wanted, min(wanted, _MAX_SPAWN_RATE) + self._nudge
