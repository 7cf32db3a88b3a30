from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.load.answer import read_answer, read_plain
from harness.load.payload import error_text
from harness.load.sse import Events, SseEvent
from harness.load.timeline import Failure, judge
from tests.load.stream_builder import answer_of, chat_delta, timeline_of, usage_frame
from tests.support.scripted_server import DONE, sse, text_chunk

ERROR = {"message": "x", "type": "InternalServerError", "code": 500}
LAST = text_chunk("", finish_reason="length")


def outcome(*events: bytes, asked: int = 3, exact: bool = True) -> tuple[str, str | None]:
    return judge(answer_of(*events), asked, exact=exact, failure=None)


def test_a8_keep_alives_wrapped_as_data_are_counted_and_ignored() -> None:
    answer = answer_of(
        sse(": PROCESSING"), text_chunk("a"), sse(": keepalive"), text_chunk("b"), LAST, DONE
    )
    assert answer.ignored_events == 2
    assert len(answer.events) == 2
    assert judge(answer, 2, exact=True, failure=None) == ("ok", None)


def test_a10_a_an_error_as_the_first_frame_fails_the_request() -> None:
    answer = answer_of(sse({"error": ERROR}), DONE)
    assert judge(answer, 3, exact=True, failure=None) == ("in_band_error", "x")
    # nothing is credited
    assert (answer.events, answer.output_tokens) == ((), None)


def test_a10_b_an_error_after_tokens_fails_the_request() -> None:
    frames = [text_chunk(t) for t in "abc"]
    assert outcome(*frames, sse({"error": ERROR}), DONE) == ("in_band_error", "x")


def test_a10_c_an_error_can_be_a_string() -> None:
    assert outcome(sse({"error": "string"})) == ("in_band_error", "string")


def test_a10_control_a_null_error_is_none() -> None:
    frames = [sse({"error": None, "choices": [{"text": "a"}]}) for _ in range(3)]
    assert outcome(*frames, LAST, DONE) == ("ok", None)


def test_b57_a_prompt_longer_than_the_context_is_an_error_with_its_words() -> None:
    words = "input (128038 tokens) is longer than the model's context"
    assert outcome(sse({"error": {"message": words}}), DONE) == ("in_band_error", words)


def test_an_error_event_needs_no_json() -> None:
    assert outcome(b"event: error\ndata: out of memory\n\n") == ("in_band_error", "out of memory")
    assert outcome(b'event: error\ndata: {"error": {"message": "m"}}\n\n') == ("in_band_error", "m")
    assert outcome(sse({"object": "error", "message": "old"}))[0] == "in_band_error"


def test_a11_an_end_without_finish_reason_or_done_is_truncated() -> None:
    frames = [chat_delta(role="assistant"), *[chat_delta(content="x") for _ in range(10)]]
    kind, words = outcome(*frames, asked=1024)
    assert (kind, words) == ("truncated", "ended after 10 tokens without finish_reason or [DONE]")


def test_a11_a_finish_reason_without_done_is_a_success() -> None:
    assert outcome(*[text_chunk("x")] * 3, LAST) == ("ok", None)


def test_a11_done_without_a_finish_reason_is_a_success_and_is_on_record() -> None:
    answer = answer_of(*[text_chunk("x")] * 3, DONE)
    assert judge(answer, 3, exact=True, failure=None) == ("ok", None)
    assert (answer.finish_reason, answer.done_seen) == (None, True)


@pytest.mark.parametrize("usage", [[], [usage_frame(10)]])
def test_a11_ten_of_1024_tokens_under_ignore_eos_is_a_short_output(usage: list[bytes]) -> None:
    frames = [*[text_chunk("x")] * 10, LAST, *usage, DONE]
    assert outcome(*frames, asked=1024) == ("short_output", "10 of 1024 tokens")
    # where the server could not be told to ignore the end it may stop early
    assert outcome(*frames, asked=1024, exact=False) == ("ok", None)


def test_a_count_of_frames_is_not_held_against_a_server_that_packs_tokens() -> None:
    # 20 frames for 100 tokens: 5 per frame, no count from the server
    assert outcome(*[text_chunk("xxxxx")] * 20, LAST, DONE, asked=100) == ("ok", None)
    # 12 frames for 100 would be more than 8 per frame: 100 // 8 = 12 passes, 11 does not
    assert outcome(*[text_chunk("x")] * 12, LAST, DONE, asked=100)[0] == "ok"
    assert outcome(*[text_chunk("x")] * 11, LAST, DONE, asked=100)[0] == "short_output"


def test_a12_a_complete_answer_whose_connection_then_breaks_is_a_success() -> None:
    answer = answer_of(*[text_chunk("x")] * 3, text_chunk("", finish_reason="stop"), usage_frame(3))
    broken = Failure("reset", "Connection reset by peer")
    assert judge(answer, 3, exact=True, failure=broken) == ("ok", None)


def test_a_broken_connection_before_the_end_keeps_its_class() -> None:
    answer = answer_of(*[text_chunk("x")] * 3)
    broken = Failure("reset", "Connection reset by peer")
    assert judge(answer, 3, exact=True, failure=broken) == ("reset", "Connection reset by peer")


def test_a14_a_usage_frame_without_choices_gives_the_count() -> None:
    answer = answer_of(text_chunk("a"), text_chunk("b"), LAST, usage_frame(2, 512), DONE)
    assert (answer.output_tokens, answer.output_tokens_source) == (2, "usage")
    assert answer.prompt_tokens == 512
    assert len(answer.events) == 2


@pytest.mark.parametrize("text", ["", None])
def test_a15_usage_beside_empty_text_is_read(text: str | None) -> None:
    last = text_chunk(text, finish_reason="stop", usage={"completion_tokens": 7})
    answer = answer_of(text_chunk("a"), text_chunk("b"), last)
    assert (answer.output_tokens, answer.output_tokens_source) == (7, "usage")
    # a total on the last frame is no evidence about the frames before
    assert answer.token_source == "content"
    assert [event.tokens for event in answer.events] == [1, 1]


def test_a15_a_single_frame_with_usage_carries_all_its_tokens() -> None:
    last = text_chunk("", finish_reason="stop", usage={"completion_tokens": 7})
    answer = answer_of(last)
    assert [event.tokens for event in answer.events] == [7]


def test_a16_usage_on_every_frame_is_cumulative() -> None:
    frames = [text_chunk(t, usage={"completion_tokens": n}) for n, t in enumerate(["", *"abc"])]
    answer = answer_of(*frames, DONE)
    assert answer.output_tokens == 3
    assert answer.token_source == "usage"
    assert [event.tokens for event in answer.events] == [1, 1, 1]


def test_a18_role_and_empty_frames_are_no_tokens() -> None:
    frames = [
        chat_delta(role="assistant"),
        chat_delta(content=""),
        chat_delta(content=None),
        *[chat_delta(content="x") for _ in range(3)],
    ]
    assert [event.read for event in answer_of(*frames).events] == [3, 4, 5]


def test_a19_empty_frames_of_a_chunked_prefill_are_no_tokens() -> None:
    answer = answer_of(*[text_chunk("")] * 4, text_chunk("a"), text_chunk("b"), usage_frame(2))
    assert [event.read for event in answer.events] == [4, 5]
    assert answer.output_tokens == 2


def test_a19_with_cumulative_usage_an_empty_text_can_be_a_token() -> None:
    # half of a UTF-8 character: "" and then the whole character
    frames = [
        text_chunk(t, usage={"completion_tokens": n}) for n, t in [(0, ""), (1, ""), (2, "中")]
    ]
    answer = answer_of(*frames)
    assert [event.read for event in answer.events] == [1, 2]


def test_token_ids_are_the_best_evidence() -> None:
    frames = [
        text_chunk("", token_ids=[7], usage={"completion_tokens": 1}),
        text_chunk("ab", token_ids=[8, 9], usage={"completion_tokens": 3}),
        text_chunk("", token_ids=[], usage={"completion_tokens": 3}, finish_reason="length"),
    ]
    answer = answer_of(*frames, usage_frame(3), DONE)
    assert answer.token_source == "token_ids"
    assert [event.tokens for event in answer.events] == [1, 2]
    assert (answer.output_tokens, answer.output_tokens_source) == (3, "usage")


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_a20_reasoning_is_tokens_and_content_has_its_own_time(name: str) -> None:
    times = [28.64, 28.70, 34.69, 34.75]
    frames = [chat_delta(**{name: "hm"})] * 2 + [chat_delta(content="x")] * 2
    answer, timeline = timeline_of(times, *frames)
    assert timeline.token_us[0] == 28_640_000
    assert timeline.first_content_us == 34_690_000
    assert len(answer.events) == 4


def test_a20_an_answer_of_reasoning_only_has_a_first_token_and_no_content() -> None:
    _, timeline = timeline_of([1.0, 1.1], *[chat_delta(reasoning="hm")] * 2)
    assert timeline.token_us == (1_000_000, 100_000)
    assert timeline.first_content_us is None


def test_a_tool_call_is_a_token() -> None:
    answer = answer_of(chat_delta(tool_calls=[{"index": 0, "function": {"arguments": "{"}}]))
    assert len(answer.events) == 1


def test_a23_the_servers_count_goes_before_ours() -> None:
    # 512 frames, and a server that counted 284 tokens: its word, and its name on record
    answer = answer_of(*[text_chunk(" ")] * 512, usage_frame(284), DONE)
    assert (answer.output_tokens, answer.output_tokens_source) == (284, "usage")


def test_a24_b_without_usage_our_count_is_flagged_and_never_0() -> None:
    answer = answer_of(*[text_chunk("x")] * 3, LAST, DONE)
    assert (answer.output_tokens, answer.output_tokens_source) == (3, "client_estimated")
    answer = answer_of(*[text_chunk("x")] * 3, LAST, usage_frame(0), DONE)
    assert (answer.output_tokens, answer.output_tokens_source) == (3, "client_estimated")


def test_a27_a_whole_json_answer_is_no_stream_and_has_no_token_times() -> None:
    body = {
        "choices": [{"text": "abc", "finish_reason": "length"}],
        "usage": {"completion_tokens": 3},
    }
    answer = read_plain(json.dumps(body).encode())
    assert answer is not None
    assert (answer.events, answer.output_tokens) == ((), 3)
    assert judge(answer, 3, exact=True, failure=None)[0] == "malformed"
    assert read_plain(b"<html>") is None


def test_b34_an_answer_of_no_tokens_is_a_failure() -> None:
    assert outcome(LAST, usage_frame(0), DONE, asked=128) == ("short_output", "no token")
    assert outcome(DONE, asked=128, exact=False) == ("short_output", "no token")


def test_nothing_but_non_json_is_malformed() -> None:
    assert outcome(sse("hello"), sse("world"))[0] == "malformed"


def test_e114_the_servers_prompt_count_is_kept_beside_what_was_asked() -> None:
    details = {
        "prompt_tokens": 1606,
        "completion_tokens": 1,
        "prompt_tokens_details": {"cached_tokens": 16},
    }
    answer = answer_of(text_chunk("x"), sse({"choices": [], "usage": details}))
    assert (answer.prompt_tokens, answer.cached_prompt_tokens) == (1606, 16)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error": {"message": "m", "code": 400}}', "m"),
        (b'{"error": "text"}', "text"),
        (b'{"detail": "Not Found"}', "Not Found"),
        (b'{"detail": [{"loc": ["body"]}]}', '[{"loc":["body"]}]'),
        (b'{"object": "error", "message": "old"}', "old"),
        (b"upstream gone \xff", "upstream gone \ufffd"),
        (b"", ""),
        (b'{"other": 1}', '{"other": 1}'),
    ],
)
def test_the_words_of_an_error_body(body: bytes, words: str) -> None:
    assert error_text(body) == words


KEYS = st.sampled_from(
    ["choices", "usage", "error", "delta", "text", "content", "token_ids", "object", "x"]
)
LEAVES = st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3)
ODD = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=3)
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.dictionaries(KEYS, ODD, max_size=4), max_size=5))
def test_no_json_of_any_shape_crashes_the_reader(payloads: list[object]) -> None:
    events = [SseEvent(json.dumps(p).encode(), None, i) for i, p in enumerate(payloads)]
    answer = read_answer(Events.of(events))
    kind, _ = judge(answer, 3, exact=True, failure=None)
    assert kind in ("ok", "in_band_error", "malformed", "truncated", "short_output")


@given(st.lists(st.binary()))
def test_no_bytes_crash_the_reader(payloads: list[bytes]) -> None:
    names = [None, None, "error"]
    rows = [SseEvent(p, names[i % 3], i) for i, p in enumerate(payloads)]
    read_answer(Events.of(rows))
