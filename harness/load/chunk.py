"""The shape of an ordinary chunk of an answer: what is needed of it, decoded in one go. Pure.

The decoder makes no objects of what nobody reads, and refuses what is of another shape:
such chunks, and errors, are read by ``harness.load.answer`` with an open mind.
"""

from __future__ import annotations

from typing import Any

import msgspec


class PromptDetails(msgspec.Struct, gc=False):
    """``usage.prompt_tokens_details``."""

    cached_tokens: int | None = None


class StatedUsage(msgspec.Struct, gc=False):
    """``usage``, whole or so far."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None


class Delta(msgspec.Struct, gc=False):
    """``delta`` of a chat chunk; reasoning goes by two names."""

    content: str | None = None
    tool_calls: list[Any] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class Choice(msgspec.Struct, gc=False):
    """One of ``choices``, of a chat or a completion."""

    text: str | None = None
    delta: Delta | None = None
    finish_reason: str | None = None
    token_ids: list[Any] | None = None


class OrdinaryChunk(msgspec.Struct, gc=False):
    """A chunk that carries no error."""

    choices: list[Choice] | None = None
    usage: StatedUsage | None = None
    error: None = None
    object: str | None = None


_DECODER = msgspec.json.Decoder(OrdinaryChunk)


def ordinary_chunk(data: bytes) -> OrdinaryChunk | None:
    """The chunk, or None where it has another shape, is an error, or is no JSON."""
    try:
        chunk = _DECODER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return chunk if chunk.object != "error" else None


def ordinary_chunks(text: bytes) -> list[OrdinaryChunk] | None:
    """The chunks of JSON text, one after the other; None unless each one is ordinary."""
    try:
        chunks = _DECODER.decode_lines(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return None if any(chunk.object == "error" for chunk in chunks) else chunks
