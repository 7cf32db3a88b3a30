"""The last level of a search, after a restart with what was found: whose server is waited for."""

from __future__ import annotations

import gevent
import pytest

from harness.errors import StackError
from harness.plan.search_types import VERIFIED
from tests.search.test_sessions import Told, follow, session
from tests.support.scripted_server import PATIENCE_S


def test_what_was_found_is_verified_once_its_server_is_back() -> None:
    restarted: list[tuple[str, int]] = []
    told = Told(lambda backend, level: restarted.append((backend, level)))
    with session(told, [2, 3], restartable=("a",)) as walk:
        follow(walk)
    assert restarted == [("a", 2)]
    assert told.cells("level_start")[-1] == "a 8+4 c2 verified"
    (event,) = told.of("server_restarted")
    assert event.detail == {"backend": "a", "flags": "--max-num-seqs 2"}
    assert event.cell is not None
    assert event.cell.variant == VERIFIED
    assert len(told.of("search_found")) == 1


def test_a_server_that_does_not_come_back_is_not_verified() -> None:
    def fails(backend: str, level: int) -> None:
        raise StackError("contiguous died")

    told = Told(fails)
    with session(told, [2], restartable=("a",)) as walk:
        follow(walk)
    assert walk.finished
    (skipped,) = told.of("level_skipped")
    assert skipped.detail["reason"] == "contiguous died"
    assert told.cells("level_start") == ["a 8+4 c2"]
    assert len(told.of("search_found")) == 1


def test_ctrl_c_in_a_restart_says_how_to_get_the_server_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    begun: list[str] = []

    def never_ready(backend: str, level: int) -> None:
        begun.append(backend)
        gevent.sleep(PATIENCE_S)

    told = Told(never_ready)
    with session(told, [2], restartable=("a",)) as walk:
        follow(walk, until=lambda: bool(begun))
    assert walk.finished
    assert "a was being restarted and is stopped now" in caplog.text
    assert "to have it back as it was: kvknee up --max-num-seqs 7" in caplog.text
    assert len(told.of("search_found")) == 1


def test_after_a_restart_that_failed_the_next_one_is_waited_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """b is not loaded while its server is being restarted, and Ctrl-C ends that."""
    begun: list[str] = []
    killed: list[str] = []

    def restart(backend: str, level: int) -> None:
        begun.append(backend)
        # as a start that takes its time: the walk goes on meanwhile
        gevent.sleep(0.02)
        if backend == "a":
            raise StackError("a died")
        try:
            gevent.sleep(PATIENCE_S)
        except gevent.GreenletExit:
            killed.append(backend)
            raise

    told = Told(restart)
    looks: list[int] = []

    def looked() -> bool:
        looks.append(len(begun))
        # some turns of the walk after the second restart has begun
        return looks.count(2) > 10

    with session(told, [2], restartable=("a", "b"), names=("a", "b")) as walk:
        follow(walk, until=looked)
    assert begun == ["a", "b"]
    assert told.cells("level_skipped") == ["a 8+4 c2 verified"]
    assert told.cells("level_start") == ["a 8+4 c2", "b 8+4 c2"]
    assert killed == ["b"]
    assert "b was being restarted and is stopped now" in caplog.text
