"""How one request's events become bytes: completions or chat, streamed or whole."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Literal, Protocol

from msgspec import UNSET

from servers.contiguous.logprobs import token_name
from servers.contiguous.responses import (
    DONE,
    Body,
    ChatChoice,
    ChatChunkChoice,
    ChatMessage,
    CompletionChoice,
    CompletionLogprobs,
    ErrorBody,
    ErrorDetail,
    encode,
    sse,
    usage,
)
from servers.contiguous.sequence import ErrorEvent, TokenEvent


@dataclass(frozen=True)
class FrameOptions:
    """What the client asked to see."""

    model: str
    prompt_ids: Seq[int]
    include_usage: bool = False
    continuous_usage: bool = False
    token_ids: bool = False


class Frames(Protocol):
    """One request's bytes."""

    def token(self, event: TokenEvent) -> bytes:
        """The frame, or at the start frames, of one token."""
        ...

    def end(self, generated: int) -> bytes:
        """What follows the last token: the usage frame if wanted, and [DONE]."""
        ...

    def whole(self, events: Seq[TokenEvent]) -> bytes:
        """The body of an answer that is not streamed."""
        ...


class _Envelope:
    """What completions and chat have in common."""

    def __init__(self, options: FrameOptions, prefix: str) -> None:
        self.options = options
        self._id = f"{prefix}-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._prompt_tokens = len(options.prompt_ids)

    def body(
        self,
        kind: Literal["text_completion", "chat.completion", "chat.completion.chunk"],
        choices: list[CompletionChoice] | list[ChatChoice] | list[ChatChunkChoice],
        generated: int | None = None,
    ) -> Body:
        """A body with usage if ``generated`` is given."""
        counts = UNSET if generated is None else usage(self._prompt_tokens, generated)
        return Body(
            id=self._id,
            object=kind,
            created=self._created,
            model=self.options.model,
            choices=list(choices),
            usage=counts,
        )

    def shown_usage(self, generated: int) -> int | None:
        """For a token's chunk: only where cumulative usage was asked for."""
        return generated if self.options.continuous_usage else None


class CompletionFrames:
    """``/v1/completions``."""

    def __init__(self, options: FrameOptions) -> None:
        self._envelope = _Envelope(options, "cmpl")
        self._options = options
        #: of the text sent so far
        self._text_chars = 0

    def token(self, event: TokenEvent) -> bytes:
        """One chunk; the prompt's ids ride on the first, as in vLLM."""
        choice = CompletionChoice(
            text=event.text,
            logprobs=_logprobs([event], self._text_chars),
            finish_reason=event.finish_reason,
            stop_reason=event.stop_reason,
        )
        self._text_chars += len(event.text)
        if self._options.token_ids:
            choice.token_ids = [event.token_id]
            if event.generated == 1:
                choice.prompt_token_ids = list(self._options.prompt_ids)
        shown = self._envelope.shown_usage(event.generated)
        return sse(self._envelope.body("text_completion", [choice], shown))

    def end(self, generated: int) -> bytes:
        """The usage frame has no choices."""
        if not self._options.include_usage:
            return DONE
        return sse(self._envelope.body("text_completion", [], generated)) + DONE

    def whole(self, events: Seq[TokenEvent]) -> bytes:
        """All text in one choice."""
        last = events[-1]
        choice = CompletionChoice(
            text="".join(event.text for event in events),
            logprobs=_logprobs(events),
            finish_reason=last.finish_reason,
            stop_reason=last.stop_reason,
        )
        if self._options.token_ids:
            choice.token_ids = [event.token_id for event in events]
            choice.prompt_token_ids = list(self._options.prompt_ids)
        return encode(self._envelope.body("text_completion", [choice], last.generated))


def _logprobs(events: Seq[TokenEvent], offset: int = 0) -> CompletionLogprobs | None:
    """As vLLM writes them, the chosen token among the likeliest; None where none were asked for.

    ``offset``: characters of the text before these tokens.
    """
    found = CompletionLogprobs([], [], [], [])
    for event in events:
        if event.logprobs is None:
            return None
        top = {token_name(token): value for token, value in event.logprobs.top}
        top[token_name(event.token_id)] = event.logprobs.chosen
        found.tokens.append(token_name(event.token_id))
        found.token_logprobs.append(event.logprobs.chosen)
        found.top_logprobs.append(top)
        found.text_offset.append(offset)
        offset += len(event.text)
    return found


class ChatFrames:
    """``/v1/chat/completions``."""

    def __init__(self, options: FrameOptions) -> None:
        self._envelope = _Envelope(options, "chatcmpl")
        self._options = options

    def token(self, event: TokenEvent) -> bytes:
        """One chunk; a frame with the role and no token goes before the first."""
        choice = ChatChunkChoice(
            delta=ChatMessage(content=event.text),
            finish_reason=event.finish_reason,
            stop_reason=event.stop_reason,
        )
        if self._options.token_ids:
            choice.token_ids = [event.token_id]
        frame = self._chunk([choice], self._envelope.shown_usage(event.generated))
        return frame if event.generated > 1 else self._role() + frame

    def _role(self) -> bytes:
        choice = ChatChunkChoice(delta=ChatMessage(role="assistant", content=""))
        body = self._envelope.body("chat.completion.chunk", [choice], self._envelope.shown_usage(0))
        if self._options.token_ids:
            body.prompt_token_ids = list(self._options.prompt_ids)
        return sse(body)

    def _chunk(self, choices: list[ChatChunkChoice], generated: int | None) -> bytes:
        return sse(self._envelope.body("chat.completion.chunk", choices, generated))

    def end(self, generated: int) -> bytes:
        """The usage frame has no choices."""
        return (self._chunk([], generated) if self._options.include_usage else b"") + DONE

    def whole(self, events: Seq[TokenEvent]) -> bytes:
        """All text in one message."""
        last = events[-1]
        text = "".join(event.text for event in events)
        choice = ChatChoice(
            message=ChatMessage(role="assistant", content=text),
            finish_reason=last.finish_reason,
            stop_reason=last.stop_reason,
        )
        body = self._envelope.body("chat.completion", [choice], last.generated)
        if self._options.token_ids:
            choice.token_ids = [event.token_id for event in events]
            body.prompt_token_ids = list(self._options.prompt_ids)
        return encode(body)


def error_body(message: str, kind: str, param: str | None = None, code: str | None = None) -> bytes:
    """OpenAI's error body."""
    # a message may quote what a client sent, and that need not be Unicode
    plain = message.encode(errors="backslashreplace").decode()
    return encode(ErrorBody(ErrorDetail(plain, kind, param, code)))


def error_frames(event: ErrorEvent) -> bytes:
    """An in-band error, for a stream that has begun; then [DONE], as vLLM does."""
    detail = ErrorDetail(event.message, "server_error", None, str(event.status))
    return sse(ErrorBody(detail)) + DONE
