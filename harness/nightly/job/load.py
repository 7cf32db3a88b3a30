"""One repeat: a scenario in a process of its own, ended tidily however it ends."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from harness.errors import NightlyError
from harness.nightly.job.plan import Repeat, load_command
from harness.stack.process import MARK, stop

SCENARIO_FILES = Path(__file__).resolve().parents[3] / "scenarios"
#: after SIGTERM the load has so long for its last lines; a service manager waits 90 s for us
LAST_WORDS_S = 30.0
#: a load that hangs is ended; a level ends itself after 120 s and its last requests' 300 s, or
#: as its options say
_LONGEST_PROCESS_S, _LONGEST_CELL_S = 300.0, 450.0
_SECONDS = (
    *("min-level-seconds", "max-level-seconds", "ramp-up-seconds", "warmup-seconds"),
    "request-timeout",
)
_POLL_S = 0.2


@dataclass(frozen=True)
class Loaded:
    """How one process of the load ended; ``folder`` is None when it made no run directory."""

    exit_code: int
    seconds: float
    folder: Path | None
    #: its last line, for the one who reads the night
    said: str


class Loader(Protocol):
    """Runs one repeat."""

    def __call__(self, repeat: Repeat, urls: Mapping[str, str], again: bool) -> Loaded:
        """``again`` after the servers were restarted."""
        ...


class LocustLoader:
    """Runs ``scenarios/<name>.py``; run directories go into ``runs``, outputs into ``logs``.

    The process has a group of its own, so that Ctrl-C reaches it once, from here; it stays in the
    session, for Linux shares the CPU out by session first. It carries ``mark``: should this
    process be killed, the next job ends what is left.
    """

    def __init__(
        self,
        runs: Path,
        logs: Path,
        mark: str,
        home: Path,
        environment: Mapping[str, str] = os.environ,
        scenarios: Path = SCENARIO_FILES,
        command: Callable[..., list[str]] = load_command,
    ) -> None:
        self._runs = runs
        self._logs = logs
        self._mark = mark
        self._scenarios = scenarios
        self._command = command
        self._environment = {**environment, "KVKNEE_HOME": str(home), MARK: mark}

    def __call__(self, repeat: Repeat, urls: Mapping[str, str], again: bool) -> Loaded:
        """Run it; raises NightlyError when the process cannot be started."""
        name = f"{repeat.run.name}-{repeat.number + 1}" + ("-again" if again else "")
        log = self._logs / f"{name}.log"
        before = self._made()
        began_s = time.monotonic()
        command = self._command(repeat, urls, sys.executable, self._scenarios, self._runs)
        code = self._run(command, log, longest_s(repeat))
        made = sorted(self._made() - before)
        folder = made[-1] if made else None
        return Loaded(code, time.monotonic() - began_s, folder, _last_line(log))

    def _made(self) -> set[Path]:
        return {path.parent for path in self._runs.glob("*/manifest.json")}

    def _run(self, command: list[str], log: Path, limit_s: float) -> int:
        try:
            with log.open("wb") as output:
                process = subprocess.Popen(  # noqa: S603 - a list of arguments
                    command,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    process_group=0,
                )
        except OSError as error:
            raise NightlyError(f"the load cannot be started ({error.strerror})") from error
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self._end(process)
            return process.returncode
        except BaseException:
            self._end(process)
            raise

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """SIGTERM, time for the last lines, and then the end of all that is left.

        Not SIGINT: what a shell or cron starts in the background may have that one ignored.
        """
        try:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LAST_WORDS_S)
        finally:
            stop(self._mark, _POLL_S, time.monotonic, time.sleep)
            process.wait()


def longest_s(repeat: Repeat) -> float:
    """What no load takes that is not hanging; its options were checked to be numbers."""
    options = repeat.run.options
    asked_s = sum(float(options[name]) for name in _SECONDS if name in options)
    cells = len(repeat.run.levels) * len(repeat.backends)
    return _LONGEST_PROCESS_S + cells * (_LONGEST_CELL_S + asked_s)


def _last_line(log: Path) -> str:
    with contextlib.suppress(OSError):
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
        for line in reversed(lines):
            if line.strip():
                return line.strip()
    return ""
