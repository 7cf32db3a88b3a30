"""What cannot be printed changes neither a night nor its exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from harness.cli import run as kvknee
from harness.cli_nightly import _ended
from harness.terminated import Terminated, sigterm_raises
from tests.nightly.fake_night import SUITE


@contextmanager
def nobody_reads() -> Iterator[int]:
    """The writing end of a pipe whose reader has gone."""
    read, write = os.pipe()
    os.close(read)
    try:
        yield write
    finally:
        os.close(write)


@contextmanager
def full_disk() -> Iterator[int]:
    write = os.open("/dev/full", os.O_WRONLY)
    try:
        yield write
    finally:
        os.close(write)


@pytest.mark.parametrize("where", [nobody_reads, full_disk])
@pytest.mark.parametrize(("lost", "code"), [("stdout", 0), ("stdout", 1), ("both", 2)])
def test_the_exit_code_is_the_nights_whoever_reads(
    tmp_path: Path, lost: str, code: int, where: Callable[[], AbstractContextManager[int]]
) -> None:
    command = [sys.executable, "-m", "tests.nightly.told_night", str(tmp_path), str(code)]
    with where() as gone:
        errors = gone if lost == "both" else subprocess.PIPE
        done = subprocess.run(command, stdout=gone, stderr=errors, timeout=60)
    assert done.returncode == code, done.stderr
    if lost == "stdout":
        # it went on, and nothing else was said
        assert done.stderr.decode().splitlines() == [f"short, repeat {i} of 3" for i in (1, 2, 3)]


def test_stdout_is_kept_when_stderr_is_lost(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.nightly.told_night", str(tmp_path), "1"]
    with nobody_reads() as gone:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=gone, timeout=60, text=True)
    assert done.returncode == 1
    assert done.stdout.startswith("REGRESSED: ") and "\nreports: " in done.stdout


def test_a_signal_after_the_night_was_stored_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert _ended(KeyboardInterrupt()) == 130
    assert "interrupted; nothing of the night is stored" in capsys.readouterr().err
    late = Terminated("SIGTERM")
    late.add_note("the night is stored as n1, its reports may be missing")
    assert _ended(late) == 3
    assert capsys.readouterr().err == (
        "kvknee: ended by SIGTERM; the night is stored as n1, its reports may be missing\n"
    )


def test_a_second_sigterm_does_not_cut_the_tidying_short() -> None:
    before = signal.getsignal(signal.SIGTERM)
    tidied = False
    with pytest.raises(Terminated, match="SIGTERM"), sigterm_raises():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGTERM)
            tidied = True
    assert tidied and signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("backends", "expected"),
    [
        (None, "vllm cannot be started here (paged and contiguous can)"),
        ("paged=http://h", "vllm of the suite has no URL"),
        ("vllm=http://user:secret@h", "'***@h' is not valid; expected URLs without credentials"),
        ("vllm=http://h:99999", "'http://h:99999' is not valid"),
        ("vllm=http://h,", "'' is not valid; expected name=url"),
    ],
)
def test_servers_that_cannot_be_are_said_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], backends: str | None, expected: str
) -> None:
    suite = tmp_path / "suite.toml"
    suite.write_text(SUITE.replace('"paged"', '"vllm"'))
    words = [] if backends is None else ["--backends", backends]
    assert kvknee(["nightly", str(suite), "--plan", *words]) == 2
    said = capsys.readouterr()
    assert expected in said.err and said.err.count("\n") == 1 and said.out == ""
    assert "secret" not in said.err
