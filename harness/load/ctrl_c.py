"""Ctrl-C while results are being written."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)


@contextmanager
def ctrl_c_later() -> Iterator[None]:
    """Inside, Ctrl-C is only noted; it takes effect at the end.

    For stretches in which Python loses it: an exception in a callback of the garbage
    collector is printed and forgotten.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[bool] = []
    before = signal.signal(signal.SIGINT, lambda *_: pressed.append(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if pressed:
            signal.raise_signal(signal.SIGINT)


@contextmanager
def ctrl_c_waits() -> Iterator[None]:
    """Inside, Ctrl-C is answered with a line and changes nothing.

    The first one has ended the run; a second one in the seconds that its report takes would
    only lose it. Outside the main thread, where no handler can be set, nothing is done.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(
        signal.SIGINT,
        lambda *_: logger.warning("the run is over and its results are being written; a moment"),
    )
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
