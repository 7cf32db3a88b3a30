"""What the events of an answer say: tokens, counts, how it ended. Pure.

Handles OpenAI-style completion and chat streams as vLLM, SGLang, llama.cpp, TGI and the
contiguous server send them. How tokens are counted is the design's *token evidence*, best
first: ``token_ids`` per chunk, cumulative ``usage.completion_tokens`` per chunk, non-empty
text. Nothing here knows when anything arrived: see ``harness.load.timeline``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from harness.load.sse import SseEvent
from harness.records import CountSource, TokenSource

#: The fields of a chat delta that hold reasoning; both names are in use.
_THOUGHT_FIELDS = ("reasoning_content", "reasoning")
_DONE = b"[DONE]"

Json = Mapping[str, object]


class TokenEvent(NamedTuple):
    """One stream event that carries at least one token."""

    read: int
    tokens: int
    #: visible answer text or a tool call
    visible: bool
    #: reasoning text
    thought: bool = False


@dataclass(frozen=True)
class Answer:
    """An answer without its times."""

    events: tuple[TokenEvent, ...] = ()
    token_source: TokenSource | None = None
    prompt_tokens: int | None = None
    cached_prompt_tokens: int | None = None
    output_tokens: int | None = None
    output_tokens_source: CountSource | None = None
    finish_reason: str | None = None
    done_seen: bool = False
    ignored_events: int = 0
    #: the server's words when it reported an error inside the answer
    error: str | None = None
    #: False for a whole JSON answer instead of a stream
    streamed: bool = True

    @property
    def finished(self) -> bool:
        """Whether the server said that the answer is complete."""
        return self.done_seen or self.finish_reason is not None


class _Chunk(NamedTuple):
    read: int
    has_choices: bool
    #: number of ids where the server returns them
    token_ids: int | None
    #: cumulative count where this chunk carries usage
    usage: int | None
    visible: bool
    thought: bool

    @property
    def has_text(self) -> bool:
        return self.visible or self.thought


def read_answer(events: Sequence[SseEvent]) -> Answer:
    """The answer that a stream of events carries."""
    notes = _Notes()
    chunks: list[_Chunk] = []
    for event in events:
        if event.data.strip() == _DONE:
            notes.done_seen = True
            continue
        payload = _object(event.data)
        if event.name == "error":
            notes.add_error(payload if payload is not None else event.data)
        elif payload is None:
            notes.ignored += 1
        else:
            chunks.append(notes.read_payload(payload, event.read))
    return _assemble(chunks, notes, streamed=True)


def read_plain(body: bytes) -> Answer | None:
    """The answer of a body that is one JSON object; None when it is none."""
    payload = _object(body)
    if payload is None:
        return None
    notes = _Notes()
    notes.read_payload(payload, 0)
    return _assemble([], notes, streamed=False)


def error_text(body: bytes) -> str:
    """The message of an error body: OpenAI's or FastAPI's shape, else the text itself."""
    payload = _object(body)
    if payload is None:
        return body.decode("utf-8", "replace").strip()
    for key in ("error", "message", "detail"):
        if payload.get(key):
            return _message(payload[key])
    return body.decode("utf-8", "replace").strip()


def _object(data: bytes) -> Json | None:
    """A JSON object, or None for anything else."""
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _message(error: object) -> str:
    """The words of an error value, which may be text, an object, or something else."""
    if isinstance(error, bytes):
        return error.decode("utf-8", "replace")
    if isinstance(error, dict) and isinstance(error.get("message"), str):
        return str(error["message"])
    return error if isinstance(error, str) else msgspec.json.encode(error).decode()


class _Notes:
    """What is gathered over all chunks."""

    def __init__(self) -> None:
        self.done_seen = False
        self.ignored = 0
        self.error: str | None = None
        self.finish_reason: str | None = None
        self.prompt_tokens: int | None = None
        self.cached: int | None = None
        self.completion_tokens: int | None = None

    def add_error(self, error: object) -> None:
        """Keep the first error: later ones follow from it."""
        if isinstance(error, dict) and error.get("error"):
            error = error["error"]
        if self.error is None:
            self.error = _message(error) or "error without a message"

    def read_payload(self, payload: Json, read: int) -> _Chunk:
        """Take note of one JSON object and say what it carries."""
        if payload.get("error") or payload.get("object") == "error":
            self.add_error(payload)
        usage = self._read_usage(payload.get("usage"))
        choices = payload.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict):
            return _Chunk(read, False, None, usage, False, False)
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason:
            self.finish_reason = reason
        ids = choice.get("token_ids")
        visible, thought = _text_kinds(choice)
        count = len(ids) if isinstance(ids, list) else None
        return _Chunk(read, True, count, usage, visible, thought)

    def _read_usage(self, usage: object) -> int | None:
        """The cumulative completion tokens of a usage object; notes the prompt's."""
        if not isinstance(usage, dict):
            return None
        self.prompt_tokens = _count(usage.get("prompt_tokens"), self.prompt_tokens)
        details = usage.get("prompt_tokens_details")
        if isinstance(details, dict):
            self.cached = _count(details.get("cached_tokens"), self.cached)
        count = _count(usage.get("completion_tokens"), None)
        if count is not None:
            self.completion_tokens = count
        return count


def _count(value: object, default: int | None) -> int | None:
    """A count of tokens, or the default for anything that is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def _text_kinds(choice: Json) -> tuple[bool, bool]:
    """Whether a choice carries visible text or a tool call, and whether reasoning."""
    delta = choice.get("delta")
    fields: Json = delta if isinstance(delta, dict) else {}
    visible = bool(choice.get("text") or fields.get("content") or fields.get("tool_calls"))
    return visible, any(fields.get(name) for name in _THOUGHT_FIELDS)


def _assemble(chunks: Sequence[_Chunk], notes: _Notes, *, streamed: bool) -> Answer:
    source = _token_source(chunks)
    events = _token_events(chunks, source)
    total, count_source = _output_tokens(events, notes)
    return Answer(
        events=events,
        token_source=source,
        prompt_tokens=notes.prompt_tokens,
        cached_prompt_tokens=notes.cached,
        output_tokens=total,
        output_tokens_source=count_source,
        finish_reason=notes.finish_reason,
        done_seen=notes.done_seen,
        ignored_events=notes.ignored,
        error=notes.error,
        streamed=streamed,
    )


def _token_source(chunks: Sequence[_Chunk]) -> TokenSource | None:
    """The best evidence that *every* chunk from the first text on carries.

    A usage object on the last chunk alone is a total, and says nothing of the chunks.
    """
    spoken = [chunk for chunk in chunks if chunk.has_choices]
    first = next((i for i, chunk in enumerate(spoken) if chunk.has_text), 0)
    spoken = spoken[first:]
    if not spoken:
        return None
    if any(c.token_ids for c in spoken) and all(
        c.token_ids is not None for c in spoken if c.has_text
    ):
        return "token_ids"
    if all(chunk.usage is not None for chunk in spoken):
        return "usage"
    return "content"


def _token_events(chunks: Sequence[_Chunk], source: TokenSource | None) -> tuple[TokenEvent, ...]:
    """The chunks that carry tokens; one without choices (usage only) never does."""
    events, seen = [], 0
    for chunk in chunks:
        tokens = int(chunk.has_text)
        if source == "token_ids":
            tokens = chunk.token_ids or 0
        elif source == "usage" and chunk.usage is not None:
            tokens, seen = chunk.usage - seen, max(seen, chunk.usage)
        if chunk.has_choices and tokens > 0:
            events.append(TokenEvent(chunk.read, tokens, chunk.visible, chunk.thought))
    return tuple(events)


def _output_tokens(
    events: Sequence[TokenEvent], notes: _Notes
) -> tuple[int | None, CountSource | None]:
    """The server's own total; without one, or with 0 beside tokens seen, ours, flagged."""
    seen = sum(event.tokens for event in events)
    if notes.completion_tokens is not None and (notes.completion_tokens or not seen):
        return notes.completion_tokens, "usage"
    return (seen, "client_estimated") if seen else (None, None)
