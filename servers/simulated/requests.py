"""What clients ask: JSON bodies, checked. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from servers.simulated.frames import Asked

TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
#: what the chat template adds to a prompt
TEMPLATE_TOKENS = 8
_COMPLETION_MAX_TOKENS = 16


class BadRequestError(Exception):
    """A body that is refused with HTTP 400; the text says why."""


class StreamOptions(Struct):
    """OpenAI's, and vLLM's usage per chunk."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Body(Struct):
    """What completions and chat have in common."""

    model: str | None = None
    max_tokens: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool | None = None
    return_token_ids: bool | None = None
    n: int | None = None


class CompletionBody(Body, kw_only=True):
    """``POST /v1/completions``."""

    prompt: list[TokenId] | str


class Message(Struct):
    """One message of a chat: text, or parts of which the text is taken."""

    content: str | list[dict[str, Any]] | None = None


class ChatBody(Body, kw_only=True):
    """``POST /v1/chat/completions``."""

    messages: list[Message]
    max_completion_tokens: int | None = None


class TokenizeBody(Struct):
    """``POST /tokenize``."""

    prompt: str


@dataclass(frozen=True)
class Job:
    """A request for tokens that can be served."""

    asked: Asked
    #: what the client sent: token ids or text
    prompt: Sequence[int] | str
    max_tokens: int
    stream: bool
    ignore_eos: bool


_COMPLETION = msgspec.json.Decoder(CompletionBody)
_CHAT = msgspec.json.Decoder(ChatBody)
_TOKENIZE = msgspec.json.Decoder(TokenizeBody)


def read_job(body: bytes, *, chat: bool, model: str, max_model_len: int) -> Job:
    """Read a request for tokens; raises BadRequestError."""
    try:
        read: ChatBody | CompletionBody = (_CHAT if chat else _COMPLETION).decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadRequestError(str(error)) from error
    if read.model is not None and read.model != model:
        raise BadRequestError(f"the model {read.model!r} does not exist; this server has {model!r}")
    if read.n not in (None, 1):
        raise BadRequestError("n: this server gives one answer per request")
    prompt, ids, extra = _prompt(read)
    prompt_tokens = len(ids) + extra
    options = read.stream_options or StreamOptions()
    return Job(
        asked=Asked(
            chat=chat,
            prompt_tokens=prompt_tokens,
            prompt_ids=ids,
            include_usage=bool(options.include_usage),
            continuous_usage=bool(options.include_usage and options.continuous_usage_stats),
            token_ids=bool(read.return_token_ids),
        ),
        prompt=prompt,
        max_tokens=_max_tokens(read, prompt_tokens, max_model_len),
        stream=bool(read.stream),
        ignore_eos=bool(read.ignore_eos),
    )


def read_tokenize(body: bytes) -> list[int]:
    """The token ids of a text: its bytes; raises BadRequestError."""
    try:
        return list(_TOKENIZE.decode(body).prompt.encode())
    except msgspec.MsgspecError as error:
        raise BadRequestError(str(error)) from error


def _prompt(body: CompletionBody | ChatBody) -> tuple[Sequence[int] | str, Sequence[int], int]:
    """The prompt as sent, its token ids, and tokens that the template adds."""
    if isinstance(body, CompletionBody):
        ids = body.prompt.encode() if isinstance(body.prompt, str) else body.prompt
        if not ids:
            raise BadRequestError("prompt: empty")
        return body.prompt, ids, 0
    text = "\n".join(_text(message.content) for message in body.messages)
    if not body.messages:
        raise BadRequestError("messages: empty")
    return text, text.encode(), TEMPLATE_TOKENS


def _text(content: str | list[dict[str, Any]] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part["text"] for part in content if isinstance(part.get("text"), str))


def _max_tokens(body: CompletionBody | ChatBody, prompt_tokens: int, max_model_len: int) -> int:
    asked = body.max_tokens
    if isinstance(body, ChatBody) and body.max_completion_tokens is not None:
        asked = body.max_completion_tokens
    room = max_model_len - prompt_tokens
    if asked is None:
        asked = room if isinstance(body, ChatBody) else min(room, _COMPLETION_MAX_TOKENS)
    if asked < 1 and room >= 1:
        raise BadRequestError("max_tokens: at least 1")
    if asked > room:
        raise BadRequestError(
            f"this model's maximum context length is {max_model_len} tokens, fewer than "
            f"{prompt_tokens} of the prompt and {asked} to generate"
        )
    return asked
