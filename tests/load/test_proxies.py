"""Proxies are refused, in one line, where they can be known."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.errors import BackendError
from harness.load.clock import SystemClock
from harness.load.preflight import prepare
from harness.load.proxies import proxy_variable
from harness.load.settings import BackendAddress
from tests.load.client_kit import once
from tests.load.test_settings import settings
from tests.support.scripted_server import Peer, Request, ScriptedServer

NAMES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    yield


@pytest.mark.parametrize(
    ("variable", "url"),
    [
        ("HTTP_PROXY", "http://llm.example:8000"),
        ("http_proxy", "http://llm.example:8000"),
        ("HTTPS_PROXY", "https://llm.example"),
        ("ALL_PROXY", "http://llm.example:8000"),
        ("all_proxy", "https://llm.example"),
    ],
)
def test_a_variable_that_asks_for_a_proxy_is_named(
    monkeypatch: pytest.MonkeyPatch, variable: str, url: str
) -> None:
    monkeypatch.setenv(variable, "http://user:password@proxy.example:3128")
    assert proxy_variable(url) == variable


@pytest.mark.parametrize(
    ("environment", "url"),
    [
        ({}, "http://llm.example:8000"),
        ({"HTTP_PROXY": "http://p:1"}, "https://llm.example"),
        ({"HTTPS_PROXY": "http://p:1"}, "http://llm.example"),
        ({"HTTP_PROXY": ""}, "http://llm.example"),
        ({"HTTP_PROXY": "http://p:1", "NO_PROXY": "llm.example"}, "http://llm.example:8000"),
        ({"ALL_PROXY": "http://p:1", "no_proxy": ".example"}, "http://llm.example:8000"),
        # a proxy cannot reach what this machine calls itself
        ({"HTTP_PROXY": "http://p:1"}, "http://127.0.0.1:8000"),
        ({"HTTP_PROXY": "http://p:1"}, "http://[::1]:8000"),
        ({"HTTP_PROXY": "http://p:1"}, "http://localhost:8000"),
    ],
)
def test_a_proxy_that_does_not_apply_is_none(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], url: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert proxy_variable(url) is None


def refused(url: str) -> str:
    with pytest.raises(BackendError) as caught:
        prepare(BackendAddress("paged", url), settings(), 1, SystemClock())
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_the_preflight_refuses_a_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://user:password@proxy.example:3128")
    assert refused("http://llm.example:8000") == (
        "backend paged (http://llm.example:8000): HTTP_PROXY asks for a proxy, and a load through "
        "one would measure the proxy; unset it or name the host in NO_PROXY, and give --backends "
        "the server that answers itself"
    )


@pytest.mark.parametrize(
    ("status", "header", "words"),
    [
        (407, 'Proxy-Authenticate: Basic realm="x"', "asks for credentials (HTTP 407)"),
        (502, "Via: 1.1 squid", "cannot reach the server (HTTP 502, Via: 1.1 squid)"),
        (504, "via: 1.1 edge", "cannot reach the server (HTTP 504, Via: 1.1 edge)"),
    ],
)
def test_an_answer_in_a_proxys_own_name_is_refused(status: int, header: str, words: str) -> None:
    def script(peer: Peer, request: Request) -> None:
        peer.reply(status, "<h1>no</h1>", header)

    with ScriptedServer(script) as server:
        said = refused(server.url)
        record = once(server.url)
    assert words in said
    assert said.count("\n") == 0
    assert said.endswith("give --backends the server that answers itself")
    assert record.outcome == "http_error"
    assert words in (record.error or "")


def test_a_reverse_proxy_that_passes_answers_on_is_taken_for_the_server() -> None:
    def script(peer: Peer, request: Request) -> None:
        peer.reply(500, "out of memory", "Via: 1.1 edge")

    with ScriptedServer(script) as server:
        record = once(server.url)
    assert record.error == "HTTP 500: out of memory"
