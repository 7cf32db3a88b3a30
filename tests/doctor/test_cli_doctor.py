"""The verb itself, on this machine: what is provoked for real must be named."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.doctor.well_machine import ROOT, clone
from tests.support.local_stack import free_port

#: what `docker` of the tests says: Docker 28's words
DOWN = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock."
DENIED = "permission denied while trying to connect to the Docker daemon socket"


def doctor(
    folder: Path, *arguments: str, path: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the verb in a folder; ``path`` is all that is on the PATH."""
    return subprocess.run(
        [sys.executable, "-m", "harness", "doctor", *arguments],
        cwd=folder,
        env={
            "PATH": path or str(folder / "bin"),
            "HOME": str(folder),
            "PYTHONPATH": str(ROOT),
            "HF_HUB_OFFLINE": "1",
            "KVKNEE_METRICS_PORT": "none",
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=120,
    )


def checks(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    """The rows of --json by name."""
    assert done.stderr == ""
    return {row["name"]: row for row in json.loads(done.stdout)["checks"]}


def tool(folder: Path, name: str, script: str) -> None:
    """Put a program on the PATH of the tests."""
    path = folder / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!{shutil.which('sh')}\n{script}\n")
    path.chmod(0o755)


def moved(folder: Path, **ports: int) -> str:
    """A .env whose ports are free ones but for those that are given."""
    names = ("PAGED_PORT", "CONTIGUOUS_PORT", "PROMETHEUS_PORT", "GRAFANA_PORT")
    free = {name: free_port() for name in names}
    return "".join(f"{name}={number}\n" for name, number in {**free, **ports}.items())


def test_no_docker(tmp_path: Path) -> None:
    clone(tmp_path, env=moved(tmp_path))
    done = doctor(tmp_path, "--compose", "docker-compose.yml", "docker-compose.cpu.yml")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    (line,) = [line for line in lines if line.startswith("  fault")]
    assert line.split(maxsplit=2)[:2] == ["fault", "docker"]
    assert "Docker is not installed (no docker on the PATH) -> install Docker Engine" in line
    assert lines[-1] == (
        "blocked: docker compose -f docker-compose.yml -f docker-compose.cpu.yml up, by docker"
    )


@pytest.mark.parametrize(
    ("script", "name", "words"),
    [
        (f"echo '{DOWN}' >&2; exit 1", "docker_daemon", "its daemon does not run"),
        (f"echo '{DENIED}' >&2; exit 1", "docker_daemon", "permission denied"),
        ("exit 0", "compose", "docker compose is not installed"),
    ],
)
def test_docker_that_is_half_there(script: str, name: str, words: str, tmp_path: Path) -> None:
    clone(tmp_path, env=moved(tmp_path))
    tool(tmp_path, "docker", script)
    done = doctor(tmp_path, "--compose", "docker-compose.cpu.yml", "--json")
    assert done.returncode == 1
    row = checks(done)[name]
    assert (row["status"], row["ways"]) == ("fault", ["compose"])
    assert words in row["found"]
    assert row["remedy"]


def test_no_gpu_with_the_gpu_file(tmp_path: Path) -> None:
    clone(tmp_path, env=moved(tmp_path))
    done = doctor(tmp_path, "--compose", "docker-compose.yml", "--json")
    assert checks(done)["gpu_driver"]["status"] == "fault"
    tool(tmp_path, "nvidia-smi", "echo 'No devices were found'; exit 6")
    row = checks(doctor(tmp_path, "--gpu", "--json"))["gpu_driver"]
    assert row["found"] == "no NVIDIA GPU: nvidia-smi: No devices were found"
    tool(tmp_path, "nvidia-smi", "echo 'H200, 575, GPU-1, 143771, 143167'")
    row = checks(doctor(tmp_path, "--gpu", "--json"))["gpu_driver"]
    assert (row["status"], row["found"]) == ("ok", "H200; driver 575")


def test_a_port_that_is_taken_names_its_holder_and_its_variable(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        clone(tmp_path, env=moved(tmp_path, GRAFANA_PORT=port))
        done = doctor(tmp_path, "--compose", "docker-compose.cpu.yml", "--json")
    row = checks(done)["port_grafana"]
    assert row["found"].startswith(f"{port} is taken by pid {os.getpid()} (")
    assert row["remedy"] == ("end that, or name another port: GRAFANA_PORT in .env (line 4)")


def test_a_model_that_is_not_found(tmp_path: Path) -> None:
    done = doctor(tmp_path, "--local", "--model", "org/not-here", "--json")
    assert done.returncode == 1
    assert checks(done)["model"]["status"] == "fault"
    assert "org/not-here is not in the hub's cache here" in checks(done)["model"]["found"]


def test_results_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    row = checks(doctor(tmp_path, "--local", "--results-dir", "file", "--json"))["disk_results"]
    assert row["status"] == "fault"
    assert "--results-dir" in row["remedy"]


def test_too_few_open_files(tmp_path: Path) -> None:
    command = f"ulimit -n 300; exec {sys.executable} -m harness doctor --local --levels 64 --json"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    row = checks(done)["open_files"]
    assert row["status"] == "fault"
    # 64 requests and 256 for the rest
    assert row["found"].startswith("300 open files; the largest level, 64, needs 320")


def test_the_verdict_in_json(tmp_path: Path) -> None:
    clone(tmp_path, env=moved(tmp_path))
    done = doctor(tmp_path, "--json")
    told = json.loads(done.stdout)
    assert (told["schema_version"], told["exit_code"]) == (1, done.returncode)
    assert set(told["ways"]) == {"compose", "local"}
    assert told["ways"]["compose"]["ready"] is False
    assert "docker" in told["ways"]["compose"]["blocked_by"]
    assert set(told["checks"][0]) == {"name", "section", "status", "found", "remedy", "ways"}


BAD: list[tuple[list[str], Mapping[str, str], str]] = [
    (["--compose", "nowhere.yml"], {}, "--compose: 'nowhere.yml' is not valid; expected a Compose"),
    (["docker-compose.yml"], {}, "doctor: 'docker-compose.yml' is not valid; expected --compose"),
    (["--gpu", "--cpu"], {}, "--gpu: '--gpu --cpu' is not valid; expected one of the two"),
    (["--levels", "4,1"], {}, "--levels: '4,1' is not valid; expected rising whole numbers"),
    (["--lokal"], {}, "No such option '--lokal'. Did you mean '--local'?"),
    ([], {"KVKNEE_METRICS_PORT": "http"}, "--metrics-port: 'http' is not valid"),
]


@pytest.mark.parametrize(("arguments", "environment", "words"), BAD)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], environment: Mapping[str, str], words: str, tmp_path: Path
) -> None:
    done = doctor(tmp_path, *arguments, **environment)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("kvknee: ")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_env_that_is_no_text_is_bad_input(tmp_path: Path) -> None:
    (clone(tmp_path) / ".env").write_bytes(b"A=\xff\n")
    done = doctor(tmp_path)
    assert (done.returncode, done.stderr) == (
        2,
        "kvknee: .env: no text file; write NAME=value lines in UTF-8\n",
    )


def test_help_teaches(tmp_path: Path) -> None:
    done = doctor(tmp_path, "--help")
    assert done.returncode == 0
    for words in ("--compose FILE...", "kvknee doctor --local", "Exit codes: 0 nothing blocks"):
        assert words in done.stdout
