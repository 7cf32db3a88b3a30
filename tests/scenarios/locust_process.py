"""Runs a scenario as its users do: Locust in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from harness.records import RequestRecord, RunEvent
from harness.rundir import RunDir

ROOT = Path(__file__).parents[2]
#: A run of these tests takes some seconds; this long means that it hangs.
LIMIT_S = 120.0

#: Small enough to be over at once.
QUICK = (
    *("--levels", "1,2", "--min-requests", "3", "--min-level-seconds", "0"),
    *("--prompt-tokens", "8", "--output-tokens", "4", "--prometheus-url", "none"),
)


@dataclass(frozen=True)
class Ended:
    """A process that has ended."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err

    def last_error(self) -> str:
        """The only line that says what is wrong."""
        lines = [line for line in self.err.splitlines() if "error: " in line]
        assert len(lines) == 1, self.err
        assert "Traceback" not in self.text
        return lines[0].partition("error: ")[2]


@contextmanager
def started(
    *options: str,
    folder: Path,
    before_exec: Callable[[], None] | None = None,
    scenario: str = "concurrency",
) -> Iterator[subprocess.Popen[str]]:
    """Locust on a scenario, results in ``folder/results``; killed if a test leaves it running."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("KVKNEE", "LOCUST"))}
    environment |= {"KVKNEE_HOME": str(folder / "home"), "PYTHONWARNINGS": "default"}
    # runs of several tests at once would want one port; a test of it names its own
    environment["KVKNEE_METRICS_PORT"] = "none"
    environment.pop("OPENAI_API_KEY", None)
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "locust", "-f", f"scenarios/{scenario}.py"),
            *("--results-dir", str(folder / "results"), *options),
        ],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=before_exec,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def end(process: subprocess.Popen[str], limit_s: float = LIMIT_S) -> Ended:
    """Wait for the end; kills, and fails, when it does not come."""
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"still running after {limit_s} s:\n{out}{err}") from None
    return Ended(process.returncode, out, err)


def headless(
    *options: str,
    folder: Path,
    before_exec: Callable[[], None] | None = None,
    scenario: str = "concurrency",
) -> Ended:
    """One headless run to its end."""
    with started(
        "--headless", *options, folder=folder, before_exec=before_exec, scenario=scenario
    ) as process:
        return end(process)


def run_dirs(folder: Path) -> list[RunDir]:
    """The run directories made in ``folder``, oldest first."""
    results = folder / "results"
    paths = sorted(results.iterdir()) if results.is_dir() else []
    return [RunDir.open(path) for path in paths]


def records_of(run: RunDir) -> list[RequestRecord]:
    return list(run.records())


def events_of(run: RunDir) -> list[RunEvent]:
    return list(run.events())


def wait_until(condition: Callable[[], bool], limit_s: float = 60) -> None:
    """Poll until it holds; it is the test's failure when it never does.

    A minute: on a busy machine Locust alone takes some seconds to start.
    """
    give_up_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < give_up_s
        time.sleep(0.01)


def page_answers(page: httpx.Client) -> bool:
    """Whether Locust's web page is up."""
    try:
        return page.get("/").status_code == 200
    except httpx.HTTPError:
        return False
