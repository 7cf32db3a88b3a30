"""What all tests need of the process that runs them."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Take Ctrl-C even where the caller ignores it.

    A shell starts its background jobs with SIGINT ignored, and an ignored signal stays so
    in every program that a test starts: the ones that test Ctrl-C would wait for ever.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
