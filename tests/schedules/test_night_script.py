from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from tests.schedules.commands import check_command

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "schedules" / "github" / "night.sh"

#: stands for kvknee: `--plan` ends with $PLAN_CODE, a night writes its report, then ends
FAKE = """#!/bin/bash
case "$*" in *--plan) exit "${PLAN_CODE:-0}" ;; esac
echo "$*" >>"$STATE/asked"
trap 'kill "$!"; echo stopped >>"$STATE/asked"; exit 3' TERM
if [ -n "${HANG:-}" ]; then
    sleep 60 >/dev/null 2>&1 &
    echo ready >>"$STATE/ready"
    wait "$!"
fi
if [ -n "${NIGHT:-}" ]; then
    mkdir -p "$4/nightly/$NIGHT"
    echo "# night $NIGHT" >"$4/nightly/$NIGHT/night.md"
fi
exit "$CODE"
"""


def start(tmp_path: Path, **variables: str) -> subprocess.Popen[str]:
    fake = tmp_path / "kvknee"
    fake.write_text(FAKE)
    fake.chmod(0o755)
    for name in ("output", "summary", "asked"):
        (tmp_path / name).touch()
    environ = {
        "PATH": os.environ["PATH"],
        "KVKNEE": str(fake),
        "KVKNEE_SUITE": "scenarios/nightly.toml",
        "KVKNEE_NIGHTLY": str(tmp_path / "state"),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
        "STATE": str(tmp_path),
        "CODE": "0",
        **variables,
    }
    return subprocess.Popen(
        ["bash", str(SCRIPT)],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    text, _ = process.communicate(timeout=60)
    return process.returncode, text


@pytest.mark.parametrize(
    ("code", "ends", "said"),
    [
        ("0", 0, ""),
        ("1", 1, "::error title=kvknee: regression::"),
        # nobody is woken because there was no verdict
        ("2", 0, "::warning title=kvknee: could not judge::"),
        ("3", 3, "::error title=kvknee: the job failed::exit code 3"),
        ("130", 3, "::error title=kvknee: the job failed::exit code 130"),
    ],
)
def test_exit_codes(tmp_path: Path, code: str, ends: int, said: str) -> None:
    returned, text = ended(start(tmp_path, CODE=code, NIGHT="n1"))
    assert returned == ends
    assert said in text and ("::" in text) == bool(said)
    assert (tmp_path / "summary").read_text() == "# night n1\n"
    folder = tmp_path / "state" / "results" / "nightly" / "n1"
    assert (tmp_path / "output").read_text() == f"folder={folder}\n"
    asked = f"nightly scenarios/nightly.toml --results-dir {tmp_path}/state/results"
    assert (tmp_path / "asked").read_text() == f"{asked} --home {tmp_path}/state/home\n"


def test_a_bad_suite_fails_though_it_ends_like_a_night_without_a_verdict(tmp_path: Path) -> None:
    returned, text = ended(start(tmp_path, PLAN_CODE="2"))
    assert returned == 3 and "::error title=kvknee: bad suite::" in text
    assert (tmp_path / "asked").read_text() == ""


def test_an_older_night_is_not_shown_as_this_one(tmp_path: Path) -> None:
    old = tmp_path / "state" / "results" / "nightly" / "n0"
    old.mkdir(parents=True)
    (old / "night.md").write_text("# old\n")
    returned, _ = ended(start(tmp_path, CODE="3"))
    assert returned == 3
    assert (tmp_path / "summary").read_text() == (tmp_path / "output").read_text() == ""


def test_a_program_that_breaks_is_no_regression(tmp_path: Path) -> None:
    # Python ends with 1 after a traceback, and leaves no report
    returned, text = ended(start(tmp_path, CODE="1"))
    assert returned == 3 and "::error title=kvknee: the job failed::" in text


def test_the_script_runs_commands_that_exist() -> None:
    lines = re.findall(r'"\$KVKNEE" (nightly .*?)(?:; then| &)$', SCRIPT.read_text(), re.MULTILINE)
    assert len(lines) == 2
    for line in lines:
        check_command(shlex.split(line))


def test_a_cancelled_job_stops_kvknee_and_waits_for_it(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    os.mkfifo(ready)
    process = start(tmp_path, HANG="1")
    # returns once the night has begun
    assert ready.read_text() == "ready\n"
    process.send_signal(signal.SIGINT)
    returned, _ = ended(process)
    assert returned == 3
    assert (tmp_path / "asked").read_text().splitlines()[-1] == "stopped"
