"""The whole verb with its two processes, against a stand-in for the paced server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from harness.calibrate import levels, session
from harness.calibrate.processes import paced_server, server_command, server_cores
from harness.calibrate.stored import calibration_path, read_calibration, write_calibration
from harness.cli import run
from harness.errors import CalibrationError
from harness.load import machine
from tests.calibrate.support import calibration, level

ROOT = Path(__file__).parents[2]
#: an answer takes 0.05 + 63 / 1000 s = 0.11 s at this rate
FAST = ("--rate", "1000", "--seconds", "0.6")


def fake_server(monkeypatch: pytest.MonkeyPatch, *options: str) -> None:
    def command(ttft_s: float, itl_s: float) -> list[str]:
        pace = ("--ttft", str(ttft_s), "--itl", str(itl_s))
        return [sys.executable, "-m", "tests.calibrate.fake_paced", *pace, *options]

    monkeypatch.setattr(levels, "server_command", command)
    monkeypatch.chdir(ROOT)


def calibrate(home: Path, *arguments: str) -> int:
    return run(["calibrate", "--home", str(home), *FAST, *arguments])


def test_levels_are_measured_shown_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_server(monkeypatch)
    assert calibrate(tmp_path, "--streams", "1,3", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert [found["streams"] for found in shown["levels"]] == [1, 3]
    for found in shown["levels"]:
        assert found["requests"] >= 1
        assert (found["failed"], found["lost"], found["invented"]) == (0, 0, 0)
        # 63 gaps in each answer
        assert found["itl_error"]["n"] == 63 * found["ttft_error"]["n"]
        assert found["tokens_per_s"] > 0
    kept = read_calibration(tmp_path)
    assert kept is not None and kept.complete
    assert kept.identity == machine.identity()
    assert json.loads(calibration_path(tmp_path).read_bytes()) == shown


def test_the_server_leaves_a_core_to_the_client() -> None:
    assert server_cores({0, 1, 2, 3}, None) == {1, 2, 3}
    assert server_cores({0, 1, 2, 3}, 2) == {0, 1, 3}
    # a core that this process may not use is nobody's
    assert server_cores({2, 3}, 0) == {3}
    assert server_cores({5}, None) == {5}


def test_a_core_that_is_not_ours_is_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert calibrate(tmp_path, "--core", "4000") == 2
    error = capsys.readouterr().err
    assert "--core: 4000 is not valid; expected one of " in error
    assert len(error.strip().splitlines()) == 1


def test_a_started_server_stays_on_its_cores() -> None:
    usable = os.sched_getaffinity(0)
    with paced_server(server_command(0.05, 0.02), max(usable)):
        child = next(
            found
            for found in psutil.Process().children()
            if "serve" in found.cmdline() and "simulated" in found.cmdline()
        )
        assert os.sched_getaffinity(child.pid) == server_cores(usable, max(usable))


def test_the_table_and_the_verdict_are_for_people(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_server(monkeypatch)
    assert calibrate(tmp_path, "--streams", "2") == 0
    text = capsys.readouterr().out
    assert "streams" in text and "p99" in text and "…" not in text
    assert "kept in " in text


def test_the_real_paced_server_and_the_client_agree_on_every_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    assert calibrate(tmp_path, "--streams", "4", "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)["levels"]
    assert found["requests"] >= 4
    assert (found["failed"], found["lost"], found["invented"]) == (0, 0, 0)
    assert found["itl_error"]["n"] == 63 * found["requests"]
    # the server keeps a schedule, and states by how much it was late
    assert found["server_late"]["n"] == 64 * found["requests"]


def test_lost_tokens_and_failures_leave_no_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # every answer lacks one token: a failure of the answer's length, or a loss
    fake_server(monkeypatch, "--lose")
    assert calibrate(tmp_path, "--streams", "2") == 0
    assert "At none of these levels" in capsys.readouterr().out
    fake_server(monkeypatch, "--fail")
    assert calibrate(tmp_path, "--streams", "2") == 0
    assert "requests failed" in capsys.readouterr().out
    kept = read_calibration(tmp_path)
    assert kept is not None and kept.tokens_per_s is None


def test_a_server_that_does_not_start_is_one_line_and_exit_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_server(monkeypatch, "--mute")
    assert calibrate(tmp_path, "--streams", "2") == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        "kvknee: the simulated server did not start: no port is left"
    )
    assert read_calibration(tmp_path) is None


def test_bad_input_is_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert calibrate(tmp_path, "--streams", "5,5") == 2
    assert "--streams: '5,5' is not valid" in capsys.readouterr().err


def interrupted_after(monkeypatch: pytest.MonkeyPatch, *done: float) -> None:
    def measure(settings: object, tell: object) -> object:
        yield from (level(100, rate) for rate in done)
        raise KeyboardInterrupt

    monkeypatch.setattr(session, "measure_levels", measure)


def test_an_interruption_keeps_the_levels_that_were_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupted_after(monkeypatch, 5_000.0)
    assert calibrate(tmp_path) == 130
    assert "Interrupted" in capsys.readouterr().out
    kept = read_calibration(tmp_path)
    assert kept is not None and not kept.complete and len(kept.levels) == 1


def test_an_interruption_does_not_replace_a_whole_calibration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = calibration(level(100, 5_000.0), level(500, 25_000.0), identity=machine.identity())
    write_calibration(tmp_path, whole)
    interrupted_after(monkeypatch, 4_000.0)
    assert calibrate(tmp_path) == 130
    assert read_calibration(tmp_path) == whole


def test_an_interruption_before_the_first_level_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupted_after(monkeypatch)
    assert calibrate(tmp_path) == 130
    assert "before a level was done" in capsys.readouterr().err
    assert read_calibration(tmp_path) is None


def test_a_failure_of_the_client_is_its_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_server(monkeypatch)
    monkeypatch.setattr(levels, "TemporaryDirectory", _Gone)
    assert calibrate(tmp_path, "--streams", "1") == 1
    assert "kvknee: the client failed: " in capsys.readouterr().err


class _Gone:
    """A folder that is not there."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def __enter__(self) -> str:
        return "/nonexistent/kvknee"

    def __exit__(self, *_: object) -> None:
        return None


def test_ctrl_c_ends_both_processes(tmp_path: Path) -> None:
    """With the real paced server, in mid-level."""
    command = [sys.executable, "-m", "harness", "calibrate", "--home", str(tmp_path)]
    process = subprocess.Popen(
        [*command, "--streams", "2", "--seconds", "60"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    parent = psutil.Process(process.pid)
    deadline = time.monotonic() + 30
    while len(children := parent.children(recursive=True)) < 2:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"interrupted before a level was done" in said and b"Traceback" not in said
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []


def test_calibration_errors_are_no_usage_errors() -> None:
    assert CalibrationError("x").exit_code == 1
