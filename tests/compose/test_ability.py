"""When no Docker engine of our own can run, the reason says what to do."""

from __future__ import annotations

import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from tests.compose import ability
from tests.compose.ability import asked, missing_packages, packages_to_install, why_not

Usage = namedtuple("Usage", "total used free")
GIB = 2**30


@pytest.fixture(autouse=True)
def fit_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Linux, root, all programs, room: an engine can run."""
    monkeypatch.setattr(ability.sys, "platform", "linux")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(100 * GIB, 60 * GIB, 40 * GIB))
    monkeypatch.setattr(Path, "exists", lambda _: True)


def test_a_fit_machine_has_no_reason() -> None:
    assert why_not({}) is None


def test_not_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert why_not({}) == "a Docker engine of our own needs Linux and root"


def test_missing_programs_are_named_as_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = {"dockerd", "docker", "slirp4netns"}
    monkeypatch.setattr(shutil, "which", lambda name: None if name in missing else name)
    assert missing_packages() == ["docker.io", "slirp4netns"]
    assert why_not({}) == (
        "install the Debian packages docker.io slirp4netns; KVKNEE_TEST_DOCKER=1 make test-slow "
        "does it"
    )


@pytest.mark.parametrize(
    ("environment", "installed"),
    [
        ({}, False),
        ({"CI": "true"}, True),
        ({"KVKNEE_TEST_DOCKER": "1"}, True),
        ({"CI": "true", "KVKNEE_TEST_DOCKER": "0"}, False),
        ({"CI": "", "KVKNEE_TEST_DOCKER": ""}, False),
    ],
)
def test_an_engine_is_installed_where_somebody_wants_it(
    environment: dict[str, str], installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "dockerd" else name)
    assert packages_to_install(environment) == (["docker.io"] if installed else [])


def test_nothing_is_installed_where_it_would_not_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert packages_to_install({"CI": "true"}) == []


def test_who_does_not_want_it_is_obeyed_and_nonsense_refused() -> None:
    assert why_not({"KVKNEE_TEST_DOCKER": "0"}) == "KVKNEE_TEST_DOCKER=0"
    assert why_not({"KVKNEE_TEST_DOCKER": "1"}) is None
    with pytest.raises(ValueError, match="KVKNEE_TEST_DOCKER=yes is not valid; expected 0 or 1"):
        asked({"KVKNEE_TEST_DOCKER": "yes"})


def test_no_tunnel_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "exists", lambda path: str(path) != "/dev/net/tun")
    assert why_not({}) == "there is no /dev/net/tun, which slirp4netns needs"


def test_too_little_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(100 * GIB, 95 * GIB, 5 * GIB))
    reason = why_not({})
    assert reason is not None
    assert reason.startswith("5 GiB are free in ")
    assert reason.endswith(", 20 are needed")
