"""The client against a raw server: what goes over the wire, and what is recorded."""

from __future__ import annotations

import socket
import struct

import gevent
import pytest

from harness.load.clock import SystemClock
from harness.load.stamped_socket import StampedSocket
from harness.records import token_times_us
from tests.load.client_kit import make_ask, make_client, once, perform
from tests.load.stream_builder import usage_frame
from tests.load.three_tokens import LAST, THREE, X, answer_three
from tests.support.scripted_server import Peer, Request, ScriptedServer


def has_ipv6() -> bool:
    """Whether this machine has an IPv6 loopback address."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def test_a_streamed_request_and_its_record() -> None:
    sent: list[float] = []
    with ScriptedServer(answer_three) as server:
        client = make_client(server.url)
        record = client.perform(make_ask(), lambda _: None, sent.append)
        client.close()
    assert record.outcome == "ok"
    assert record.error is None
    assert sent == [record.t_sent_s]
    assert len(record.token_us) == 3
    assert (record.output_tokens, record.output_tokens_source) == (3, "usage")
    assert (record.prompt_tokens, record.asked_prompt_tokens) == (4, 4)
    assert (record.finish_reason, record.done_seen, record.http_status) == ("length", True, 200)
    assert record.t_sent_s is not None
    assert record.t_intended_s <= record.t_sent_s <= record.t_end_s
    assert record.connect_s is not None
    assert record.connect_s > 0
    assert record.tls_s is None
    # 0 < headers <= TTFT <= E2E <= all of it
    assert record.headers_s is not None
    times = token_times_us(record)
    whole_s = record.t_end_s - record.t_sent_s
    assert 0 < record.headers_s <= times[0] / 1e6 + 1e-6 <= times[-1] / 1e6 + 1e-6 <= whole_s + 2e-6


def test_the_request_on_the_wire() -> None:
    with ScriptedServer(answer_three) as server:
        client = make_client(server.url + "/base", api_key="secret-key", token_ids=True)
        perform(client)
        client.close()
    (request,) = server.requests
    assert (request.method, request.path) == ("POST", "/base/v1/completions")
    # a25: a compressed stream is held back until the packer has enough of it
    assert request.headers["accept-encoding"] == "identity"
    assert request.headers["host"] == f"127.0.0.1:{server.port}"
    assert request.headers["authorization"] == "Bearer secret-key"
    assert request.json == {
        "model": "m",
        "prompt": [1, 2, 3, 4],
        "max_tokens": 3,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "ignore_eos": True,
        "return_token_ids": True,
    }


def test_a_chat_request_goes_to_the_chat_endpoint() -> None:
    with ScriptedServer(answer_three) as server:
        client = make_client(server.url, endpoint="chat")
        perform(client, make_ask("hello"))
        client.close()
    assert server.requests[0].path == "/v1/chat/completions"
    assert server.requests[0].json["messages"] == [{"role": "user", "content": "hello"}]


def test_a_connection_is_kept_between_requests() -> None:
    with ScriptedServer(answer_three) as server:
        client = make_client(server.url)
        first, second = perform(client), perform(client)
        client.close()
    assert server.connections == 1
    assert first.connect_s is not None
    # nothing was connected for the second
    assert second.connect_s is None
    assert second.outcome == "ok"


def test_connection_close_is_honoured() -> None:
    def script(peer: Peer, request: Request) -> None:
        peer.headers(200, "text/event-stream", "Connection: close")
        peer.chunk(b"".join(THREE))
        peer.end()
        peer.close()

    with ScriptedServer(script) as server:
        client = make_client(server.url)
        assert [perform(client).outcome for _ in range(2)] == ["ok", "ok"]
        client.close()
    assert server.connections == 2


def test_a_kept_connection_closed_before_an_answer_is_replaced_once() -> None:
    def script(peer: Peer, request: Request) -> None:
        if len(server.requests) == 2:
            peer.close()  # as if its keep-alive time was over just now
        else:
            peer.stream(*THREE)

    with ScriptedServer(script) as server:
        client = make_client(server.url)
        perform(client)
        record = perform(client)
        client.close()
    assert record.outcome == "ok"
    # the record tells of the connection that served it
    assert record.connect_s is not None
    assert server.connections == 2


def test_a_new_connection_closed_before_an_answer_is_a_reset() -> None:
    with ScriptedServer(lambda peer, _: peer.close()) as server:
        client = make_client(server.url)
        record = perform(client)
    assert (record.outcome, record.error) == ("reset", "closed without an answer")
    assert record.t_sent_s is not None
    assert server.connections == 1


def test_an_idle_connection_that_was_closed_is_not_used() -> None:
    def script(peer: Peer, request: Request) -> None:
        peer.stream(*THREE)
        peer.close()

    with ScriptedServer(script) as server:
        client = make_client(server.url)
        perform(client)
        gevent.wait(timeout=0)
        assert perform(client).outcome == "ok"
        client.close()
    assert server.connections == 2


def test_nobody_listens() -> None:
    with ScriptedServer(answer_three) as server:
        pass
    record = once(server.url)
    assert (record.outcome, record.error) == ("connect", "Connection refused")
    assert record.t_sent_s is None
    assert record.token_us == ()


def test_a_host_name_that_does_not_exist() -> None:
    record = once("http://no-such-host.invalid:1")
    assert record.outcome == "connect"
    assert "host name not found" in (record.error or "")


def test_a_reset_in_mid_stream() -> None:
    def script(peer: Peer, request: Request) -> None:
        peer.headers()
        peer.chunk(X)
        peer.reset()

    with ScriptedServer(script) as server:
        record = once(server.url)
    assert (record.outcome, record.error) == ("reset", "Connection reset by peer")


@pytest.mark.parametrize("size", [300, 479, 5000])
def test_what_came_before_a_reset_is_kept(size: int) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    stamped = StampedSocket("127.0.0.1", port, clock=SystemClock(), timeout_s=5)
    peer, _ = listener.accept()
    peer.sendall(b"x" * size)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()
    listener.close()
    got: list[bytes] = []
    with pytest.raises(ConnectionResetError):
        stamped.receive(lambda t_s, stamp, data: got.append(data) is not None)
    stamped.close()
    assert sum(map(len, got)) == size


def test_a11_a_stream_cut_in_mid_answer_is_truncated_and_keeps_its_tokens() -> None:
    def script(peer: Peer, request: Request) -> None:
        peer.headers()
        peer.chunk(X + X)
        peer.close()

    with ScriptedServer(script) as server:
        record = once(server.url)
    assert record.outcome == "truncated"
    assert len(record.token_us) == 2


def test_a12_a_complete_answer_closed_before_done_is_a_success() -> None:
    def script(peer: Peer, request: Request) -> None:
        peer.headers()
        peer.chunk(X + X + X + LAST + usage_frame(3))
        peer.close()

    with ScriptedServer(script) as server:
        record = once(server.url)
    assert (record.outcome, record.done_seen) == ("ok", False)


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")
def test_ipv6() -> None:
    with ScriptedServer(lambda peer, _: peer.stream(*THREE), host="::1") as server:
        record = once(server.url)
    assert (record.outcome, len(record.token_us)) == ("ok", 3)
    assert server.requests[0].headers["host"] == f"[::1]:{server.port}"


def test_a_body_that_ends_with_the_connection() -> None:
    def script(peer: Peer, request: Request) -> None:
        peer.headers(chunked=False)
        peer.send(b"".join(THREE))
        peer.close()

    with ScriptedServer(script) as server:
        client = make_client(server.url)
        assert [perform(client).outcome for _ in range(2)] == ["ok", "ok"]
    assert server.connections == 2


def test_a_body_with_a_length_after_an_interim_response() -> None:
    def script(peer: Peer, request: Request) -> None:
        body = b"".join(THREE)
        peer.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        peer.headers(200, "text/event-stream", f"Content-Length: {len(body)}", chunked=False)
        peer.send(body)

    with ScriptedServer(script) as server:
        client = make_client(server.url)
        assert [perform(client).outcome for _ in range(2)] == ["ok", "ok"]
        client.close()
    assert server.connections == 1
