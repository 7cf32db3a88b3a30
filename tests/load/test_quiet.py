"""While it measures the process is not slowed by itself, and is as before afterwards."""

from __future__ import annotations

import gc
import os
import signal
import weakref

import pytest

from harness.load.quiet import QuietProcess


def priority() -> int:
    return os.getpriority(os.PRIO_PROCESS, 0)


def test_objects_of_before_are_out_of_the_collectors_sight_until_the_end() -> None:
    before, frozen = priority(), gc.get_freeze_count()
    quiet = QuietProcess()
    assert gc.get_freeze_count() > frozen + 1000
    quiet.end()
    assert gc.get_freeze_count() == 0
    assert priority() == before


def test_priority_is_raised_for_root_only_and_recorded_as_it_is() -> None:
    before = priority()
    quiet = QuietProcess()
    try:
        assert quiet.nice == priority()
        assert quiet.nice == (min(before, -10) if os.geteuid() == 0 else before)
    finally:
        quiet.end()


def test_without_permission_it_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(which: int, who: int, nice: int) -> None:
        raise PermissionError

    before = priority()
    monkeypatch.setattr(os, "setpriority", refuse)
    quiet = QuietProcess()
    assert quiet.nice == before
    quiet.end()


class Ring:
    """An object that only the collector can free."""

    def __init__(self) -> None:
        self.own = self


def test_ctrl_c_in_a_callback_of_the_collection_is_not_lost() -> None:
    """There Python prints the exception and goes on; a second Ctrl-C would be needed."""
    pressed: list[str] = []

    def press(_: object) -> None:
        pressed.append("during")
        signal.raise_signal(signal.SIGINT)

    frozen, handler = gc.get_freeze_count(), signal.getsignal(signal.SIGINT)
    # the ring is for the collection of the constructor, and for no earlier one
    gc.disable()
    try:
        kept = weakref.ref(Ring(), press)
        with pytest.raises(KeyboardInterrupt):
            QuietProcess()
    finally:
        gc.enable()
    assert pressed == ["during"] and kept() is None
    assert gc.get_freeze_count() == frozen
    assert signal.getsignal(signal.SIGINT) is handler
