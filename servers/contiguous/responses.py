"""The bodies that the server sends, as msgspec structs: encoded once per token, cheaply."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType


class Usage(Struct):
    """Token counts; ``total`` is their sum."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


def usage(prompt_tokens: int, completion_tokens: int) -> Usage:
    """Both counts and their sum."""
    return Usage(prompt_tokens, completion_tokens, prompt_tokens + completion_tokens)


class CompletionLogprobs(Struct):
    """Of each token: its name, its log-probability, the likeliest beside it, where it begins."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(Struct, kw_only=True):
    """A text completion, or one chunk of it; token ids only when asked for."""

    index: int = 0
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class ChatMessage(Struct, kw_only=True):
    """A message of the answer, or a delta of it."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChoice(Struct, kw_only=True):
    """A whole chat answer."""

    index: int = 0
    message: ChatMessage
    logprobs: None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatChunkChoice(Struct, kw_only=True):
    """One chunk of a chat answer."""

    index: int = 0
    delta: ChatMessage
    logprobs: None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | UnsetType = UNSET


class Body(Struct, kw_only=True):
    """A response, or one chunk of a stream."""

    id: str
    object: Literal["text_completion", "chat.completion", "chat.completion.chunk"]
    created: int
    model: str
    choices: list[Any]
    prompt_token_ids: list[int] | UnsetType = UNSET
    usage: Usage | UnsetType = UNSET


class ErrorDetail(Struct):
    """OpenAI's error object."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(Struct):
    """OpenAI's error body, also an in-band frame of a stream."""

    error: ErrorDetail


encode = msgspec.json.Encoder().encode


def sse(body: Struct) -> bytes:
    """One server-sent event."""
    return b"data: " + encode(body) + b"\n\n"


DONE = b"data: [DONE]\n\n"
