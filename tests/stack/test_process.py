"""Starting and stopping real processes by their mark."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from harness.errors import StackError
from harness.stack.health import answers
from harness.stack.process import (
    MARK,
    Started,
    exit_code,
    is_running,
    marked,
    start,
    started_s,
    stop,
)
from tests.stack.conftest import script, until
from tests.support.local_stack import free_port

GONE = "a test mark that no process carries"


@pytest.fixture
def mark() -> Iterator[str]:
    value = f"test-{os.urandom(8).hex()}"
    yield value
    for process in marked(value):
        process.kill()


def started(mark: str, behaviour: str, folder: Path) -> Started:
    port = free_port()
    one = start(script(port, behaviour), {"PATH": "/bin"}, mark, folder / "server.log")
    if behaviour in {"healthy", "stubborn", "family"}:
        until(lambda: answers(f"http://127.0.0.1:{port}"))
    return one


def end(mark: str, grace_s: float = 10.0) -> int:
    return stop(mark, grace_s, time.monotonic, time.sleep)


def test_a_started_process_leads_its_own_group_reads_nothing_and_writes_to_its_log(
    mark: str, tmp_path: Path
) -> None:
    one = started(mark, "healthy", tmp_path)
    assert os.getpgid(one.pid) == one.pid
    assert os.getsid(one.pid) == os.getsid(0)
    files = Path(f"/proc/{one.pid}/fd")
    assert (files / "0").readlink() == Path(os.devnull)
    assert (files / "2").readlink() == tmp_path / "server.log"
    assert is_running(one.pid, one.started_s)
    assert [process.pid for process in marked(mark)] == [one.pid]
    assert psutil.Process(one.pid).environ() == {"PATH": "/bin", MARK: mark, "SPT_NOENV": "1"}
    assert end(mark) == 0
    assert not is_running(one.pid, one.started_s)


def test_exit_codes_and_signals_are_told_apart(mark: str, tmp_path: Path) -> None:
    def code_of(program: str) -> int:
        one = start((sys.executable, "-c", program), {}, mark, tmp_path / "log")
        codes: list[int] = []

        def ended() -> bool:
            code = exit_code(one)
            codes.extend([] if code is None else [code])
            return bool(codes)

        until(ended)
        return codes[0]

    assert code_of("import sys; sys.exit(3)") == 3
    assert code_of("import os; os.kill(os.getpid(), 9)") == -9


def test_a_program_that_is_not_there_is_one_clear_error(mark: str, tmp_path: Path) -> None:
    with pytest.raises(StackError, match="no-such-program: cannot be started"):
        start((str(tmp_path / "no-such-program"),), {}, mark, tmp_path / "log")


def test_a_process_that_ignores_sigterm_is_killed_after_the_grace(
    mark: str, tmp_path: Path
) -> None:
    one = started(mark, "stubborn", tmp_path)
    assert end(mark, grace_s=0.3) == 1
    assert not is_running(one.pid, one.started_s)


def test_descendants_in_sessions_of_their_own_end_too(mark: str, tmp_path: Path) -> None:
    started(mark, "family", tmp_path)
    until(lambda: len(marked(mark)) == 3)
    end(mark)
    assert marked(mark) == []


def test_descendants_of_a_killed_server_end_too(mark: str, tmp_path: Path) -> None:
    one = started(mark, "family", tmp_path)
    until(lambda: len(marked(mark)) == 3)
    os.kill(one.pid, signal.SIGKILL)
    until(lambda: not is_running(one.pid, one.started_s))
    assert len(marked(mark)) == 2
    end(mark)
    assert marked(mark) == []


def test_stopping_what_is_not_there_does_nothing() -> None:
    assert end(GONE) == 0


def test_a_recycled_id_is_another_process() -> None:
    now = started_s(os.getpid())
    assert now is not None
    assert is_running(os.getpid(), now)
    # the same id, started at another time
    assert not is_running(os.getpid(), now - 1.0)
    assert started_s(2**22 + 1) is None


def test_stop_spares_a_living_process_without_the_mark(mark: str, tmp_path: Path) -> None:
    other = f"{mark}-other"
    one = started(other, "healthy", tmp_path)
    try:
        assert end(mark) == 0
        assert is_running(one.pid, one.started_s)
    finally:
        end(other)
