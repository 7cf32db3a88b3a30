"""What the events of an answer say: tokens, counts, how it ended. Pure.

Handles OpenAI-style completion and chat streams as vLLM, SGLang, llama.cpp, TGI and the
contiguous server send them. How tokens are counted is the design's *token evidence*, best
first: ``token_ids`` per chunk, cumulative ``usage.completion_tokens`` per chunk, non-empty
text. Nothing here knows when anything arrived: see ``harness.load.timeline``.

``[DONE]`` ends an answer, as in OpenAI's protocol: a token after it makes the answer
malformed, a second ``[DONE]`` or a usage frame after it does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec

from harness.load.chunk import OrdinaryChunk, ordinary_chunk, ordinary_chunks
from harness.load.payload import Json, broken_error, error_message, json_object
from harness.load.plain_body import PlainBody
from harness.load.sse import Events
from harness.load.usage import Usage
from harness.records import CountSource, TokenSource

#: The fields of a chat delta that hold reasoning; both names are in use.
_THOUGHT_FIELDS = ("reasoning_content", "reasoning")
#: The fields of a chat delta that hold the answer itself.
_SPOKEN = ("content", "tool_calls")
_DONE = b"[DONE]"


class TokenEvent(msgspec.Struct, frozen=True, gc=False):
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
    #: why the answer is none, or its counts cannot be true
    fault: str | None = None
    #: False for a whole JSON answer instead of a stream
    streamed: bool = True

    @property
    def finished(self) -> bool:
        """Whether the server said that the answer is complete."""
        return self.done_seen or self.finish_reason is not None

    @property
    def tokens_seen(self) -> int:
        """Tokens of all events, by the token evidence."""
        return sum(event.tokens for event in self.events)

    def held_against(self, asked_tokens: int) -> Answer:
        """The answer, malformed where it counts more tokens than could be asked for."""
        stated = self.output_tokens or 0
        if max(stated, self.tokens_seen) <= asked_tokens or self.fault is not None:
            return self
        if stated > asked_tokens and self.output_tokens_source == "usage":
            words = f"more tokens than asked: usage states {stated} of {asked_tokens}"
        elif self.token_source in ("token_ids", "usage"):
            words = f"more tokens than asked: {self.tokens_seen} came, {asked_tokens} were asked"
        elif stated > asked_tokens:
            words = f"more pieces of text than tokens asked: {stated} of {asked_tokens}, no usage"
        else:
            # pieces of text are no tokens: the server's own total stands
            return self
        return replace(self, fault=words).uncounted()

    def uncounted(self) -> Answer:
        """The same arrivals without any count of tokens: one that is not believed is absent."""
        return replace(
            self,
            events=tuple(msgspec.structs.replace(event, tokens=1) for event in self.events),
            token_source=None,
            output_tokens=None,
            output_tokens_source=None,
        )


class _Chunk(msgspec.Struct, frozen=True, gc=False):
    # made faster than any other kind of object, once per event
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


def read_answer(events: Events) -> Answer:
    """The answer that a stream of events carries."""
    if isinstance(events.data, PlainBody):
        answer = _read_at_once(events.data, events.reads)
        if answer is not None:
            return answer
    notes = _Notes()
    chunks: list[_Chunk] = []
    names = events.names
    for index, (data, read) in enumerate(zip(events.data, events.reads, strict=True)):
        ordinary = ordinary_chunk(data) if index not in names else None
        if ordinary is not None:
            chunks.append(notes.read_ordinary(ordinary, read))
        elif data.strip() == _DONE:
            notes.done_seen = True
        else:
            chunk = notes.read_data(data, names.get(index), read)
            if chunk is not None:
                chunks.append(chunk)
    return _assemble(chunks, notes, streamed=True)


def _read_at_once(body: PlainBody, reads: Sequence[int]) -> Answer | None:
    """The same of ordinary chunks and a ``[DONE]`` at the end; None for any other body."""
    done = body[-1] == _DONE
    chunks = ordinary_chunks(body.text(len(body) - done))
    if chunks is None or len(chunks) != len(body) - done:
        return None
    notes = _Notes()
    read = [notes.read_ordinary(*each) for each in zip(chunks, reads, strict=False)]
    notes.done_seen = done
    return _assemble(read, notes, streamed=True)


def read_plain(body: bytes) -> Answer | None:
    """The answer of a body that is one JSON object; None when it is none."""
    payload = json_object(body)
    if payload is None:
        return None
    notes = _Notes()
    notes.read_payload(payload, 0)
    return _assemble([], notes, streamed=False)


class _Notes:
    """What is gathered over all chunks."""

    def __init__(self) -> None:
        self.done_seen = False
        self.ignored = 0
        self.error: str | None = None
        self.fault: str | None = None
        self.finish_reason: str | None = None
        self.usage = Usage()

    def add_error(self, error: object) -> None:
        """Keep the first error: later ones follow from it."""
        if isinstance(error, dict) and error.get("error"):
            error = error["error"]
        if self.error is None:
            self.error = error_message(error) or "error without a message"

    def read_data(self, data: bytes, name: str | None, read: int) -> _Chunk | None:
        """Take note of the data of any event and say what it carries; None for no chunk."""
        payload = json_object(data)
        if name == "error":
            self.add_error(payload if payload is not None else data)
            return None
        if payload is None:
            self.read_broken(data)
            return None
        return self.read_payload(payload, read)

    def read_ordinary(self, chunk: OrdinaryChunk, read: int) -> _Chunk:
        """As ``read_payload``, for what nearly all chunks are."""
        usage, stated = None, chunk.usage
        if stated is not None:
            details = stated.prompt_tokens_details
            usage = self.usage.note(
                prompt_tokens=stated.prompt_tokens,
                cached=details.cached_tokens if details is not None else None,
                completion_tokens=stated.completion_tokens,
            )
        if not chunk.choices:
            return _Chunk(read, False, None, usage, False, False)
        choice = chunk.choices[0]
        visible, thought, delta = bool(choice.text), False, choice.delta
        if delta is not None:
            visible = bool(choice.text or delta.content or delta.tool_calls)
            thought = bool(delta.reasoning_content or delta.reasoning)
        if choice.finish_reason:
            self.finish_reason = choice.finish_reason
        count = len(choice.token_ids) if choice.token_ids is not None else None
        if self.done_seen and (visible or thought or count):
            self._doubt("tokens after [DONE]")
        return _Chunk(read, True, count, usage, visible, thought)

    def read_broken(self, data: bytes) -> None:
        """An event that is no JSON: ignored, unless it was meant as an error."""
        error = broken_error(data)
        if error:
            self.add_error(error)
        else:
            self.ignored += 1

    def read_payload(self, payload: Json, read: int) -> _Chunk:
        """Take note of one JSON object and say what it carries."""
        if payload.get("error") or payload.get("object") == "error":
            self.add_error(payload)
        usage = self.usage.read(payload.get("usage"))
        choice = self._first_choice(payload.get("choices"))
        if choice is None:
            return _Chunk(read, False, None, usage, False, False)
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason:
            self.finish_reason = reason
        ids = choice.get("token_ids")
        visible, thought = self._text_kinds(choice)
        count = len(ids) if isinstance(ids, list) else None
        if self.done_seen and (visible or thought or count):
            self._doubt("tokens after [DONE]")
        return _Chunk(read, True, count, usage, visible, thought)

    def _first_choice(self, choices: object) -> Json | None:
        """The choice that this client reads: it asks for one."""
        if choices is None or choices == []:
            return None
        if not isinstance(choices, list):
            self._doubt("choices is no list")
        elif isinstance(choices[0], dict):
            return choices[0]
        else:
            self._doubt("choices[0] is no object")
        return None

    def _text_kinds(self, choice: Json) -> tuple[bool, bool]:
        """Whether a choice carries visible text or a tool call, and whether reasoning."""
        delta = choice.get("delta")
        if delta is not None and not isinstance(delta, dict):
            self._doubt("delta is no object")
        fields: Json = delta if isinstance(delta, dict) else {}
        spoken = [self._says("text", choice), *(self._says(name, fields) for name in _SPOKEN)]
        return any(spoken), any([self._says(name, fields) for name in _THOUGHT_FIELDS])

    def _says(self, name: str, fields: Json) -> bool:
        """Whether a field carries something; text, or a list of parts as some servers send."""
        value = fields.get(name)
        if value is not None and not isinstance(value, str | list):
            self._doubt(f"{name} is no text")
            return False
        return bool(value)

    def _doubt(self, fault: str) -> None:
        self.fault = self.fault or fault


def _assemble(chunks: Sequence[_Chunk], notes: _Notes, *, streamed: bool) -> Answer:
    source = _token_source(chunks)
    if source == "usage" and notes.usage.fault is not None:
        source = "content"
    events = _token_events(chunks, source)
    total, count_source = _output_tokens(events, notes)
    usage = notes.usage
    answer = Answer(
        events=events,
        token_source=source,
        prompt_tokens=usage.prompt_tokens,
        cached_prompt_tokens=usage.cached,
        output_tokens=total,
        output_tokens_source=count_source,
        finish_reason=notes.finish_reason,
        done_seen=notes.done_seen,
        ignored_events=notes.ignored,
        error=notes.error,
        fault=notes.fault or usage.fault,
        streamed=streamed,
    )
    return answer if usage.fault is None else answer.uncounted()


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
    stated = notes.usage.completion_tokens
    if stated is not None and (stated or not seen):
        return stated, "usage"
    return (seen, "client_estimated") if seen else (None, None)
