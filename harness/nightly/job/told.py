"""Telling people, at a night's expense never: who reads may go away, a log's disk may be full.

What cannot be shown is lost; the night, its reports and its exit code are as they were. That is
more than politeness: rich ends the process of a closed pipe with 1, and 1 is a regression.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence

from rich.console import Console

from harness.stack.progress import Progress


class PatientConsole(Console):
    """A console whose reader may go away; from then on it says nothing."""

    def on_broken_pipe(self) -> None:
        """Instead of an exit: leave no stream behind that fails again when Python ends."""
        self.quiet = True
        # a stream of a test has no descriptor
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            try:
                os.dup2(nowhere, self.file.fileno())
            finally:
                os.close(nowhere)


class Told:
    """Progress that is lost where it cannot be written."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def update(self, text: str) -> None:
        """As ``Progress``."""
        told(lambda: self._progress.update(text))

    def note(self, text: str) -> None:
        """As ``Progress``."""
        told(lambda: self._progress.note(text))

    def log_tail(self, title: str, lines: Sequence[str]) -> None:
        """As ``Progress``."""
        told(lambda: self._progress.log_tail(title, lines))


def told(show: Callable[[], None]) -> bool:
    """Whether it could be shown."""
    try:
        show()
    except (OSError, UnicodeError):
        return False
    return True
