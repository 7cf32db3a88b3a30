from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.schedules.commands import check_command

ROOT = Path(__file__).parents[2]
UNITS = ROOT / "schedules" / "systemd"
SERVICE = UNITS / "kvknee-nightly.service"
TIMER = UNITS / "kvknee-nightly.timer"
CRON = ROOT / "schedules" / "cron" / "kvknee-nightly"
PLACE = "/opt/kvknee"

analyze = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


def unit(path: Path) -> configparser.ConfigParser:
    # strict: no setting stands twice
    found = configparser.ConfigParser(interpolation=None)
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read_string(path.read_text())
    return found


def installed(tmp_path: Path) -> Path:
    """The units as somebody installs them whose kvknee lies elsewhere; made by one `sed`."""
    place = tmp_path / "kvknee"
    program = place / ".venv" / "bin" / "kvknee"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    folder = tmp_path / "units"
    folder.mkdir()
    for path in (SERVICE, TIMER):
        (folder / path.name).write_text(path.read_text().replace(PLACE, str(place)))
    return folder


def run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_service_runs_commands_that_exist() -> None:
    service = unit(SERVICE)["Service"]
    for key in ("ExecStart", "ExecStartPre"):
        line = service[key]
        inner = re.search(r"-c '(.*) \|\| exit 3'", line)
        words = shlex.split(inner[1] if inner else line)
        assert words[0] == f"{PLACE}/.venv/bin/kvknee"
        check_command(words[1:])
    # kvknee writes where systemd lets it
    assert service["StateDirectory"] == "kvknee"
    places = re.findall(r"--(?:home|results-dir) (\S+)", service["ExecStart"])
    assert places == ["%S/kvknee/results", "%S/kvknee/home"]


def test_a_night_that_could_not_be_judged_is_no_failure_of_the_unit() -> None:
    service = unit(SERVICE)["Service"]
    assert service["SuccessExitStatus"] == "2"
    # but a suite that cannot be read is one, though it ends with 2 as well
    assert service["ExecStartPre"].endswith("|| exit 3'")


def test_the_service_ends_tidily() -> None:
    service = unit(SERVICE)["Service"]
    assert service["Type"] == "oneshot"
    assert (service["KillMode"], service["KillSignal"]) == ("mixed", "SIGTERM")
    assert service["TimeoutStopSec"] == "5min" and service["TimeoutStartSec"] == "6h"


def test_what_cuda_needs_is_not_taken_away() -> None:
    service = unit(SERVICE)["Service"]
    for key in ("PrivateDevices", "MemoryDenyWriteExecute", "ProcSubset", "PrivateUsers"):
        assert key not in service
    assert service["DeviceAllow"] == "char-nvidia* rw"


def test_the_timer_starts_the_service_and_makes_up_for_a_night() -> None:
    timer = unit(TIMER)["Timer"]
    # it starts the service of its own name
    assert SERVICE.stem == TIMER.stem
    assert timer["Persistent"] == "true"
    assert timer["FixedRandomDelay"] == "yes" and timer["RandomizedDelaySec"] == "20min"


@analyze
def test_systemd_takes_the_units_without_a_word(tmp_path: Path) -> None:
    folder = installed(tmp_path)
    said = run(
        "systemd-analyze", "verify", "--man=no", *(str(folder / p.name) for p in (SERVICE, TIMER))
    )
    assert said == ""


@analyze
def test_systemd_finds_little_exposed(tmp_path: Path) -> None:
    # of 10; it was 1.9, with what CUDA needs
    folder = installed(tmp_path)
    said = run(
        *("systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager"),
        str(folder / SERVICE.name),
    )
    assert "Overall exposure level" in said


@analyze
def test_systemd_reads_the_time_as_once_a_day() -> None:
    said = run("systemd-analyze", "calendar", "--iterations=2", unit(TIMER)["Timer"]["OnCalendar"])
    assert "Normalized form: *-*-* 01:17:00" in said
    assert said.count("01:17:00 ") >= 2


def cron_line() -> str:
    lines = CRON.read_text().splitlines()
    found = [line for line in lines if re.match(r"[\d*]", line)]
    assert len(found) == 1
    return found[0]


def test_cron_runs_a_command_that_exists() -> None:
    *when, user, command = cron_line().split(maxsplit=6)
    assert when[2:] == ["*", "*", "*"] and user == "kvknee"
    # a percent sign would end the line
    assert "%" not in command
    assert CRON.read_text().endswith("\n") and "." not in CRON.name
    inner = re.findall(r"\.venv/bin/kvknee (.*?) >", command)
    assert [("--plan" in words) for words in inner] == [True, False]
    for words in inner:
        check_command(shlex.split(words.removesuffix(">").strip()))


@pytest.mark.parametrize(
    ("code", "mailed"), [(0, False), (2, False), (1, True), (3, True), (130, True)]
)
def test_cron_mails_regressions_and_failures_alone(tmp_path: Path, code: int, mailed: bool) -> None:
    program = tmp_path / ".venv" / "bin" / "kvknee"
    program.parent.mkdir(parents=True)
    plan = 'case "$*" in *--plan*) echo planned; exit 0;; esac'
    program.write_text(f"#!/bin/sh\n{plan}\necho night $*\nexit {code}\n")
    program.chmod(0o755)
    command = cron_line().split(maxsplit=6)[6]
    done = subprocess.run(
        ["/bin/sh", "-c", command],
        env={"KVKNEE": str(tmp_path), "STATE": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    log = (tmp_path / "nightly.log").read_text()
    assert log.startswith("night nightly scenarios/nightly.toml --results-dir")
    assert done.stdout == (log if mailed else "") and done.stderr == ""


def test_cron_mails_what_is_wrong_with_the_suite_and_measures_nothing(tmp_path: Path) -> None:
    program = tmp_path / ".venv" / "bin" / "kvknee"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\necho "no such run" >&2\nexit 2\n')
    program.chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", "-c", cron_line().split(maxsplit=6)[6]],
        env={"KVKNEE": str(tmp_path), "STATE": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("", "no such run\n")
    assert not (tmp_path / "nightly.log").exists()


@pytest.mark.parametrize("path", [SERVICE, TIMER, CRON], ids=lambda p: p.name)
def test_only_named_places_are_in_the_files(path: Path) -> None:
    absolute = set(re.findall(r"(?<![\w.%$}\"])(/[a-z][\w/.-]*)", path.read_text()))
    roots = {"/" + text.split("/")[1] for text in absolute}
    assert roots <= {"/opt", "/var", "/etc", "/bin", "/dev", "/kvknee", "/cron.d"}, roots
