"""The real Docker client, where one is installed, with the real Compose; no daemon is needed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.compose.files import compose_program
from tests.doctor.test_cli_doctor import checks, doctor, moved, tool
from tests.doctor.well_machine import ROOT, clone

CLIENT = shutil.which("docker")
pytestmark = pytest.mark.skipif(CLIENT is None, reason="no Docker client is installed")


def real(folder: Path) -> dict[str, str]:
    """The environment of a client that finds Compose, and no daemon."""
    plugins = folder / "docker" / "cli-plugins"
    plugins.mkdir(parents=True)
    (plugins / "docker-compose").symlink_to(compose_program())
    return {"DOCKER_CONFIG": str(plugins.parent), "DOCKER_HOST": f"unix://{folder}/no.sock"}


def test_the_client_without_a_daemon(tmp_path: Path) -> None:
    clone(tmp_path, env=moved(tmp_path))
    path, environment = str(Path(str(CLIENT)).parent), real(tmp_path)
    arguments = ("--compose", "docker-compose.cpu.yml", "--json")
    row = checks(doctor(tmp_path, *arguments, path=path, **environment))["docker_daemon"]
    assert row["found"] == "Docker is installed, but its daemon does not run"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_the_client_at_a_socket_that_refuses_it(tmp_path: Path) -> None:
    """Root is never refused: the client's words are taken from another user's try."""
    with (
        tempfile.TemporaryDirectory() as folder,
        socket.socket(socket.AF_UNIX) as listener,
    ):
        Path(folder).chmod(0o755)
        path = Path(folder) / "docker.sock"
        listener.bind(str(path))
        listener.listen()
        path.chmod(0o600)
        done = subprocess.run(
            [str(CLIENT), "info", "--format", "{{json .}}"],
            env={"DOCKER_HOST": f"unix://{path}", "HOME": folder, "PATH": "/"},
            user=65_534,
            group=65_534,
            extra_groups=[],
            capture_output=True,
            text=True,
            timeout=60,
        )
    tool(tmp_path, "docker", f"echo '{done.stderr.strip()}' >&2; exit {done.returncode}")
    clone(tmp_path, env=moved(tmp_path))
    row = checks(doctor(tmp_path, "--compose", "docker-compose.cpu.yml", "--json"))["docker_daemon"]
    assert row["found"] == "Docker's socket refuses you (permission denied)"
    assert "usermod -aG docker" in row["remedy"]


@pytest.mark.parametrize(
    ("option", "ports"),
    [
        ("--gpu", {"paged", "contiguous", "prometheus", "grafana", "dcgm"}),
        ("--cpu", {"paged", "contiguous", "prometheus", "grafana"}),
    ],
)
def test_compose_merges_our_own_files(option: str, ports: set[str], tmp_path: Path) -> None:
    for name in ("docker-compose.yml", "docker-compose.cpu.yml", ".env.example"):
        shutil.copy(ROOT / name, tmp_path / name)
    path, environment = str(Path(str(CLIENT)).parent), real(tmp_path)
    done = doctor(tmp_path, option, "--json", path=path, **environment)
    found = checks(done)
    assert found["compose"]["status"] == found["compose_config"]["status"] == "ok"
    assert found["compose_files"]["status"] == "ok"
    of_compose = {
        name.removeprefix("port_")
        for name, row in found.items()
        if name.startswith("port_") and "compose" in row["ways"]
    }
    assert of_compose == ports


def test_what_compose_refuses_is_told_without_the_value(tmp_path: Path) -> None:
    clone(tmp_path, env="GRAFANA_PORT=s3cret\n")
    (tmp_path / "docker-compose.cpu.yml").unlink()
    path, environment = str(Path(str(CLIENT)).parent), real(tmp_path)
    arguments = ("--compose", "docker-compose.yml", "--json")
    done = doctor(tmp_path, *arguments, path=path, **environment)
    assert "s3cret" not in done.stdout
    row = checks(done)["compose_config"]
    assert row["status"] == "fault"
    assert "***" in row["found"]
    assert (
        checks(done)["port_grafana"]["found"] == "GRAFANA_PORT in .env (line 1) is no port number"
    )
