"""Answers of a server that is not to be believed: counts, shapes, order."""

from __future__ import annotations

import pytest

from harness.load.answer import Answer
from harness.load.timeline import judge
from harness.load.usage import COUNT_LIMIT
from tests.load.stream_builder import answer_of, usage_frame
from tests.support.scripted_server import DONE, sse, text_chunk

LAST = text_chunk("", finish_reason="length")


def outcome(*events: bytes, asked: int = 3) -> tuple[str, str | None]:
    return judge(answer_of(*events), asked, exact=True, failure=None)


def count_frame(**usage: object) -> bytes:
    """A frame with exactly these counts."""
    return sse({"choices": [], "usage": usage})


@pytest.mark.parametrize("name", ["prompt_tokens", "completion_tokens"])
@pytest.mark.parametrize(
    ("count", "words"),
    [
        (-7, "negative"),
        (COUNT_LIMIT, "1,000,000,000 or more"),
        (2**62, "1,000,000,000 or more"),
        (2**63 + 5, "1,000,000,000 or more"),
        (10**30, "1,000,000,000 or more"),
    ],
)
def test_a_count_that_cannot_be_is_malformed_and_absent(name: str, count: int, words: str) -> None:
    answer = answer_of(*[text_chunk("x")] * 3, LAST, count_frame(**{name: count}), DONE)
    assert judge(answer, 3, exact=True, failure=None) == (
        "malformed",
        f"usage.{name} is {words}: no count of tokens",
    )
    assert (answer.output_tokens, answer.prompt_tokens, answer.token_source) == (None, None, None)
    # the arrivals are none of the server's claims
    assert [event.tokens for event in answer.events] == [1, 1, 1]


def test_the_largest_count_is_one_below_the_limit() -> None:
    answer = answer_of(text_chunk("x"), count_frame(prompt_tokens=COUNT_LIMIT - 1), DONE)
    assert (answer.fault, answer.prompt_tokens) == (None, COUNT_LIMIT - 1)


@pytest.mark.parametrize("value", [5.0, "many", None, True, [1]])
def test_a_count_of_another_type_is_none(value: object) -> None:
    answer = answer_of(text_chunk("x"), count_frame(completion_tokens=value), DONE)
    assert answer.fault is None
    assert (answer.output_tokens, answer.output_tokens_source) == (1, "client_estimated")


def test_cumulative_usage_that_falls_is_malformed() -> None:
    frames = [text_chunk("x", usage={"completion_tokens": n}) for n in (10, 9, 8, 7, 6)]
    answer = answer_of(*frames, DONE)
    assert judge(answer, 10, exact=True, failure=None) == (
        "malformed",
        "usage.completion_tokens falls from 10 to 9",
    )
    assert (answer.output_tokens, len(answer.events)) == (None, 5)


def test_a_total_said_twice_is_no_fault_and_another_total_is() -> None:
    frames = [*[text_chunk("x")] * 3, LAST, usage_frame(3)]
    assert outcome(*frames, usage_frame(3), DONE) == ("ok", None)
    assert outcome(*frames, usage_frame(0), DONE)[0] == "malformed"


def held(*events: bytes, asked: int) -> Answer:
    return answer_of(*events).held_against(asked)


def test_more_tokens_stated_than_asked_are_malformed() -> None:
    # a billion less one tokens in five events would be 1.6e11 tokens/s
    frames = [*[text_chunk("x")] * 5, LAST]
    answer = held(*frames, usage_frame(999_999_999), DONE, asked=5)
    assert judge(answer, 5, exact=True, failure=None) == (
        "malformed",
        "more tokens than asked: usage states 999999999 of 5",
    )
    assert (answer.output_tokens, answer.tokens_seen) == (None, 5)
    assert held(*frames, usage_frame(6), DONE, asked=5).fault is not None
    assert held(*frames, usage_frame(5), DONE, asked=5).fault is None


def test_more_token_ids_than_asked_are_malformed_whatever_usage_says() -> None:
    frames = [text_chunk("x", token_ids=[1] * 1000) for _ in range(5)]
    for usage in ([], [usage_frame(5)]):
        answer = held(*frames, *usage, DONE, asked=5)
        assert answer.fault == "more tokens than asked: 5000 came, 5 were asked"
        assert [event.tokens for event in answer.events] == [1] * 5


def test_a23_more_pieces_of_text_than_tokens_are_fine_beside_the_servers_count() -> None:
    answer = held(*[text_chunk(" ")] * 512, LAST, usage_frame(284), DONE, asked=284)
    assert judge(answer, 284, exact=True, failure=None) == ("ok", None)
    assert answer.output_tokens == 284
    # without a count nobody knows how many tokens these pieces are
    answer = held(*[text_chunk(" ")] * 512, LAST, DONE, asked=284)
    assert answer.fault == "more pieces of text than tokens asked: 512 of 284, no usage"


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        ({"choices": {"a": 1}}, "choices is no list"),
        ({"choices": "x"}, "choices is no list"),
        ({"choices": [[]]}, "choices[0] is no object"),
        ({"choices": [None]}, "choices[0] is no object"),
        ({"choices": [{"text": 5}]}, "text is no text"),
        ({"choices": [{"delta": 7}]}, "delta is no object"),
        ({"choices": [{"delta": {"content": {"a": 1}}}]}, "content is no text"),
        ({"choices": [{"delta": {"reasoning": 1}}]}, "reasoning is no text"),
    ],
)
def test_chunks_of_another_shape_are_malformed(payload: object, words: str) -> None:
    frames = [*[text_chunk("x")] * 3, LAST, usage_frame(3), DONE]
    assert outcome(sse(payload), *frames) == ("malformed", words)


def test_what_servers_leave_empty_is_no_fault() -> None:
    odd: list[object] = [{"choices": None}, {"choices": []}, {"usage": None}, {"timings": {}}]
    odd += [{"choices": [{"text": None, "delta": None}]}, {"choices": [{"delta": {"content": []}}]}]
    frames = [*[text_chunk("x")] * 3, LAST, DONE]
    assert outcome(*[sse(payload) for payload in odd], *frames) == ("ok", None)


@pytest.mark.parametrize("text", [b"\xff\xfe\x80", b"\\ud800"])
def test_events_that_cannot_be_decoded_are_malformed_when_nothing_else_came(text: bytes) -> None:
    frames = [b'data: {"choices":[{"text":"' + text + b'"}]}\n\n'] * 5
    words = "no token, and 5 events that are no JSON"
    assert outcome(*frames, DONE) == ("malformed", words)
    assert outcome(*frames, LAST, usage_frame(5), DONE) == ("malformed", words)


def test_tokens_after_done_are_malformed_and_other_events_after_it_are_not() -> None:
    frames = [text_chunk("x")] * 3
    assert outcome(DONE, *frames, LAST) == ("malformed", "tokens after [DONE]")
    assert outcome(*frames, DONE, text_chunk("x"))[0] == "malformed"
    assert outcome(*frames, LAST, DONE, usage_frame(3), DONE) == ("ok", None)


def test_a_total_without_a_token_event_is_no_success() -> None:
    """A total alone, or beside chunks without text: 4 tokens stated, no time of any."""
    empty = [text_chunk("")] * 4
    words = ("short_output", "no token arrived, though usage states 4")
    for asked in (4, 16):
        assert outcome(usage_frame(4), DONE, asked=asked)[0] == "short_output"
    assert outcome(usage_frame(4), DONE, asked=4) == words
    assert outcome(*empty, usage_frame(4), DONE, asked=4) == words
    # the same through the slow reading: a field of another shape beside it
    slow = sse({"choices": [], "usage": {"completion_tokens": 4, "prompt_tokens": "3"}})
    assert outcome(slow, DONE, asked=4) == words
    assert judge(answer_of(usage_frame(4), DONE), 4, exact=False, failure=None) == words


@pytest.mark.parametrize("reason", ["error", "abort"])
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("extra", [{}, {"token_ids": "none"}])
def test_an_answer_that_the_server_gave_up_is_an_error(
    reason: str, exact: bool, extra: dict[str, object]
) -> None:
    """With and without the fast reading: token_ids that are no list need the slow one."""
    answer = answer_of(*[text_chunk("x")] * 3, text_chunk("", finish_reason=reason, **extra), DONE)
    verdict = judge(answer, 3, exact=exact, failure=None)
    assert verdict == ("in_band_error", f"finish_reason {reason}")


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (b'{"error":{"message":"out of memory","code":NaN}}', "out of memory"),
        (b'{"error":{"message":"quotes \\ud800","code":5}}', "quotes \ud800"),
        (b'{"error":{"code":NaN}}', '{"code":NaN}'),
        (b'{"error":{"message":"\xff gone"}}', "\ufffd gone"),
        (b'{"object":"error","message":"gone","left":Infinity}', "gone"),
    ],
)
@pytest.mark.parametrize("exact", [True, False])
def test_an_error_in_broken_json_is_an_error(frame: bytes, words: str, exact: bool) -> None:
    answer = answer_of(*[text_chunk("x")] * 3, b"data: " + frame + b"\n\n", LAST, DONE)
    assert judge(answer, 3, exact=exact, failure=None) == ("in_band_error", words)
    assert answer.ignored_events == 0


@pytest.mark.parametrize(
    "frame",
    [
        b'{"choices":[{"text":"\xff"}]}',
        b'{"choices":[{"text":"the \\"error\\" \\ud800"}]}',
        b'"error"',
        b'{"error":null,"x":NaN}',
        b'{"error":' + b"[" * 100_000,
        b'{"error":' + b"9" * 5_000 + b"}",
    ],
)
def test_broken_json_without_an_error_is_passed_over(frame: bytes) -> None:
    answer = answer_of(*[text_chunk("x")] * 3, b"data: " + frame + b"\n\n", LAST, DONE)
    assert judge(answer, 3, exact=True, failure=None) == ("ok", None)
    assert answer.ignored_events == 1
