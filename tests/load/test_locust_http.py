"""B56: streams are read from the harness's own socket, not through Locust's HTTP users."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.test_import_direction import HARNESS, ROOT, imports, starts_with

#: ``FastHttpUser`` could not read a stream line by line until the end of 2025, and neither
#: it nor ``HttpUser`` says when a byte arrived
HTTP_USERS = (
    "locust.FastHttpUser",
    "locust.HttpUser",
    "locust.HttpSession",
    "locust.clients",
    "locust.contrib",
    "locust.user.users.HttpUser",
    "geventhttpclient",
    "requests",
)
MODULES = sorted([*HARNESS.rglob("*.py"), *(ROOT / "scenarios").glob("*.py")])


def http_users(path: Path) -> list[str]:
    return [name for name in imports(path) if any(starts_with(name, user) for user in HTTP_USERS)]


def test_b56_nothing_reads_streams_through_locusts_http_users() -> None:
    assert len(MODULES) > 50
    assert {path.name: found for path in MODULES if (found := http_users(path))} == {}


@pytest.mark.parametrize(
    "line",
    [
        "from locust import FastHttpUser",
        "from locust.contrib.fasthttp import FastHttpUser",
        "import locust.clients",
        "import requests",
    ],
)
def test_b56_one_that_does_is_seen(tmp_path: Path, line: str) -> None:
    path = tmp_path / "module.py"
    path.write_text(line + "\n")
    assert http_users(path)
