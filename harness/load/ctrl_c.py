"""Ctrl-C (and SIGTERM) in a load process: whom it interrupts, and when."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gevent

logger = logging.getLogger(__name__)


def ctrl_c_to_main_greenlet() -> None:
    """Let Ctrl-C interrupt the greenlet that waits for the run, and no other.

    Python raises KeyboardInterrupt in whatever runs at that moment: a user in the middle of
    a request, or the reader of an answer, whose record would be lost with it.
    """
    hub = gevent.get_hub()
    # the greenlet in which the hub was made: the main one
    main: Any = hub.parent

    def on_ctrl_c(*_: object) -> None:
        if gevent.getcurrent() is main:
            raise KeyboardInterrupt
        hub.loop.run_callback_threadsafe(main.throw, KeyboardInterrupt)

    signal.signal(signal.SIGINT, on_ctrl_c)


def sigterm_to_main_greenlet() -> None:
    """Let SIGTERM end a headless run as Ctrl-C does.

    Locust takes care of it only once a shape's run is over; until then the process would
    just die.
    """
    hub = gevent.get_hub()
    main: Any = hub.parent
    gevent.signal_handler(signal.SIGTERM, hub.loop.run_callback, main.throw, KeyboardInterrupt)


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
