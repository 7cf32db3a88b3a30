"""The real local stack for tests: `kvknee up` on free ports, in a home of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class LocalStack:
    """Where the servers of one stack answer, and where it keeps its files."""

    home: Path
    paged_url: str
    contiguous_url: str

    @property
    def backends(self) -> str:
        return f"paged={self.paged_url},contiguous={self.contiguous_url}"

    @property
    def environment(self) -> dict[str, str]:
        # no page of live metrics at a fixed port, unless a test asks for one
        return {**os.environ, "KVKNEE_HOME": str(self.home), "KVKNEE_METRICS_PORT": "none"}


def free_port() -> int:
    """A TCP port of the loopback interface that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def kvknee(home: Path, *arguments: str, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
    """Run the command line, output captured."""
    return subprocess.run(
        [sys.executable, "-m", "harness", *arguments],
        cwd=ROOT,
        env={**os.environ, "KVKNEE_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


@contextmanager
def local_stack(home: Path, *options: str, models_from: Path | None = None) -> Iterator[LocalStack]:
    """Bring the stack up, give its addresses, take it down whatever happens.

    ``models_from`` is another home whose models are used again.
    """
    home.mkdir(parents=True, exist_ok=True)
    if models_from and not (home / "models").exists():
        (home / "models").symlink_to(models_from / "models")
    paged, contiguous = free_port(), free_port()
    try:
        done = kvknee(
            home,
            "up",
            *("--paged-port", str(paged), "--contiguous-port", str(contiguous)),
            *options,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        yield LocalStack(home, f"http://127.0.0.1:{paged}", f"http://127.0.0.1:{contiguous}")
    finally:
        down = kvknee(home, "down")
        assert down.returncode == 0, down.stdout + down.stderr


def run_scenario(
    stack: LocalStack, results: Path, *options: str, timeout_s: float = 600
) -> subprocess.CompletedProcess[str]:
    """`locust -f scenarios/concurrency.py --headless` against the stack."""
    return subprocess.run(
        scenario_command(stack, results, *options),
        cwd=ROOT,
        env=stack.environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


def scenario_command(stack: LocalStack, results: Path, *options: str) -> list[str]:
    """The command line of a headless run; a later ``--backends`` overrides the stack's."""
    return [
        *(sys.executable, "-m", "locust", "-f", "scenarios/concurrency.py", "--headless"),
        *("--backends", stack.backends, "--results-dir", str(results)),
        *("--prometheus-url", "none"),
        *options,
    ]


def newest_run(results: Path) -> Path:
    """The run directory made last."""
    return max(results.iterdir(), key=lambda path: path.stat().st_mtime)
