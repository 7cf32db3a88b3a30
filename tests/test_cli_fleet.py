"""A scenario that owns its servers: what becomes of them, and of the run, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

#: Stands for Locust: says what it was told, then runs until Ctrl-C, and then reports.
RUN = """
import signal, sys, time
try:
    print("run", *sys.argv[1:], flush=True)
    if "--fail" in sys.argv:
        sys.exit(3)
    time.sleep(60)
except KeyboardInterrupt:
    print("report", flush=True)
"""
#: The command with servers that are two lines of text.
DRIVER = """
import sys
from contextlib import contextmanager
from pathlib import Path
from harness import cli_fleet
from harness.stack.fleet import STEPS

@contextmanager
def fleet(options, members, progress):
    print("up", *(member.name for member in members), options.kv_budget, flush=True)
    try:
        yield {member.name: "http://" + member.name for member in members}
    finally:
        print("down", flush=True)

cli_fleet.fleet = fleet
cli_fleet._LOCUST = (sys.executable, sys.argv[1])
raise SystemExit(cli_fleet.main(Path("decompose.py"), STEPS, sys.argv[2:]))
"""


def driver(folder: Path, *options: str) -> subprocess.Popen[str]:
    (folder / "run.py").write_text(RUN)
    (folder / "driver.py").write_text(DRIVER)
    return subprocess.Popen(
        [sys.executable, str(folder / "driver.py"), str(folder / "run.py"), *options],
        env={**os.environ, "KVKNEE_HOME": str(folder / "home")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # signals for it are for nobody else
        process_group=0,
    )


def test_the_run_gets_the_urls_and_what_is_not_for_the_servers(tmp_path: Path) -> None:
    options = ("--servers", "exact,batched", "--kv-budget", "8MiB", "--levels", "4", "--fail")
    out, err = driver(tmp_path, *options).communicate(timeout=60)
    up, run, down = out.splitlines()
    assert up == "up batched exact 8MiB"
    assert run == (
        "run -f decompose.py --headless --backends batched=http://batched,exact=http://exact "
        "--levels 4 --fail"
    )
    assert down == "down"
    assert "Traceback" not in err


def test_its_exit_code_is_the_runs(tmp_path: Path) -> None:
    process = driver(tmp_path, "--fail")
    process.communicate(timeout=60)
    assert process.returncode == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_reports_and_its_servers_stop(
    number: signal.Signals, tmp_path: Path
) -> None:
    """A terminal's Ctrl-C goes to all, a SIGTERM here to the command alone."""
    with driver(tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("up")
        assert process.stdout.readline().startswith("run")
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert out.splitlines() == ["report", "down"]
    assert process.returncode == 130
    assert err.splitlines()[-1] == "error: interrupted"
    assert "Traceback" not in err


def test_a_budget_that_is_none(tmp_path: Path) -> None:
    out, err = driver(tmp_path, "--max-model-len", "0").communicate(timeout=60)
    assert out == ""
    assert err.startswith("error: Invalid value for '--max-model-len'")
