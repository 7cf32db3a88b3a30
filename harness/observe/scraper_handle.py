"""The load's end of the embedded scraper: start it, ask whether it lives, stop it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from harness.observe import dcgm
from harness.observe.process_memory import TARGET_SUFFIX

#: a journal could not be written
EXIT_JOURNAL = 3
#: a scrape must be over before the next one is due
TIMEOUT_SHARE = 0.8
_KEY_VARIABLE = "OPENAI_API_KEY"
_FAULT_LENGTH = 300


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A metrics page; ``with_key``: it belongs to a server that may see the API key."""

    name: str
    url: str
    with_key: bool


class ProcessTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A process tree whose memory is sampled."""

    name: str
    pid: int


class ScraperConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the scraper reads from its stdin, as one line of JSON."""

    run_dir: str
    interval_s: float
    timeout_s: float
    targets: tuple[Target, ...]
    processes: tuple[ProcessTarget, ...]
    api_key: str | None
    #: added to ``CLOCK_MONOTONIC`` in all times
    shift_s: float = 0.0


class ScraperHandle:
    """A running scraper; ``start`` makes it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._stopped = False
        self._fault: str | None = None

    @property
    def pid(self) -> int:
        """The scraper's process id."""
        return self._process.pid

    def alive(self) -> bool:
        """Whether it still scrapes."""
        return self._process.poll() is None

    def fault(self) -> str | None:
        """Why it ended by itself, in one line; None while it lives or when it was stopped."""
        if self._fault is None and not self.alive() and self._process.returncode != 0:
            if self._stopped and self._process.returncode < 0:
                self._fault = "scraper: did not stop when asked and was killed"
            else:
                self._fault = self._last_words()
        return self._fault

    def stop(self, timeout_s: float = 5.0) -> None:
        """End it: scrapes under way are finished, then it exits; killed after ``timeout_s``."""
        self._stopped = True
        if self._process.stdin is not None and not self._process.stdin.closed:
            # a broken pipe: it ended before, and fault() says why
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.fault()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _last_words(self) -> str:
        code = self._process.returncode
        said = b""
        if self._process.stdout is not None and not self._process.stdout.closed:
            said = self._process.stdout.read()
        lines = said.decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:_FAULT_LENGTH] if lines else f"scraper: ended with exit code {code}"


def start(
    run_dir: Path,
    targets: Mapping[str, str],
    interval_s: float = 1.0,
    api_key: str | None = None,
    pids: Mapping[str, int] | None = None,
    shift_s: float = 0.0,
) -> ScraperHandle:
    """Start scraping into ``run_dir/scrapes/<name>.jsonl.gz``, one Scrape a line.

    ``targets`` are name -> URL of the metrics page; the name ``dcgm`` is NVIDIA's
    exporter, which never sees the API key. ``pids`` are name -> process id of local
    servers, whose tree's memory goes to ``<name>.process.jsonl.gz``. ``shift_s`` is added
    to all times. Raises OSError when no process can be started.
    """
    config = ScraperConfig(
        run_dir=str(run_dir),
        interval_s=interval_s,
        timeout_s=TIMEOUT_SHARE * interval_s,
        targets=tuple(
            Target(name=name, url=url, with_key=name != dcgm.TARGET)
            for name, url in targets.items()
        ),
        processes=tuple(
            ProcessTarget(name=name + TARGET_SUFFIX, pid=pid) for name, pid in (pids or {}).items()
        ),
        api_key=api_key,
        shift_s=shift_s,
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "harness.observe.scraper"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={key: value for key, value in os.environ.items() if key != _KEY_VARIABLE},
        # Ctrl-C reaches the load only, which then stops the scraper when it is done. A
        # group, no session: Linux shares the CPU out by session, and on a busy machine a
        # scraper alone in its own was late by a second.
        process_group=0,
    )
    handle = ScraperHandle(process)
    if process.stdin is not None:
        # a broken pipe: it died at once, and fault() says why
        with contextlib.suppress(OSError):
            process.stdin.write(msgspec.json.encode(config) + b"\n")
            process.stdin.flush()
    return handle
