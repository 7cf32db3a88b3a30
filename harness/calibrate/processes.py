"""The two processes of a calibration: the paced server and the client under test."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from tempfile import TemporaryFile
from typing import IO

import httpx
import msgspec

from harness.calibrate.client import Orders
from harness.calibrate.truth import ClientReport, RequestTruth, read_truth
from harness.errors import CalibrationError, OptionError

#: A Python process that only listens is up well within this.
_START_S = 30.0
_GRACE_S = 5.0
#: Beyond the time that a level takes, for its connections and its last answers.
_PATIENCE_S = 120.0
_POLL_S = 0.1
_TRUTH_TIMEOUT_S = 120.0
_LISTENING = b"listening on "


class PacedServer:
    """A running paced server."""

    def __init__(self, url: str) -> None:
        self.url = url

    def take_truth(self) -> dict[str, RequestTruth]:
        """What it wrote since the last call, by the prompt's hash; raises CalibrationError."""
        try:
            with httpx.Client(timeout=_TRUTH_TIMEOUT_S, trust_env=False) as http:
                answer = http.get(f"{self.url}/truth")
                answer.raise_for_status()
                found = read_truth(answer.content)
                http.post(f"{self.url}/truth/reset").raise_for_status()
        except (httpx.HTTPError, msgspec.MsgspecError) as error:
            raise CalibrationError(f"the simulated server's /truth: {error}") from error
        return found


def server_command(ttft_s: float, itl_s: float) -> list[str]:
    """How the paced server is started."""
    return [
        *(sys.executable, "-m", "harness", "serve", "simulated", "--mode", "paced"),
        *("--port", "0", "--ttft", f"{ttft_s:.9f}", "--itl", f"{itl_s:.9f}"),
    ]


def server_cores(usable: Collection[int], client: int | None) -> set[int]:
    """Where the server may run: on any usable core but one, which is the client's alone.

    Two processes that are busy half of the time each are put on one core now and then, and
    what the client is late by then is the server's doing. ``client`` is the core that it is
    kept on. With one core there is no choice.
    """
    kept_free = client if client in usable else min(usable)
    return set(usable) - {kept_free} or set(usable)


def require_core(core: int | None) -> None:
    """Raise OptionError for a core that this process may not use."""
    if core is None:
        return
    if not hasattr(os, "sched_getaffinity"):
        raise OptionError("--core", core, "none: this system does not keep a process on a core")
    usable = sorted(os.sched_getaffinity(0))
    if core not in usable:
        raise OptionError("--core", core, f"one of {', '.join(map(str, usable))}")


@contextlib.contextmanager
def paced_server(command: Sequence[str], client_core: int | None = None) -> Iterator[PacedServer]:
    """A server of its own on a free port; raises CalibrationError when it does not start."""
    with TemporaryFile() as errors, _started(command, errors) as process:
        if hasattr(os, "sched_setaffinity"):
            cores = server_cores(os.sched_getaffinity(0), client_core)
            # it may be dead already: its last line says why
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(process.pid, cores)
        line = process.stdout.readline() if process.stdout is not None else b""
        if not line.startswith(_LISTENING):
            process.wait(_START_S)
            raise CalibrationError(f"the simulated server did not start: {_last_line(errors)}")
        yield PacedServer(line.removeprefix(_LISTENING).strip().decode())


def run_client(orders: Orders, tell: Callable[[float], None], level_s: float) -> ClientReport:
    """Load once, in a process of its own; ``tell`` is called with the seconds gone by.

    ``level_s`` is how long it should take. Raises CalibrationError when it fails.
    """
    command = [sys.executable, "-m", "harness.calibrate.client"]
    with TemporaryFile() as errors, _started(command, errors) as process:
        begun = time.monotonic()
        if process.stdin is not None:
            # a broken pipe: it died at once, and its last line says why
            with contextlib.suppress(OSError):
                process.stdin.write(msgspec.json.encode(orders) + b"\n")
                process.stdin.flush()
        while process.poll() is None:
            gone = time.monotonic() - begun
            if gone > level_s + _PATIENCE_S:
                raise CalibrationError(f"the client did not end within {gone:.0f} s")
            tell(gone)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_S)
        said = process.stdout.read() if process.stdout is not None else b""
        try:
            return msgspec.json.decode(said, type=ClientReport)
        except msgspec.MsgspecError as error:
            raise CalibrationError(f"the client failed: {_last_line(errors)}") from error


@contextlib.contextmanager
def _started(command: Sequence[str], errors: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """A child that is ended whatever happens.

    In a process group of its own, so that Ctrl-C reaches this process alone; in no session
    of its own, for Linux shares the CPU out by session first.
    """
    process = subprocess.Popen(  # noqa: S603 - our own commands, no user text
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        process_group=0,
    )
    try:
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            # what was left in a dead child's pipe
            with contextlib.suppress(OSError):
                stream.close()


def _last_line(errors: IO[bytes]) -> str:
    errors.seek(0)
    lines = errors.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:300] if lines else "it said nothing"
