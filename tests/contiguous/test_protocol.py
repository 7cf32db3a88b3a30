"""Strict types, and a refusal for every field that would change the answer in silence."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from servers.contiguous.protocol import ChatRequest, CompletionRequest, TokenizeRequest


def message(kind: Any, data: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(data)
    text: str = caught.value.errors()[0]["msg"]
    return text


@pytest.mark.parametrize("prompt", ["text", [1, 2, 3], ["text"], [[1, 2, 3]], [], ""])
def test_one_prompt_in_any_notation(prompt: Any) -> None:
    read = CompletionRequest.model_validate({"prompt": prompt}).prompt
    assert read in ("text", [1, 2, 3], [], "")


@pytest.mark.parametrize("prompt", [5, None, ["a", "b"], [[1], [2]], [1, "a"], [True], [1.0], {}])
def test_other_prompts_are_refused(prompt: Any) -> None:
    assert "one text or one list of token ids" in message(CompletionRequest, {"prompt": prompt})


@pytest.mark.parametrize(
    "field",
    [
        {"max_tokens": "5"},
        {"max_tokens": 5.0},
        {"max_tokens": True},
        {"max_tokens": 0},
        {"min_tokens": -1},
        {"temperature": "0"},
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"top_p": 0},
        {"top_p": 1.1},
        {"seed": "a"},
        {"seed": 2**63},
        {"stream": "true"},
        {"ignore_eos": 1},
        {"stop": 5},
        {"stop": [""]},
        {"stream": True, "stream_options": {"include_usage": "yes"}},
        {"stream_options": {"include_usage": True}},
        {"model": 5},
    ],
)
def test_wrong_types_and_ranges(field: dict[str, Any]) -> None:
    assert message(CompletionRequest, {"prompt": "a", **field})


@pytest.mark.parametrize(
    "field",
    [
        {"n": 2},
        {"logprobs": 0},
        {"logprobs": True},
        {"echo": True},
        {"best_of": 3},
        {"logit_bias": {"5": 1}},
        {"repetition_penalty": 1.1},
        {"presence_penalty": 0.5},
        {"tools": [{"type": "function"}]},
        {"response_format": {"type": "json_object"}},
        {"suffix": "x"},
    ],
)
def test_what_would_change_the_answer_is_refused_by_name(field: dict[str, Any]) -> None:
    name = next(iter(field))
    text = message(CompletionRequest, {"prompt": "a", **field})
    assert text.startswith(f"{name} = ")
    assert "not supported" in text


@pytest.mark.parametrize(
    ("stop", "taken"),
    [
        (["ab"] * 64, True),
        (["ab"] * 65, False),
        ("a" * 4096, True),
        ("a" * 4097, False),
        (["a" * 2048, "b" * 2049], False),
    ],
)
def test_stop_strings_have_a_limit(stop: Any, taken: bool) -> None:
    """64 strings, 4,096 characters in all: each is looked for after every token."""
    data = {"prompt": "a", "stop": stop}
    if taken:
        assert CompletionRequest.model_validate(data).stop_strings
    else:
        expected = "stop may hold 64 strings of 4096 characters in all"
        assert message(CompletionRequest, data) == expected


@pytest.mark.parametrize(
    "name", ["chat_template", "messages", "conversation", "tokenize", "add_generation_prompt"]
)
def test_a_client_brings_no_template_and_no_argument_of_ours(name: str) -> None:
    data = {"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {name: "x"}}
    assert message(ChatRequest, data) == f"Value error, {name} may not be set here"
    data["chat_template_kwargs"] = {"enable_thinking": False}
    assert ChatRequest.model_validate(data).chat_template_kwargs == {"enable_thinking": False}


def test_what_vllms_benchmark_sends_is_accepted() -> None:
    body = {
        "model": "tiny",
        "prompt": "a",
        "repetition_penalty": 1.0,
        "max_tokens": 5,
        "logprobs": None,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
        "temperature": 0.0,
    }
    assert CompletionRequest.model_validate(body).include_usage


def test_do_nothing_values_and_unknown_fields_are_accepted() -> None:
    quiet = {"n": 1, "logprobs": False, "echo": False, "logit_bias": {}, "presence_penalty": 0}
    read = CompletionRequest.model_validate({"prompt": "a", "user": "me", "foo": 1, **quiet})
    assert not hasattr(read, "foo")


def test_continuous_usage_needs_include_usage() -> None:
    def read(**options: bool) -> CompletionRequest:
        return CompletionRequest.model_validate(
            {"prompt": "a", "stream": True, "stream_options": options}
        )

    assert read(include_usage=True, continuous_usage_stats=True).continuous_usage
    assert not read(continuous_usage_stats=True).continuous_usage
    assert not read(include_usage=True).continuous_usage


def test_chat_content_becomes_one_string() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    read = ChatRequest.model_validate(
        {
            "messages": [
                {"role": "user", "content": parts},
                {"role": "assistant", "content": None, "name": "x"},
            ]
        }
    )
    assert [item["content"] for item in read.messages] == ["a\nb", ""]
    assert read.messages[1]["name"] == "x"


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([], "at least one"),
        ([{"content": "a"}], r"messages[0].role"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], r"messages[0].content"),
        ([{"role": "user", "content": 5}], r"messages[0].content"),
    ],
)
def test_chat_messages_that_are_none(messages: Any, problem: str) -> None:
    assert problem in message(ChatRequest, {"messages": messages})


def test_tokenize_takes_one_of_two() -> None:
    assert "either" in message(TokenizeRequest, {})
    assert "either" in message(TokenizeRequest, {"prompt": "a", "messages": []})
