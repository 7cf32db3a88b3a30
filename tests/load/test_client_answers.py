"""Answers that are none, or not as they were asked for."""

from __future__ import annotations

import gevent
import pytest

from harness.load.client import StreamClient
from harness.records import RequestRecord
from tests.load.client_kit import make_ask, make_client, once, perform
from tests.load.three_tokens import THREE
from tests.support.scripted_server import Peer, Request, ScriptedServer


def test_an_answer_whose_http_framing_never_ends_after_done() -> None:
    def script(peer: Peer, request: Request) -> None:
        peer.headers()
        peer.chunk(b"".join(THREE))
        peer.wait_closed()
        peer.close()

    with ScriptedServer(script) as server:
        record = once(server.url)
    assert record.outcome == "ok"


@pytest.mark.parametrize(
    ("status", "body", "outcome", "error"),
    [
        (429, {"error": {"message": "slow down"}}, "rejected", "HTTP 429: slow down"),
        (503, {"detail": "queue full"}, "rejected", "HTTP 503: queue full"),
        (404, {"error": {"message": "no model m"}}, "http_error", "HTTP 404: no model m"),
        (500, "", "http_error", "HTTP 500"),
        (502, "<h1>\n  Bad   Gateway\n</h1>", "http_error", "HTTP 502: <h1> Bad Gateway </h1>"),
    ],
)
def test_a_status_other_than_200(status: int, body: object, outcome: str, error: str) -> None:
    with ScriptedServer(lambda peer, _: peer.reply(status, body)) as server:
        client = make_client(server.url)
        record = perform(client)
        client.close()
    assert (record.outcome, record.error, record.http_status) == (outcome, error, status)


def test_a_redirect_is_refused_with_where_it_points() -> None:
    def script(peer: Peer, request: Request) -> None:
        peer.reply(307, "", "Location: http://127.0.0.1:9/v1")

    with ScriptedServer(script) as server:
        record = once(server.url)
    assert record.outcome == "http_error"
    assert record.error == (
        "HTTP 307: redirected to http://127.0.0.1:9/v1; "
        "give --backends the server that answers itself"
    )


def test_words_of_an_error_are_cut_and_never_hold_the_key() -> None:
    words = "key secret-key is not valid " + "y" * 1000
    with ScriptedServer(lambda peer, _: peer.reply(401, words)) as server:
        record = once(server.url, api_key="secret-key")
    assert record.error is not None
    assert record.error.startswith("HTTP 401: key *** is not valid yyy")
    assert len(record.error) == 300


def test_bytes_that_are_no_http() -> None:
    def script(peer: Peer, request: Request) -> None:
        peer.send(b"SSH-2.0-OpenSSH_9.2\r\n")
        peer.close()

    with ScriptedServer(script) as server:
        record = once(server.url)
    assert record.outcome == "malformed"


def test_a27_an_answer_that_is_not_streamed_has_no_first_token() -> None:
    body = {
        "choices": [{"text": "abc", "finish_reason": "length"}],
        "usage": {"prompt_tokens": 4, "completion_tokens": 3},
    }
    with ScriptedServer(lambda peer, _: peer.reply(200, body)) as server:
        record = once(server.url)
    assert record.outcome == "malformed"
    assert record.token_us == ()
    assert record.output_tokens == 3


def test_an_error_object_with_status_200_is_in_band() -> None:
    with ScriptedServer(lambda peer, _: peer.reply(200, {"error": {"message": "m"}})) as server:
        record = once(server.url)
    assert (record.outcome, record.error) == ("in_band_error", "m")


class Picky:
    """Answers 400 to the fields that it does not know."""

    def __init__(self, *unknown: str) -> None:
        self.unknown = unknown

    def __call__(self, peer: Peer, request: Request) -> None:
        odd = [name for name in self.unknown if name in request.json]
        if odd:
            peer.reply(400, {"error": {"message": f"unknown field {odd[0]}"}})
        else:
            peer.stream(*THREE)


@pytest.mark.parametrize(
    ("unknown", "tries"),
    [
        (("return_token_ids",), 2),
        (("ignore_eos",), 3),
        # a24: stream_options itself is refused
        (("stream_options",), 4),
    ],
)
def test_a24_a_a_refused_field_is_left_out_and_that_is_remembered(
    unknown: tuple[str, ...], tries: int
) -> None:
    with ScriptedServer(Picky(*unknown)) as server:
        client = make_client(server.url, token_ids=True)
        assert [perform(client).outcome for _ in range(2)] == ["ok", "ok"]
        client.close()
    assert len(server.requests) == tries + 1


def test_a_400_after_a_success_is_an_error_of_that_request() -> None:
    def script(peer: Peer, request: Request) -> None:
        if len(server.requests) == 1:
            peer.stream(*THREE)
        else:
            peer.reply(400, {"error": {"message": "too long"}})

    with ScriptedServer(script) as server:
        client = make_client(server.url)
        perform(client)
        record = perform(client)
        client.close()
    assert (record.outcome, record.error) == ("http_error", "HTTP 400: too long")
    assert len(server.requests) == 2


def test_a_400_to_the_plainest_body_is_an_error() -> None:
    with ScriptedServer(lambda peer, _: peer.reply(400, {"error": "no"})) as server:
        client = make_client(server.url)
        assert perform(client).outcome == "http_error"
        client.close()
    assert len(server.requests) == 3


def test_without_ignore_eos_an_early_end_is_no_failure() -> None:
    with ScriptedServer(Picky("ignore_eos")) as server:
        client = make_client(server.url)
        record = perform(client, make_ask(output_tokens=1000))
        client.close()
    assert (record.outcome, record.output_tokens) == ("ok", 3)


def kill_in_flight(client: StreamClient, server: ScriptedServer) -> list[RequestRecord]:
    """Kill the greenlet of a request that the server has seen."""
    delivered: list[RequestRecord] = []
    greenlet = gevent.spawn(client.perform, make_ask(), delivered.append)
    with gevent.Timeout(20):
        while not server.requests:
            gevent.sleep(0.001)
    greenlet.kill()
    return delivered


def test_b52_a_killed_request_is_recorded_as_cancelled_with_what_it_got() -> None:
    def script(peer: Peer, request: Request) -> None:
        peer.wait_closed()
        peer.close()

    with ScriptedServer(script) as server:
        (record,) = kill_in_flight(make_client(server.url), server)
    assert record.outcome == "cancelled"
    assert record.t_sent_s is not None
