"""What the user sees while the stack starts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Console


class Progress(Protocol):
    """Where progress is shown."""

    def update(self, text: str) -> None:
        """What is going on now; called often, replaces the last such text."""

    def note(self, text: str) -> None:
        """Something that happened; stays."""

    def log_tail(self, title: str, lines: Sequence[str]) -> None:
        """The last lines of a log, as they are."""


@contextmanager
def shown(
    console: Console, clock: Callable[[], float] = time.monotonic, every_s: float = 5.0
) -> Iterator[Progress]:
    """Progress on a console: a status line on a terminal, else a plain line now and then."""
    if console.is_terminal:
        with console.status("starting") as status:
            yield _Shown(console, status.update)
    else:
        yield _Shown(console, _Throttled(console, clock, every_s))


class _Shown:
    def __init__(self, console: Console, show: Callable[[str], None]) -> None:
        self._console = console
        self._show = show

    def update(self, text: str) -> None:
        self._show(text)

    def note(self, text: str) -> None:
        _plain(self._console, text)

    def log_tail(self, title: str, lines: Sequence[str]) -> None:
        _plain(self._console, title)
        for line in lines:
            _plain(self._console, f"  {line}")


class _Throttled:
    """Prints a text at most every ``every_s`` seconds; what comes between is dropped."""

    def __init__(self, console: Console, clock: Callable[[], float], every_s: float) -> None:
        self._console = console
        self._clock = clock
        self._every_s = every_s
        self._next_s = clock() + every_s

    def __call__(self, text: str) -> None:
        now_s = self._clock()
        if now_s >= self._next_s:
            self._next_s = now_s + self._every_s
            _plain(self._console, text)


def _plain(console: Console, text: str) -> None:
    """Other people's text is no markup, and is not broken at the console's width."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)
