"""The client against servers that end too early, never, or say what nobody should obey."""

from __future__ import annotations

import gzip
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.load import exchange, watchdog
from harness.load.exchange import MAX_HEAD_BYTES, Exchange, answer_limit_bytes
from harness.load.http1 import ResponseReader
from harness.load.sse import parse_events
from harness.records import RequestRecord
from tests.load.client_kit import make_ask, make_client, once, perform
from tests.load.stream_builder import usage_frame
from tests.support.scripted_server import (
    DONE,
    PATIENCE_S,
    Peer,
    Request,
    ScriptedServer,
    text_chunk,
)

MIB = 2**20
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST = text_chunk("", finish_reason="length")


def fed(*pieces: bytes) -> ResponseReader:
    """A response whose body came in these pieces."""
    reader = ResponseReader()
    reader.feed(0, HEAD)
    for number, piece in enumerate(pieces):
        if piece:
            reader.feed(number, f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
    return reader


@pytest.mark.parametrize(
    "body",
    [
        DONE,
        text_chunk("x") + DONE,
        b"data: {}\r\n\r\ndata:[DONE]\r\n\r\n",
        b"data: {}\r\rdata: [DONE]\r\r",
        b": a comment of some length\ndata: [DONE]\n\n",
    ],
)
def test_the_event_done_is_seen_however_it_is_cut(body: bytes) -> None:
    for cut in range(len(body)):
        assert fed(body[:cut], body[cut:]).ends_with_done
        # and no earlier than the parser has it
        parsed = [event.data for event in parse_events([(0, body[:cut])])]
        assert fed(body[:cut]).ends_with_done == (b"[DONE]" in parsed)
    assert fed(*[bytes([byte]) for byte in body]).ends_with_done


@pytest.mark.parametrize(
    "body",
    [
        text_chunk("[DONE]"),
        text_chunk("data: [DONE]\n\n"),
        text_chunk("x", note="[DONE]"),
        b"data: [DONE]",
        b"data: [DONE]\n",
        b"data: [DONE]\r\n",
        b"data: x[DONE]\n\n",
        b"xdata: [DONE]\n\n",
        b"data:  [DONE]\n\n",
        b": [DONE]\n\n",
        b"[DONE]\n\n",
        b"",
    ],
)
def test_done_within_a_text_is_no_end(body: bytes) -> None:
    assert not fed(body).ends_with_done
    assert not fed(text_chunk("a") + body).ends_with_done


@given(st.text(max_size=40), st.integers(0, 200))
def test_no_text_of_a_chunk_looks_like_the_end(text: str, cut: int) -> None:
    body = text_chunk(text + "[DONE]")
    assert not fed(body[:cut], body[cut:]).ends_with_done


def test_a_text_that_holds_done_gets_all_the_time_that_others_get(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked = threading.Event()

    def script(peer: Peer, request: Request) -> None:
        peer.headers()
        peer.chunk(text_chunk("write [DONE] now"))
        # silent until the watchdog has had a look at it
        assert looked.wait(PATIENCE_S)
        for frame in (text_chunk("[DONE]"), text_chunk("x"), LAST, usage_frame(3)):
            peer.chunk(frame)
        peer.end()

    really_said_all = Exchange.said_all.fget
    assert really_said_all is not None

    def said_all(progress: Exchange) -> bool:
        found = really_said_all(progress)
        if progress.response.pieces:
            looked.set()
        return bool(found)

    monkeypatch.setattr(watchdog, "_LOOK_S", 0.01)
    monkeypatch.setattr(Exchange, "said_all", property(said_all))
    with ScriptedServer(script) as server:
        record = once(server.url)
    assert (record.outcome, record.done_seen, record.output_tokens) == ("ok", False, 3)


def test_the_limit_of_an_answer_grows_with_what_was_asked() -> None:
    assert answer_limit_bytes(1) == answer_limit_bytes(4096) == 64 * MIB
    # 16 KiB for each of 8192 tokens
    assert answer_limit_bytes(8192) == 128 * MIB
    assert answer_limit_bytes(10_000_000) == 1024 * MIB


def endless(piece: bytes, *before: bytes) -> RequestRecord:
    """A server that sends ``piece`` until the client goes away, twice; the second record."""

    def script(peer: Peer, request: Request) -> None:
        for data in before:
            peer.send(data)
        while True:  # ends by the OSError of a closed connection
            peer.send(piece)

    with ScriptedServer(script) as server:
        client = make_client(server.url)
        first, second = perform(client), perform(client)
        client.close()
    # the connection was given up, nothing of it is used again
    assert server.connections == 2
    assert (first.outcome, first.error) == (second.outcome, second.error)
    return second


def chunked(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


@pytest.mark.parametrize("data", [b"a" * 65536, LAST + text_chunk("y" * 1000) * 50])
def test_an_answer_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(exchange, "_MIN_ANSWER_LIMIT_BYTES", 2 * MIB)
    record = endless(chunked(data), HEAD)
    assert (record.outcome, record.error) == ("malformed", "the answer is longer than 2 MiB")
    # nothing of it is read, and what came is on record: one read of up to 1 MiB over the limit
    assert record.token_us == ()
    assert record.headers_s is not None
    assert 2 * MIB < record.bytes_received <= 3 * MIB + 65536


def test_headers_without_end_are_given_up() -> None:
    record = endless(b"X-A: " + b"a" * 6000 + b"\r\n", b"HTTP/1.1 200 OK\r\n")
    assert (record.outcome, record.http_status) == ("malformed", None)
    assert record.error == "no end of the headers within 128 KiB"
    assert MAX_HEAD_BYTES < record.bytes_received <= MAX_HEAD_BYTES + MIB + 65536


def test_an_error_body_without_end_keeps_its_class_and_its_first_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exchange, "_MIN_ANSWER_LIMIT_BYTES", 2 * MIB)
    record = endless(b"no " * 9000, b"HTTP/1.1 500 X\r\nContent-Length: 99999999\r\n\r\n")
    assert record.outcome == "http_error"
    assert (record.error or "").startswith("HTTP 500: no no no")


def test_an_answer_of_one_large_event_is_read() -> None:
    # 8 MiB of text in one event is odd, not endless
    frames = [text_chunk("a" * (8 * MIB)), text_chunk("b"), text_chunk("c")]
    with ScriptedServer(lambda peer, _: peer.stream(*frames, LAST, usage_frame(3))) as server:
        assert once(server.url).outcome == "ok"


@pytest.mark.parametrize(
    "place",
    ["http://user:SECRET@h/", "//SECRET@h/", "http://h/?token=SECRET", "http://u:/SECRET@h/"],
)
def test_a_redirect_does_not_show_credentials(place: str) -> None:
    with ScriptedServer(lambda peer, _: peer.reply(302, "", f"Location: {place}")) as server:
        error = once(server.url).error or ""
    assert "redirected to " in error
    assert "SECRET" not in error
    assert "***@" in error or "?..." in error


def test_credentials_in_an_error_body_are_not_shown() -> None:
    words = '<a href="https://user:SECRET@h/x">moved</a>'
    with ScriptedServer(lambda peer, _: peer.reply(502, words)) as server:
        record = once(server.url)
    assert record.error == 'HTTP 502: <a href="https://***@h/x">moved</a>'


def test_words_of_a_server_are_kept_printable() -> None:
    words = "\x1b[31mred\x1b]0;title\x07 \u202eright to left\u2066 a\u200bb\nnext"
    with ScriptedServer(lambda peer, _: peer.reply(500, words)) as server:
        record = once(server.url)
    assert record.error == (
        r"HTTP 500: \x1b[31mred\x1b]0;title\x07 \u202eright to left\u2066 a\u200bb next"
    )
    assert record.error.isprintable()


def test_a_finish_reason_is_kept_short_and_printable() -> None:
    last = text_chunk("", finish_reason="\x1b[31m" * 10000)
    frames = [*[text_chunk("x")] * 3, last, DONE]
    with ScriptedServer(lambda peer, _: peer.stream(*frames)) as server:
        record = once(server.url)
    assert record.outcome == "ok"
    assert record.finish_reason is not None
    assert len(record.finish_reason) == 64
    assert record.finish_reason.isprintable()


def packed(status: int, encoding: str, body: bytes) -> RequestRecord:
    """The record of an answer with that Content-Encoding."""

    def script(peer: Peer, request: Request) -> None:
        length, coding = f"Content-Length: {len(body)}", f"Content-Encoding: {encoding}"
        peer.headers(status, "text/event-stream", coding, length, chunked=False)
        peer.send(body)

    with ScriptedServer(script) as server:
        return once(server.url)


def test_a_packed_answer_is_malformed_and_says_how_it_is_packed() -> None:
    body = b"".join([*[text_chunk("x")] * 3, LAST, DONE])
    record = packed(200, "gzip", gzip.compress(body))
    assert (record.outcome, record.error) == (
        "malformed",
        "the answer is packed (Content-Encoding: gzip), though identity was asked for",
    )
    record = packed(500, "br", b"\x00\xff")
    assert record.error == "HTTP 500: the answer is packed (Content-Encoding: br)"
    assert packed(200, "Identity", body).outcome == "ok"


def test_trailers_do_not_change_what_the_headers_said() -> None:
    def script(peer: Peer, request: Request) -> None:
        peer.headers()
        peer.chunk(b"".join([*[text_chunk("x")] * 3, LAST, DONE]))
        peer.send(b"0\r\nContent-Encoding: gzip\r\n\r\n")

    with ScriptedServer(script) as server:
        assert once(server.url).outcome == "ok"


def test_tokens_beyond_what_was_asked_are_not_believed() -> None:
    frames = [*[text_chunk("x")] * 5, LAST, usage_frame(999_999_999), DONE]
    with ScriptedServer(lambda peer, _: peer.stream(*frames)) as server:
        client = make_client(server.url)
        record = perform(client, make_ask(output_tokens=5))
        client.close()
    assert (record.outcome, record.output_tokens) == ("malformed", None)
    assert record.error == "more tokens than asked: usage states 999999999 of 5"
    # five arrivals, of one token each as far as is known
    assert (len(record.token_us), record.token_n) == (5, None)


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        (
            b"<html><body>\n\x1b[31mSign in to the network of this house</body></html>",
            "text/html; charset=utf-8",
            'text/html, starts with "<html><body> \\x1b[31mSign in to the network..."',
        ),
        (b"busy", "text/plain", 'text/plain, starts with "busy"'),
        (b"busy", "", 'no Content-Type, starts with "busy"'),
    ],
)
def test_a_page_that_is_no_answer_is_named(body: bytes, kind: str, words: str) -> None:
    def answer(peer: Peer, request: Request) -> None:
        peer.headers(200, kind, f"Content-Length: {len(body)}", chunked=False)
        peer.send(body)

    with ScriptedServer(answer) as server:
        record = once(server.url)
    assert (record.outcome, record.error) == ("malformed", words)
    assert record.token_us == ()


def test_an_empty_page_is_an_answer_that_ended_early() -> None:
    def answer(peer: Peer, request: Request) -> None:
        peer.headers(200, "text/html", "Content-Length: 0", chunked=False)

    with ScriptedServer(answer) as server:
        assert once(server.url).outcome == "truncated"
