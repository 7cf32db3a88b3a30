"""Requests end, whatever the server sends; what a server says is shown harmlessly."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import httpx
import pytest

from harness.errors import BackendError
from harness.load.fetch import EndlessAnswerError, fetch
from harness.load.server_facts import ServerProbe, _reason, is_alive
from harness.load.settings import BackendAddress
from harness.manifest import BackendInfo
from tests.support.fake_openai import FakeOpenAi
from tests.support.scripted_server import PATIENCE_S, Peer, Request, ScriptedServer

#: the drips come ten times as often, so that no read ever times out
WITHIN_S = 0.3
DRIP_S = 0.03


def drip(peer: Peer, head: bytes, piece: bytes, wait_s: float = DRIP_S) -> None:
    """Send a head and then a piece, again and again, until the client has closed."""
    pause = threading.Event()
    with contextlib.suppress(OSError):
        peer.send(head)
        for _ in range(int(PATIENCE_S / DRIP_S)):
            peer.send(piece)
            pause.wait(wait_s)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
UNTIL_CLOSED = b"HTTP/1.1 200 OK\r\n\r\n"
LONG = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"


@contextlib.contextmanager
def client(read_s: float = 5.0) -> Iterator[httpx.Client]:
    with httpx.Client(timeout=read_s, trust_env=False) as made:
        yield made


@pytest.mark.parametrize(
    ("head", "piece"),
    [
        (CHUNKED, b"1\r\n \r\n"),
        (UNTIL_CLOSED, b" "),
        (LONG, b" "),
        (b"HTTP/1.1 200 OK\r\nX: ", b"a"),
        (b"", b""),  # nothing at all
    ],
)
def test_an_answer_that_drips_ends_in_time(head: bytes, piece: bytes) -> None:
    said = r"^no whole answer within 0\.3 s$"
    with (
        ScriptedServer(lambda peer, _: drip(peer, head, piece)) as server,
        client() as http,
        pytest.raises(EndlessAnswerError, match=said),
    ):
        fetch(http, "GET", server.url, within_s=WITHIN_S)


def test_an_answer_that_floods_ends_at_its_size() -> None:
    def flood(peer: Peer, _: Request) -> None:
        drip(peer, CHUNKED, b"1000\r\n" + 4096 * b" " + b"\r\n", wait_s=0.0)

    with (
        ScriptedServer(flood) as server,
        client() as http,
        pytest.raises(EndlessAnswerError, match="an answer of more than 10,000 bytes"),
    ):
        fetch(http, "GET", server.url, within_s=PATIENCE_S, most_bytes=10_000)


def test_an_answer_that_ends_is_whole() -> None:
    with ScriptedServer(lambda peer, _: peer.reply(200, {"a": 1})) as server, client() as http:
        got = fetch(http, "POST", server.url + "/x", within_s=PATIENCE_S, body={"b": 2})
        assert (got.status, got.object) == (200, {"a": 1})
        assert server.requests[0].json == {"b": 2}


def test_a_health_page_that_drips_is_no_answer() -> None:
    with (
        ScriptedServer(lambda peer, _: drip(peer, CHUNKED, b"1\r\n \r\n")) as server,
        client(WITHIN_S) as http,
    ):
        assert not is_alive(http, server.url)


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (404, True), (500, False)])
def test_a_health_page_that_ends_is_judged_by_its_status(status: int, healthy: bool) -> None:
    with ScriptedServer(lambda peer, _: peer.reply(status, "")) as server, client() as http:
        assert is_alive(http, server.url) is healthy


class Dripping(FakeOpenAi):
    """One of its pages has no end."""

    page = ""

    def _get(self, peer: Peer, path: str) -> None:
        if path == self.page:
            drip(peer, CHUNKED, b"1\r\n \r\n")
        else:
            super()._get(peer, path)


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("/v1/models", "cannot be reached (no whole answer within 0.3 s); start it"),
        ("/metrics", "has a /metrics page that cannot be read (no whole answer within 0.3 s)"),
    ],
)
def test_the_preflight_does_not_wait_for_ever(page: str, said: str) -> None:
    fake = Dripping()
    fake.page = page
    assert said in refused(fake, timeout_s=WITHIN_S)


def test_what_a_page_beside_drips_stays_unknown() -> None:
    fake = Dripping()
    fake.page = "/version"
    assert described(fake, timeout_s=WITHIN_S).engine_version is None


def described(fake: FakeOpenAi, timeout_s: float = 10.0, key: str | None = None) -> BackendInfo:
    with (
        ScriptedServer(fake) as server,
        ServerProbe(BackendAddress("b", server.url), key, timeout_s) as probe,
    ):
        return probe.describe(None).info


def refused(fake: FakeOpenAi, timeout_s: float = 10.0, key: str | None = None) -> str:
    with pytest.raises(BackendError) as caught:
        described(fake, timeout_s, key)
    text = str(caught.value)
    assert text.isprintable()
    return text


class Raw(FakeOpenAi):
    """Sends these bytes, whatever is asked."""

    raw = b""

    def __call__(self, peer: Peer, request: Request) -> None:
        peer.send(self.raw)
        peer.close()


def raw(body: bytes, head: str = "200 X") -> Raw:
    fake = Raw()
    fake.raw = f"HTTP/1.1 {head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    return fake


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"data":' + 200_000 * b"[" + 200_000 * b"]" + b"}", "is no OpenAI-style server"),
        (b'{"data":[{"id":null},{"id":[1]},{"id":""},5]}', "serves no model"),
        # half of a surrogate pair cannot be sent back
        (b'{"data":[{"id":"\\ud800"}]}', "serves no model"),
        (b"\xff\xfe\x00", "is no OpenAI-style server"),
    ],
)
def test_models_that_are_none(body: bytes, said: str) -> None:
    assert said in refused(raw(body))


EVIL = "\x1b[31m\x1b]0;pwned\x07\u202e\nm"


def test_names_are_kept_for_requests_and_shown_harmlessly() -> None:
    version: dict[str, object] = {
        "engine": "contiguous",
        "version": EVIL,
        "mode": EVIL,
        "dtype": EVIL,
    }
    info = described(FakeOpenAi(models=[{"id": EVIL}], version=version))
    assert info.model == EVIL
    shown = r"\x1b[31m\x1b]0;pwned\x07\u202e\nm"
    assert (info.mode, info.engine_version, info.dtype) == (shown, shown, shown)
    text = refused(FakeOpenAi(models=[{"id": EVIL}, {"id": 5000 * "x"}]))
    assert shown in text
    assert len(text) < 500


def test_numbers_that_are_none_stay_unknown() -> None:
    models: list[dict[str, object]] = [{"id": "m", "max_model_len": -5}]
    version: dict[str, object] = {
        "engine": "contiguous",
        "max_num_seqs": True,
        "kv_budget_bytes": "abc",
        "kv_bytes_per_token": 10**40,
    }
    info = described(FakeOpenAi(models=models, version=version))
    assert (info.max_model_len, info.max_num_seqs) == (None, None)
    assert (info.kv_budget_bytes, info.kv_bytes_per_token) == (None, None)


def test_no_secret_of_a_redirect_and_no_key_is_shown() -> None:
    key = "SECRETKEY-123456"
    text = refused(raw(b"", f"302 X\r\nLocation: http://u:hunter2@h/{key}"), key=key)
    assert "redirects to http://***@h/***;" in text


@pytest.mark.parametrize(
    "error",
    [
        httpx.LocalProtocolError("Illegal header value b'Bearer ab\\ncd'"),
        httpx.ReadError("echo of short"),
    ],
)
def test_the_reason_of_a_failure_never_holds_the_key(error: httpx.HTTPError) -> None:
    assert _reason(error, "short") == type(error).__name__
