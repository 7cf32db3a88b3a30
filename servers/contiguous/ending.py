"""Ends the process although something in it does not: a thread in foreign code cannot be stopped.

Nothing is lost: the server keeps no state, and its clients' connections are closed.
"""

from __future__ import annotations

import os
import sys
import threading


def leave(why: str) -> None:
    """Exit with code 0 without waiting for any thread, and say why on stderr."""
    print(f"contiguous server: {why}; exits without waiting for it", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def deadline(seconds: float) -> threading.Timer:
    """A timer, not started yet, that leaves when the stop has taken too long."""
    why = f"something still runs {seconds:g} s after the signal"
    timer = threading.Timer(seconds, leave, (why,))
    timer.daemon = True
    return timer
