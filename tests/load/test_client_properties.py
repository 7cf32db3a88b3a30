"""Any valid answer gives the same record however it is cut; no bytes crash the client."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from unittest.mock import patch

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness.load import answer as answer_module
from harness.load import timeline as timeline_module
from harness.load.answer import Answer, read_answer
from harness.load.exchange import Ended, Exchange
from harness.load.http1 import MalformedResponseError
from harness.load.plain_body import plain_body
from harness.load.reads import NO_STAMP, Reads
from harness.load.sse import Events, SseEvent, parse_events, split_lines
from harness.load.timeline import Failure, arrivals
from harness.records import RequestRecord
from tests.load.client_kit import make_ask
from tests.load.stream_builder import chat_delta, stamp_of, usage_frame
from tests.support.scripted_server import DONE, text_chunk

TOKENS = 40


def record_of(reads: Sequence[bytes], *, closed: bool = True) -> RequestRecord:
    """The record of a response that came in these reads, 0.1 s apart."""
    exchange = Exchange(t_sent_s=1.0)
    take = exchange.taker()
    try:
        for number, data in enumerate(reads):
            if data and take(1.1 + 0.1 * number, NO_STAMP, data):
                break
        else:
            if closed:
                exchange.note_end()
    except MalformedResponseError as error:
        exchange.failure = Failure("malformed", str(error))
    exchange.frame_rest()
    ask = make_ask(output_tokens=TOKENS)
    return Ended(ask, exchange, 9.0, exact=False, secret=None).record()


def without_times(record: RequestRecord) -> RequestRecord:
    return msgspec.structs.replace(
        record,
        token_us=(0,) * len(record.token_us),
        coalesced=(),
        headers_s=None,
        first_content_us=None,
        buffered=False,
        t_intended_s=0.0,
    )


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted({place % (len(data) + 1) for place in places}), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


# texts with all that could be taken for framing
TEXTS = st.text(max_size=8) | st.sampled_from(
    ["0\r\n\r\n", "\n\ndata: [DONE]\n\n", "[DONE]", "\r\n0\r\n\r\n", "中", "\U0001f600", ""]
)
EVENTS = st.lists(
    st.builds(lambda text: text_chunk(text), TEXTS)
    | st.builds(lambda text: chat_delta(content=text), TEXTS)
    | st.builds(lambda text: chat_delta(reasoning_content=text), TEXTS)
    | st.sampled_from([b": ping\n\n", b"event: x\ndata: {}\n\n", b"data: keep\n\n", b"\n"]),
    max_size=8,
)
ENDS = st.sampled_from(
    [text_chunk("", finish_reason="length") + usage_frame(9) + DONE, DONE, usage_frame(9), b""]
)
LINE_ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
PLACES = st.lists(st.integers(0, 5000), max_size=12)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """The body of a stream."""
    body = b"".join(draw(EVENTS)) + draw(ENDS)
    return body.replace(b"\n", draw(LINE_ENDS))


@st.composite
def responses(draw: st.DrawFn) -> bytes:
    """A stream as HTTP frames it, in one of all ways."""
    body = draw(bodies())
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    if draw(st.booleans()):
        head = b"HTTP/1.1 100 Continue\r\n\r\n" + head
    if draw(st.booleans()):
        head += b"Connection: close\r\n"
    kind = draw(st.sampled_from(["chunked", "length", "close"]))
    if kind == "close":
        return head + b"\r\n" + body
    if kind == "length":
        return head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    extension = draw(st.sampled_from([b"", b";x=1"]))
    trailer = draw(st.sampled_from([b"", b"X-Trailer: 1\r\n"]))
    chunks = [piece for piece in cut(body, draw(PLACES)) if piece]
    framed = b"".join(b"%x%b\r\n%b\r\n" % (len(c), extension, c) for c in chunks)
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + framed + b"0\r\n" + trailer + b"\r\n"


@settings(max_examples=300, deadline=None)
@given(responses(), PLACES)
def test_any_cut_gives_the_same_record(response: bytes, places: list[int]) -> None:
    whole = record_of([response])
    assert without_times(record_of(cut(response, places))) == without_times(whole)
    assert whole.bytes_received == len(response)


@settings(max_examples=30, deadline=None)
@given(responses())
def test_byte_by_byte_gives_the_same_record(response: bytes) -> None:
    single = [bytes([byte]) for byte in response]
    assert without_times(record_of(single)) == without_times(record_of([response]))


HEADS = [
    b"",
    b"HTTP/1.1 200 OK\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
    b"HTTP/1.1 503 X\r\n\r\n",
]
ODD_BYTES = st.lists(
    st.binary(max_size=20)
    | st.sampled_from(
        [b"data: ", b"\n\n", b"\r\n", b"{", b"}", b'"choices":[', b"0", b"event: ", b":"]
    )
).map(b"".join)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(HEADS), ODD_BYTES, PLACES, st.booleans())
def test_no_bytes_crash_the_client(
    head: bytes, data: bytes, places: list[int], closed: bool
) -> None:
    record = record_of(cut(head + data, places), closed=closed)
    assert record.token_us == () or record.outcome in ("ok", "truncated", "short_output")


PLAIN = st.lists(
    st.binary(max_size=12)
    | st.sampled_from([b"[DONE]", b"{}", b"", b" x", b"data: y", b"\n\ndata: "])
)


@settings(max_examples=300)
@given(PLAIN, st.sampled_from([b"", b"\n", b": c\n\n", b"data: z", b"\xef\xbb\xbf"]), st.booleans())
@example([b"{}"], b"", True)
def test_a_body_split_at_once_is_split_as_line_by_line(
    payloads: list[bytes], odd: bytes, first: bool
) -> None:
    plain = b"".join(b"data: " + payload + b"\n\n" for payload in payloads)
    body = odd + plain if first else plain + odd
    at_once = plain_body(body)
    data, ends, names = split_lines(body)
    if at_once is not None:
        assert (list(at_once), names) == (data, {})
        assert at_once.text(len(data)).split() == b" ".join(data).split()
        # each event is complete with its last byte: the cut before it leaves it out
        found = parse_events([(0, body[:-1]), (1, body[-1:])])
        assert list(found.reads) == [int(end == len(body) - 1) for end in ends]


def test_what_nearly_all_servers_send_is_read_at_once() -> None:
    stream = [text_chunk("a\n\ndata: b"), chat_delta(content="x"), usage_frame(2), DONE]
    found = plain_body(b"".join(stream))
    assert found is not None
    assert list(found) == found[:] == [event[6:-2] for event in stream]
    assert found.text(0) == b""
    with patch.object(answer_module, "ordinary_chunk", side_effect=AssertionError):
        assert read_answer(parse_events([(0, b"".join(stream))])).done_seen


SCALARS = (
    st.none() | st.booleans() | st.integers(-3, 12) | st.text(max_size=2)
    | st.integers(10**9, 10**30) | st.floats(allow_nan=False, allow_infinity=False)
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=4,
)
NAMES = st.sampled_from(["content", "tool_calls", "reasoning_content", "reasoning"])
DELTAS = st.dictionaries(NAMES, VALUES, max_size=2)
COUNTS = st.sampled_from(["prompt_tokens", "completion_tokens", "prompt_tokens_details"])
DETAILS = st.fixed_dictionaries({"cached_tokens": SCALARS})
USAGES = st.dictionaries(COUNTS, SCALARS | DETAILS, max_size=3)
CHOICES = st.fixed_dictionaries(
    {},
    optional={
        "text": st.text(max_size=2) | VALUES,
        "delta": DELTAS | VALUES,
        "finish_reason": st.sampled_from([None, "stop", "", 1]),
        "token_ids": st.lists(st.integers(0, 9), max_size=3) | VALUES,
    },
)
CHUNKS = st.fixed_dictionaries(
    {},
    optional={
        "choices": st.lists(CHOICES, max_size=2) | VALUES,
        "usage": USAGES | VALUES,
        "error": st.none() | VALUES,
        "object": st.sampled_from(["chat.completion.chunk", "error", None, 3]),
    },
)


@settings(max_examples=500, deadline=None)
@given(st.lists(CHUNKS.map(json.dumps) | st.just("[DONE]"), max_size=5))
def test_ordinary_chunks_are_read_as_odd_ones_would_be(payloads: list[str]) -> None:
    rows = [SseEvent(text.encode(), None, number) for number, text in enumerate(payloads)]
    events = Events.of(rows)
    with patch.object(answer_module, "ordinary_chunk", lambda _: None):
        slowly: Answer = read_answer(events)
    assert read_answer(events) == slowly
    # and as they come, where most are read at once
    pieces = [(row.read, b"data: " + row.data + b"\n\n") for row in rows]
    assert read_answer(parse_events(pieces)) == slowly


@pytest.mark.parametrize(
    "data",
    [
        b'{"choices":[{"text":"\xff"}]}',
        b'{"choices":[{"text":"\\ud800"}]}',
        b"[" * 5000,
        b"nul",
        b"",
    ],
)
def test_what_is_no_json_is_ignored_and_counted(data: bytes) -> None:
    answer = read_answer(Events([data], [0]))
    assert (answer.events, answer.ignored_events) == ((), 1)


@settings(max_examples=200)
@given(st.lists(st.tuples(st.floats(0, 0.01), st.floats(-0.002, 0.002)), min_size=1, max_size=20))
def test_arrivals_in_one_go_are_those_read_by_read(steps: list[tuple[float, float]]) -> None:
    wall_s, now_s, reads = 1_700_000_000.0, 1.0, Reads()
    for gap_s, late_s in steps:
        now_s += gap_s
        reads.add(now_s, stamp_of(wall_s + now_s - late_s))
    found = arrivals(reads, 1.0, wall_s, trust_stamps=True)
    mapped = (reads.stamps_s() - wall_s).tolist()
    own = np.array(reads.times_s).tolist()
    by_read = timeline_module._doubtful_arrivals(own, mapped, 1.0, trust_stamps=True)
    assert found == by_read
