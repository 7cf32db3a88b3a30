"""What is written, read back by the load's own parser."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.load.answer import read_answer
from harness.load.sse import parse_events
from servers.simulated.frames import DONE, Asked, Events, Frames, letters
from servers.simulated.settings import FRAMINGS, Framing, parse_framing

SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=30)


def frames(*, chat: bool = False, model: str = "m", **asked: bool) -> Frames:
    return Frames(Asked(chat, 3, (7, 8, 9), **asked), "id-1", 1_700_000_000, model)


def body(made: Frames, events: Events, sizes: list[int]) -> bytes:
    data, done = events.event(made.role()), 0
    for index, size in enumerate(sizes, start=1):
        data += events.event(made.chunk(done, size, "length" if index == len(sizes) else None))
        done += size
    total = made.total(done)
    return data + (events.event(total) if total else b"") + events.event(DONE)


@given(SIZES, st.sets(st.sampled_from(FRAMINGS[3:])), st.sampled_from(FRAMINGS[:3]), st.booleans())
def test_every_framing_carries_the_same_answer(
    sizes: list[int], names: set[str], ends: str, chat: bool
) -> None:
    framing = parse_framing(",".join([ends, *sorted(names)]))
    made = frames(chat=chat, include_usage=True, continuous_usage=True, token_ids=True)
    data = body(made, Events(framing), sizes)
    answer = read_answer(parse_events([(0, data)]))
    assert [event.tokens for event in answer.events] == sizes
    assert answer.token_source == "token_ids"
    assert (answer.output_tokens, answer.output_tokens_source) == (sum(sizes), "usage")
    assert answer.prompt_tokens == 3
    assert (answer.finish_reason, answer.done_seen, answer.fault) == ("length", True, None)
    assert answer.ignored_events == 0


@given(SIZES)
def test_split_parts_are_the_event_and_the_second_completes_it(sizes: list[int]) -> None:
    events, made = Events(Framing(split=True)), frames()
    event = events.event(made.chunk(0, sizes[0]))
    first, second = events.parts(event)
    assert first + second == event
    assert not len(parse_events([(0, first)]))
    assert len(parse_events([(0, first), (1, second)])) == 1


@pytest.mark.parametrize("chat", [False, True])
def test_a_chunk_has_the_fields_of_vllm_and_the_prompt_once(chat: bool) -> None:
    made = frames(chat=chat, token_ids=True, continuous_usage=True)
    first, second = json.loads(made.chunk(0, 2)), json.loads(made.chunk(2, 1, "length"))
    assert first["object"] == ("chat.completion.chunk" if chat else "text_completion")
    assert (first["id"], first["created"], first["model"]) == ("id-1", 1_700_000_000, "m")
    choice = first["choices"][0]
    assert (choice["delta"]["content"] if chat else choice["text"]) == "ab"
    assert choice["token_ids"] == [97, 98]
    assert (choice["finish_reason"], choice["index"]) == (None, 0)
    assert first["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    echoed = json.loads(made.role())["prompt_token_ids"] if chat else choice["prompt_token_ids"]
    assert echoed == [7, 8, 9]
    assert "prompt_token_ids" not in second["choices"][0]
    assert second["choices"][0]["finish_reason"] == "length"


def test_nothing_is_counted_that_was_not_asked_for() -> None:
    chunk = json.loads(frames().chunk(0, 1))
    assert "usage" not in chunk
    assert "token_ids" not in chunk["choices"][0]
    assert frames().total(5) is None


def test_a_model_may_have_any_name() -> None:
    name = 'a"%d%b\\ \u4e2d'
    assert json.loads(frames(model=name).chunk(0, 1))["model"] == name


def test_letters_go_round() -> None:
    assert letters(24, 4) == b"yzab"
    assert letters(25, 1) + letters(26, 1) == b"za"


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("token_ids", [False, True])
@pytest.mark.parametrize("usage", [False, True])
def test_the_quick_way_to_a_chunk_gives_the_same_bytes(
    chat: bool, token_ids: bool, usage: bool
) -> None:
    made = frames(chat=chat, token_ids=token_ids, continuous_usage=usage)
    middle = made.middles()
    for done in (1, 9, 25, 26, 998, 5000):
        event = Events(Framing()).event(made.chunk(done, 1))
        assert middle(done) == b"%x\r\n%b\r\n" % (len(event), event)
