"""The paged server is killed in the middle of a level: the run ends by itself and says so."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from harness.rundir import RunDir
from harness.stack.state import read_state
from tests.support.local_stack import (
    ROOT,
    LocalStack,
    local_stack,
    newest_run,
    scenario_command,
)

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.timeout(600)]


def kill_paged(home: Path) -> None:
    """kill -9 of vLLM's API server and all of its children."""
    state = read_state(home)
    assert state is not None
    (paged,) = (backend for backend in state.backends if backend.name == "paged")
    parent = psutil.Process(paged.pid)
    for process in [*parent.children(recursive=True), parent]:
        os.kill(process.pid, signal.SIGKILL)


def wait_for_records(results: Path, count: int, deadline_s: float) -> None:
    """Until so many requests have ended: the level is under way."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        runs = list(results.iterdir()) if results.exists() else []
        if runs and sum(1 for _ in RunDir(runs[0]).records()) >= count:
            return
        time.sleep(0.1)
    raise AssertionError(f"no {count} records within {deadline_s} s")


def test_the_run_ends_within_a_minute_with_what_it_has(stack: LocalStack, tmp_path: Path) -> None:
    results = tmp_path / "results"
    options = ("--levels", "1,8", "--min-requests", "5,5000", "--max-level-seconds", "300")
    only_paged = ("--backends", "paged", "--kv-budget", "16MiB")
    with local_stack(tmp_path / "home", *only_paged, models_from=stack.home) as victim:
        backends = ("--backends", f"paged={victim.paged_url}")
        run = subprocess.Popen(
            scenario_command(victim, results, *options, *backends),
            cwd=ROOT,
            env=victim.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            wait_for_records(results, 25, 120)
            kill_paged(victim.home)
            killed_at = time.monotonic()
            output, _ = run.communicate(timeout=120)
            ended_after_s = time.monotonic() - killed_at
        finally:
            run.kill()
    assert run.returncode == 1, output[-4000:]
    assert ended_after_s < 60
    assert "Traceback" not in output

    directory = newest_run(results)
    assert RunDir(directory).manifest().status == "failed"
    failures = {r.outcome for r in RunDir(directory).records()} - {"ok"}
    assert failures, "the killed requests must be in the records"
    assert failures <= {"connect", "reset", "truncated"}, failures
    cells = json.loads((directory / "summary.json").read_text())["cells"]
    (first,) = (cell for cell in cells if cell["level"] == 1)
    assert first["completed"] >= 5
    assert first["failed"] == 0
