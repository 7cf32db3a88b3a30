"""Waiting for health with a clock that only sleeping moves."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from harness.errors import StackError
from harness.stack import health
from harness.stack.health import Waiting, first_error, reachable, tail, wait_until_healthy
from harness.stack.process import Started
from tests.stack.conftest import Shown


@dataclass
class Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s


def waiting(name: str, pid: int, folder: Path) -> Waiting:
    log = folder / f"{name}.log"
    log.write_text(f"{name} line 1\n{name} line 2\n")
    return Waiting(name, f"http://127.0.0.1/{name}", log, Started(pid, 0.0))


def test_each_server_is_noted_once_when_it_answers(
    tmp_path: Path, progress: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "exit_code", lambda started: None)
    clock = Clock()
    ready_s = {"http://127.0.0.1/paged": 20.0, "http://127.0.0.1/contiguous": 7.0}
    wait_until_healthy(
        [waiting("paged", 1, tmp_path), waiting("contiguous", 2, tmp_path)],
        progress,
        60.0,
        clock,
        clock.sleep,
        probe=lambda url: clock.now_s >= ready_s[url],
    )
    assert progress.notes == [
        "contiguous is healthy after 7 s: http://127.0.0.1/contiguous",
        "paged is healthy after 20 s: http://127.0.0.1/paged",
    ]
    assert progress.updates[0] == "waiting for paged and contiguous to start (0 s)"
    assert progress.updates[-1] == "waiting for paged to start (20 s)"


@pytest.mark.parametrize(("code", "how"), [(3, "exit code 3"), (-9, "signal SIGKILL")])
def test_a_death_shows_the_log_and_says_how(
    code: int, how: str, tmp_path: Path, progress: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "exit_code", lambda started: code if started.pid == 2 else None)
    clock = Clock()
    servers = [waiting("paged", 1, tmp_path), waiting("contiguous", 2, tmp_path)]
    with pytest.raises(StackError, match=f"contiguous ended with {how} while starting"):
        wait_until_healthy(servers, progress, 60.0, clock, clock.sleep, probe=lambda url: False)
    assert progress.tails == [
        (
            f"the last 2 lines of {tmp_path / 'contiguous.log'}:",
            ["contiguous line 1", "contiguous line 2"],
        )
    ]


def test_a_server_that_was_healthy_must_stay_alive_while_the_next_starts(
    tmp_path: Path, progress: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "exit_code", lambda started: 1 if started.pid == 1 else None)
    clock = Clock()
    with pytest.raises(StackError, match="paged ended"):
        wait_until_healthy(
            [waiting("contiguous", 2, tmp_path)],
            progress,
            60.0,
            clock,
            clock.sleep,
            probe=lambda url: False,
            healthy=[waiting("paged", 1, tmp_path)],
        )


def test_time_over_names_who_is_missing_and_shows_its_log(
    tmp_path: Path, progress: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "exit_code", lambda started: None)
    clock = Clock()
    with pytest.raises(StackError, match="paged: not healthy after 30 s"):
        wait_until_healthy(
            [waiting("paged", 1, tmp_path)],
            progress,
            30.0,
            clock,
            clock.sleep,
            probe=lambda url: False,
        )
    # polled every 0.25 s: over at the first poll after 30 s
    assert clock.now_s == 30.25
    assert len(progress.tails) == 1


def test_tail_keeps_the_last_lines_and_the_last_step_of_a_progress_bar(tmp_path: Path) -> None:
    log = tmp_path / "log"
    numbered = "".join(f"line {n}\n" for n in range(40))
    log.write_bytes(numbered.encode() + b"\n 10%\r 50%\r100%\nwin\r\nbad \xff byte")
    lines = tail(log, count=5)
    assert lines == ["line 38", "line 39", "100%", "win", "bad \N{REPLACEMENT CHARACTER} byte"]


def test_tail_of_a_missing_log_is_empty(tmp_path: Path) -> None:
    assert tail(tmp_path / "none") == []


def test_the_first_exception_is_the_cause_and_quoted_names_are_none(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "(Api pid=1) WARNING [a.py:2] limits can cause errors like `OSError: [Errno 24] Too many`\n"
        "Traceback (most recent call last):\n"
        "(Worker pid=3) ERROR 11-29 17:56:25 [b.py:10] ValueError: Available memory is less\n"
        "RuntimeError: Engine core initialization failed. See root cause above.\n"
    )
    assert first_error(log) == "ValueError: Available memory is less"
    log.write_text("torch.OutOfMemoryError: CUDA out of memory\n")
    assert first_error(log) == "torch.OutOfMemoryError: CUDA out of memory"
    log.write_text("all is well\n")
    assert first_error(log) is None


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (
            "error: --model: org/name: its config could not be read (no such repository)",
            "--model: org/name: its config could not be read (no such repository)",
        ),
        ("api_server.py: error: unrecognized arguments: --frob", "unrecognized arguments: --frob"),
    ],
)
def test_what_a_server_says_itself_is_the_cause(line: str, cause: str, tmp_path: Path) -> None:
    """Before it a library may have logged exceptions, and other lines may speak of errors."""
    log = tmp_path / "log"
    log.write_text(
        "WARNING a.b: retrying after an error: timeout\n"
        "httpx.ConnectError: [Errno -2] Name or service not known\n"
        f"{line}\n"
    )
    assert first_error(log) == cause


@pytest.mark.parametrize(
    ("status", "path", "alive"),
    [(200, "", True), (404, "", True), (401, "/base", True), (503, "", False)],
)
def test_a_server_is_reachable_unless_it_says_that_it_is_ill(
    status: int, path: str, alive: bool
) -> None:
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert reachable(f"{url}{path}") is alive
        thread.join()
        # one that does not speak TLS
        threading.Thread(target=server.handle_request).start()
        assert not reachable(url.replace("http", "https"))
    assert asked == [f"{path}/health"]
    assert not reachable(url)
