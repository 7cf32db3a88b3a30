from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.load.answer import read_answer
from harness.load.sse import SseEvent, parse_events
from harness.load.timeline import judge


def rows(pieces: Sequence[tuple[int, bytes]]) -> list[SseEvent]:
    return list(parse_events(pieces))


def whole(body: bytes) -> list[SseEvent]:
    return rows([(0, body)])


def data(pieces: list[bytes]) -> list[bytes]:
    return [event.data for event in parse_events(list(enumerate(pieces)))]


def test_a1_reads_are_joined_byte_for_byte_before_anything_is_split() -> None:
    reads = [b"data:", b' {"choices":[{"index":0,"text":"a', b' b"}]}\n\ndata: [DONE]\n\n']
    first, second = parse_events(list(enumerate(reads)))
    assert json.loads(first.data)["choices"][0]["text"] == "a b"
    assert second.data == b"[DONE]"
    assert (first.read, second.read) == (2, 2)
    # the answer of it is one content event, and a success
    answer = read_answer(parse_events(list(enumerate(reads))))
    assert [(event.tokens, event.visible) for event in answer.events] == [(1, True)]
    assert judge(answer, 1, exact=True, failure=None) == ("ok", None)


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        ([b'data: "\xe4\xb8', b'\xad"\n\n'], "中"),
        ([b'data: "\xf0\x9f', b'\x98\x80"\n\n'], "😀"),
    ],
)
def test_a2_characters_cut_across_reads_stay_whole(pieces: list[bytes], text: str) -> None:
    assert [json.loads(d) for d in data(pieces)] == [text]


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r", b"\n\r\n", b"\r\n\n", b"\r\n\r"])
def test_a4_every_line_ending_ends_an_event(end: bytes) -> None:
    assert data([b"data: x" + end + b"data: y" + end]) == [b"x", b"y"]


def test_a4_a_crlf_cut_across_reads_makes_no_phantom_event() -> None:
    events = rows([(0, b"data: {}\r"), (1, b"\n\r\n"), (2, b"data: z\n\n")])
    assert events == [SseEvent(b"{}", None, 1), SseEvent(b"z", None, 2)]


def test_a4_an_event_is_complete_with_the_first_byte_of_its_blank_line() -> None:
    # the LF of the blank line's CRLF comes a read later and adds nothing
    assert rows([(0, b"data: x\r\n\r"), (1, b"\n")]) == [SseEvent(b"x", None, 0)]


def test_a5_one_optional_space_after_the_colon_is_removed() -> None:
    body = b'data:{"a":1}\n\ndata:[DONE]\n\ndata:  two\n\n'
    assert data([body]) == [b'{"a":1}', b"[DONE]", b" two"]


def test_a5_a_stream_without_any_space_is_a_whole_answer() -> None:
    body = b'data:{"choices":[{"index":0,"delta":{"content":"x"}}]}\n\ndata:[DONE]\n\n'
    answer = read_answer(parse_events([(0, body)]))
    assert [(event.tokens, event.visible) for event in answer.events] == [(1, True)]
    assert (answer.done_seen, answer.ignored_events) == (True, 0)
    assert judge(answer, 1, exact=True, failure=None) == ("ok", None)


@pytest.mark.parametrize("comment", [b": ping\n\n", b":\n\n", b":x\n"])
def test_a6_comments_are_no_events(comment: bytes) -> None:
    body = comment + b"data: 1\n\n" + comment + b"data: 2\n\n" + comment
    assert data([body]) == [b"1", b"2"]


@pytest.mark.parametrize("empty", [b"\n", b"data:\n\n", b"data: \n\n", b": c\n\n\n", b"data\n\n"])
def test_a7_empty_data_is_skipped(empty: bytes) -> None:
    assert data([empty + b"data: 1\n\n" + empty]) == [b"1"]


def test_a29_data_lines_are_joined_by_a_newline() -> None:
    assert data([b'data: {"a":\ndata: 1}\n\n']) == [b'{"a":\n1}']


@pytest.mark.parametrize("tail", [b"data: x", b"data: x\n", b"data: x\r\n", b"dat"])
def test_a29_an_event_without_its_blank_line_is_not_dispatched(tail: bytes) -> None:
    assert data([b"data: 1\n\n" + tail]) == [b"1"]


def test_the_event_field_names_one_event_only() -> None:
    body = b"event: error\ndata: 1\n\ndata: 2\nid: 7\nretry: 5\nother: z\n\n"
    assert whole(body) == [SseEvent(b"1", "error", 0), SseEvent(b"2", None, 0)]


def test_a_byte_order_mark_is_passed_over() -> None:
    assert data([b"\xef\xbb\xbfdata: 1\n\n"]) == [b"1"]


def test_no_pieces_no_events() -> None:
    assert rows([]) == []


LINES = st.sampled_from(
    [b"data: a", b"data:", b'data:  {"x": "\xe4\xb8\xad"}', b": c", b"event: e", b"", b"data"]
)
STREAMS = st.lists(st.tuples(LINES, st.sampled_from([b"\n", b"\r\n", b"\r"]))).map(
    lambda lines: b"".join(line + end for line, end in lines)
)


@given(STREAMS, st.data())
def test_any_split_gives_the_same_events_at_the_right_reads(
    body: bytes, draw: st.DataObject
) -> None:
    cuts = sorted(draw.draw(st.sets(st.integers(0, len(body)))))
    edges = [0, *cuts, len(body)]
    pieces = [(i, body[a:b]) for i, (a, b) in enumerate(pairwise(edges))]
    split = rows(pieces)
    together = whole(body)
    assert [(e.data, e.name) for e in split] == [(e.data, e.name) for e in together]
    # up to and with its read an event is there; without that read it is not
    for number, event in enumerate(split):
        upto = [piece for piece in pieces if piece[0] <= event.read]
        before = [piece for piece in pieces if piece[0] < event.read]
        assert len(parse_events(upto)) >= number + 1
        assert len(parse_events(before)) <= number


@given(st.binary())
def test_no_bytes_crash_the_parser(body: bytes) -> None:
    for event in whole(body):
        assert event.data
