"""SIGTERM, and a lost terminal, as an exception: what was started is stopped, as after Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


class Terminated(KeyboardInterrupt):
    """Tidied up like Ctrl-C; names the signal. Unlike then, children may not have got it."""


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Raise Terminated in the main thread on SIGTERM and SIGHUP; once, the next ones are ignored.

    Who ends a job asks again after seconds, which must not cut the tidying short.
    """

    def on_signal(number: int, _: object) -> None:
        for each in numbers:
            signal.signal(each, lambda *_: None)
        raise Terminated(signal.Signals(number).name)

    # nohup has SIGHUP ignored, and so it stays
    lost = signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    numbers = (signal.SIGTERM, *((signal.SIGHUP,) if lost else ()))
    before = [(number, signal.signal(number, on_signal)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
