"""What Docker's commands print, of several versions."""

from __future__ import annotations

import json

import pytest

from harness.doctor.docker_facts import (
    published,
    read_config,
    read_containers,
    read_daemon,
    read_images,
    read_version,
)
from harness.doctor.facts import Container, Daemon, Unknown
from tests.doctor.well_machine import GIB, INFO, said

#: as Docker 28 prints it when no daemon answers
NO_DAEMON = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker "
REFUSED = (
    "permission denied while trying to connect to the Docker daemon socket at "
    'unix:///run/docker.sock: Get "http://%2Frun%2Fdocker.sock/v1.50/info": dial unix '
    "/run/docker.sock: connect: permission denied"
)
EMPTY = json.dumps({"ServerVersion": "", "Runtimes": None, "ClientInfo": {}})


def test_a_daemon_that_answers() -> None:
    assert read_daemon(said(json.dumps(INFO))) == Daemon(
        "28.2.2", "/", 64 * GIB, frozenset({"runc", "nvidia"}), frozenset()
    )
    # a warning beside the answer is no failure
    assert isinstance(read_daemon(said(json.dumps(INFO), 0, "WARNING: no swap limit")), Daemon)


def test_a_daemon_that_does_not() -> None:
    assert read_daemon(said(EMPTY, 1, NO_DAEMON)) == NO_DAEMON.strip()
    assert read_daemon(said(EMPTY, 1, REFUSED)) == REFUSED
    # Docker 20.10 ends with 0 and tells it in the answer
    old = json.dumps({"ServerErrors": [f"error: {NO_DAEMON}"]})
    assert read_daemon(said(old, 0)) == f"error: {NO_DAEMON}".strip()
    assert read_daemon(Unknown("docker gave no answer in 10 s")) == "docker gave no answer in 10 s"
    assert read_daemon(said("")) == "the daemon does not say its version"
    assert read_daemon(said("[1]", 0, "")) == "the daemon does not say its version"


@pytest.mark.parametrize(
    ("out", "code", "version"),
    [
        ("2.40.3\n", 0, "2.40.3"),
        ("v2.20.2-desktop.1", 0, "2.20.2-desktop.1"),
        ("docker: 'compose' is not a docker command", 1, None),
        ("2.40.3", 1, None),
        ("", 0, None),
    ],
)
def test_composes_version(out: str, code: int, version: str | None) -> None:
    assert read_version(said(out, code)) == version


def test_composes_refusal_is_its_last_word() -> None:
    error = 'time="2026-01-01" level=warning msg="X is not set"\ninvalid hostPort: abc\n\n'
    assert read_config(said("", 15, error)) == "invalid hostPort: abc"
    assert read_config(said("", 15, "")) == "Compose gives no reason"
    assert read_config(Unknown("docker gave no answer in 10 s")) == "docker gave no answer in 10 s"
    assert read_config(said('{"name": "kvknee"}', 0, error)) == {"name": "kvknee"}


def test_containers_and_their_ports() -> None:
    lines = "web\t\t0.0.0.0:8080-8082->80-82/tcp, [::]:8443->443/tcp, 9/udp\nidle\t/srv\t\nbad\n"
    assert read_containers(said(lines)) == (
        Container("web", None, frozenset({8080, 8081, 8082, 8443})),
        Container("idle", "/srv", frozenset()),
    )
    assert read_containers(said(lines, 1)) == read_containers(Unknown("late")) == ()
    assert published("127.0.0.1:3000->3000/tcp") == {3000}


def test_images() -> None:
    assert read_images(said("a:1\nb/c:2\n")) == {"a:1", "b/c:2"}
    assert read_images(said("", 1)) is None
    assert read_images(Unknown("late")) is None
