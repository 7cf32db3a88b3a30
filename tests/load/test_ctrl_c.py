"""Ctrl-C in a Locust process."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import gevent
import pytest

from harness.load.ctrl_c import ctrl_c_to_main_greenlet


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    ctrl_c_to_main_greenlet()
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_lets_a_request_go_on_and_interrupts_the_wait_for_the_run() -> None:
    done: list[str] = []

    def request() -> None:
        signal.raise_signal(signal.SIGINT)
        # Python would have raised it here, in the middle of the request
        done.append("answer read")

    user = gevent.spawn(request)
    with pytest.raises(KeyboardInterrupt):
        gevent.sleep(60)
    assert done == ["answer read"]
    assert user.successful()


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_outside_every_user_interrupts_at_once() -> None:
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
