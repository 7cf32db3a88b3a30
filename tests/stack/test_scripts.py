"""The shell scripts behind `make` and CI, run with recorded stand-ins for what they call."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.stack.conftest import until

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Fakes:
    """A copy of the scripts and a folder of commands that write down their arguments."""

    root: Path

    @property
    def bin(self) -> Path:
        return self.root / "venv" / "bin"

    def command(self, name: str, body: str) -> None:
        path = self.bin / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/bin/bash\necho "{name} $*" >>"{self.root}/calls"\n{body}\n')
        path.chmod(0o755)

    def calls(self) -> list[str]:
        file = self.root / "calls"
        return file.read_text().splitlines() if file.exists() else []

    def environment(self, **variables: str) -> dict[str, str]:
        return {"PATH": f"{self.bin}:/usr/bin:/bin", "VENV": "venv", **variables}

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.root,
            env=self.environment(**variables),
            capture_output=True,
            text=True,
            timeout=60,
        )


@pytest.fixture
def fakes(tmp_path: Path) -> Fakes:
    for folder in ("scripts", ".ci"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    made = Fakes(tmp_path)
    made.command("kvknee", '[ "$1" != status ] || exit 1')
    made.command("locust", "exit 0")
    return made


def verbs(fakes: Fakes) -> list[str]:
    return [" ".join(call.split()[:2]) for call in fakes.calls()]


def test_demo_starts_loads_and_stops(fakes: Fakes) -> None:
    done = fakes.run("bash", "scripts/demo.sh", PAGED_PORT="18000", RUN_FLAGS="--seed 3")
    assert done.returncode == 0, done.stderr
    assert verbs(fakes) == ["kvknee status", "kvknee up", "locust -f", "kvknee down"]
    up, load = fakes.calls()[1:3]
    assert "--model tiny --paged-port 18000 --contiguous-port 8001 --kv-budget 16MiB" in up
    assert "--headless --only-summary --levels 1,4,16,32" in load
    assert "paged=http://127.0.0.1:18000,contiguous=http://127.0.0.1:8001" in load
    assert load.endswith("--min-requests 20,100,100,100 --seed 3")


@pytest.mark.parametrize("code", [1, 2])
def test_demo_stops_the_stack_and_keeps_the_code_of_a_failed_load(code: int, fakes: Fakes) -> None:
    fakes.command("locust", f"exit {code}")
    assert fakes.run("bash", "scripts/demo.sh").returncode == code
    assert verbs(fakes)[-1] == "kvknee down"


def test_demo_without_a_stack_does_not_load(fakes: Fakes) -> None:
    fakes.command("kvknee", "case $1 in status) exit 1 ;; up) exit 2 ;; esac")
    assert fakes.run("bash", "scripts/demo.sh", MODEL="smollm2").returncode == 2
    assert verbs(fakes) == ["kvknee status", "kvknee up", "kvknee down"]
    assert "--model smollm2" in fakes.calls()[1]


def test_demo_leaves_a_stack_up_that_was_up_before(fakes: Fakes) -> None:
    fakes.command("kvknee", "exit 0")
    assert fakes.run("bash", "scripts/demo.sh").returncode == 0
    assert verbs(fakes) == ["kvknee status", "kvknee up", "locust -f"]


def test_ctrl_c_in_the_demo_stops_the_stack(fakes: Fakes) -> None:
    fakes.command("locust", "trap 'exit 0' INT; for i in $(seq 600); do sleep 0.1; done")
    process = subprocess.Popen(
        ["bash", "scripts/demo.sh"],
        cwd=fakes.root,
        env=fakes.environment(),
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    until(lambda: "locust -f" in verbs(fakes))
    # a terminal sends it to the whole group
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(30) == 130
    assert verbs(fakes)[-1] == "kvknee down"


def test_set_up_names_a_python_that_is_too_old_or_missing(fakes: Fakes) -> None:
    fakes.command("python3.8", 'if [ "$1" = --version ]; then echo Python 3.8.2; else exit 1; fi')
    done = fakes.run("bash", "scripts/setup_venv.sh", PYTHON="python3.8")
    assert done.returncode == 1
    assert done.stderr == (
        "kvknee: Python 3.8.2 is too old; name a Python 3.11 or newer: make PYTHON=...\n"
    )
    done = fakes.run("bash", "scripts/setup_venv.sh", PYTHON="python9")
    assert done.stderr.startswith("kvknee: python9 is not there")


PYTHON_WITH_PIP = """
case "$*" in
    *"import sys"*) exit 0 ;;
    --version) echo Python 3.11.7 ;;
    "-m venv venv") exit 0 ;;
    *"pip"*"torch==2.13.0+cpu"*) [ -n "$HAVE_TORCH" ] || [[ "$*" == *--index-url* ]] || {
        echo "ERROR: No matching distribution found for torch==2.13.0+cpu"; exit 1; } ;;
esac
"""


@pytest.fixture
def set_up(fakes: Fakes) -> Fakes:
    fakes.command("python", PYTHON_WITH_PIP)
    (fakes.root / "servers" / "paged").mkdir(parents=True)
    shutil.copy(ROOT / "servers/paged/requirements-cpu.txt", fakes.root / "servers/paged")
    (fakes.root / "pyproject.toml").write_text("first")
    return fakes


def pip_calls(fakes: Fakes) -> list[str]:
    return [call.partition(" install ")[2] for call in fakes.calls() if " install " in call]


def test_set_up_runs_once_and_again_when_a_requirement_changes(set_up: Fakes) -> None:
    def pip_runs() -> int:
        done = set_up.run("bash", "scripts/setup_venv.sh", PYTHON="python", HAVE_TORCH="1")
        assert done.returncode == 0, done.stderr
        return len(pip_calls(set_up))

    assert pip_runs() == 3
    assert pip_calls(set_up)[1] == "--no-deps --requirement servers/paged/requirements-cpu.txt"
    assert pip_runs() == 3
    (set_up.root / "pyproject.toml").write_text("second")
    assert pip_runs() == 6


def test_torch_that_no_configured_source_has_comes_from_its_own_index(set_up: Fakes) -> None:
    set_up.command("uv", "exit 0")
    done = set_up.run("bash", "scripts/setup_venv.sh", PYTHON="python")
    assert done.returncode == 0, done.stderr
    (call,) = [call for call in set_up.calls() if call.startswith("uv ")]
    # that index serves torch alone: nothing else is ever looked for in it
    assert call.endswith("--torch-backend cpu --no-deps torch==2.13.0+cpu")


def test_an_index_that_the_user_names_is_asked_for_torch_alone(set_up: Fakes) -> None:
    index = {"KVKNEE_TORCH_INDEX": "http://127.0.0.1:1/cpu"}
    done = set_up.run("bash", "scripts/setup_venv.sh", PYTHON="python", **index)
    assert done.returncode == 0, done.stderr
    assert [call for call in pip_calls(set_up) if "--index-url" in call] == [
        "--no-deps --index-url http://127.0.0.1:1/cpu torch==2.13.0+cpu"
    ]
    assert not [call for call in set_up.calls() if call.startswith("uv ")]


def test_without_a_cpu_build_of_torch_set_up_says_what_to_set(set_up: Fakes) -> None:
    set_up.command("uv", "exit 2")
    done = set_up.run("bash", "scripts/setup_venv.sh", PYTHON="python")
    assert done.returncode == 1
    assert "set KVKNEE_TORCH_INDEX to the address of an index that has it" in done.stderr


@pytest.mark.parametrize(("ci", "code"), [("", 0), ("true", 1)])
def test_a_missing_package_is_named_and_fails_in_ci(ci: str, code: int, fakes: Fakes) -> None:
    for name in ("apt-get", "sudo"):
        fakes.command(name, "exit 1")
    done = fakes.run("bash", "scripts/system_packages.sh", "no-such-program", CI=ci)
    assert done.returncode == code
    assert "the Debian package no-such-program is missing" in done.stderr
    assert "apt-get install no-such-program" in done.stderr


@pytest.mark.parametrize(("asked", "code"), [("", 0), ("1", 1)])
def test_no_container_engine_is_a_failure_only_where_it_was_asked_for(
    asked: str, code: int, fakes: Fakes
) -> None:
    for name in ("apt-get", "sudo"):
        fakes.command(name, "exit 1")
    fakes.bin.joinpath("bash").symlink_to("/bin/bash")
    done = fakes.run(
        *("bash", "scripts/system_packages.sh", "slirp4netns", "docker.io"),
        **{"CI": "true", "KVKNEE_TEST_DOCKER": asked, "PATH": tools(fakes)},
    )
    assert done.returncode == code, done.stderr
    assert "the Debian package docker.io is missing" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="installs as root")
@pytest.mark.parametrize("before", ["", "#!/bin/sh\nexit 7\n"])
def test_no_service_starts_and_nothing_is_removed_by_an_installation(
    before: str, fakes: Fakes
) -> None:
    policy = fakes.root / "policy-rc.d"
    if before:
        policy.write_text(before)
    fakes.command("apt-get", f'tail -n 1 "{policy}" >>"{fakes.root}/calls"; exit 1')
    fakes.run("bash", "scripts/system_packages.sh", "no-such-program", POLICY_RC_D=str(policy))
    first, asked_for = fakes.calls()[:2]
    assert "install --yes --no-install-recommends --no-remove" in first
    # Debian's word for "may not": 101; what the machine's owner has said is left alone
    assert asked_for == ("exit 7" if before else "exit 101")
    assert policy.exists() == bool(before)


def tools(fakes: Fakes) -> str:
    """A PATH with what the script calls, and no container engine."""
    for name in ("id", "env"):
        fakes.bin.joinpath(name).symlink_to(f"/usr/bin/{name}")
    return str(fakes.bin)


def test_ci_runs_all_targets_with_ci_set_and_no_input(fakes: Fakes) -> None:
    fakes.command("make", f'echo "$CI:$(cat)" >>"{fakes.root}/seen"')
    done = fakes.run(".ci/run")
    assert done.returncode == 0, done.stderr
    assert fakes.calls() == ["make check", "make test", "make test-slow"]
    assert (fakes.root / "seen").read_text() == "true:\n" * 3


@pytest.mark.parametrize("target", ["check", "test", "test-slow"])
@pytest.mark.parametrize("code", [1, 2, 5])
def test_ci_fails_when_a_target_fails(target: str, code: int, fakes: Fakes) -> None:
    fakes.command("make", f'[ "$1" != {target} ] || exit {code}')
    assert fakes.run(".ci/run").returncode == code
    assert fakes.calls()[-1] == f"make {target}"


def test_ci_ends_what_is_left_over_and_fails(fakes: Fakes) -> None:
    pid_file = fakes.root / "pid"
    fakes.command("make", f'[ "$1" != test ] || {{ setsid sleep 600 & echo $! >"{pid_file}"; }}')
    done = fakes.run(".ci/run")
    assert done.returncode == 1
    pid = int(pid_file.read_text())
    assert f"left running, ended now: {pid} sleep 600" in done.stderr
    until(lambda: not _lives(pid))


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
