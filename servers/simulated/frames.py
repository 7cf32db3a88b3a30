"""The bytes of one answer, as vLLM writes them; what is the same for all its chunks is made once.

Completions and chat, streamed and whole. Tokens are the letters a to z in turn, and the id of
each is its byte, as in a byte-level vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from servers.simulated.settings import Framing

DONE = b"[DONE]"
_LETTERS = bytes(range(ord("a"), ord("z") + 1))
_ENDS = {"lf": b"\n", "crlf": b"\r\n", "cr": b"\r"}
_COMMENT = b": keep-alive"


@dataclass(frozen=True)
class Asked:
    """What the client wants to see."""

    chat: bool
    prompt_tokens: int
    prompt_ids: Sequence[int]
    include_usage: bool = False
    continuous_usage: bool = False
    token_ids: bool = False


class Frames:
    """The payloads (JSON) of one answer."""

    def __init__(self, asked: Asked, request_id: str, created: int, model: str) -> None:
        self._asked = asked
        self._id, self._created, self._model = request_id, created, model
        kind = "chat.completion.chunk" if asked.chat else "text_completion"
        self._envelope = self._start(kind)
        # %b and %d are filled in per chunk; what is quoted here must not have a % of its own
        before = b'"delta":{"content":"%b"}' if asked.chat else b'"text":"%b"'
        ids = b',"token_ids":[%b]' if asked.token_ids else b""
        usage = self._usage() if asked.continuous_usage else b""
        self._chunk = (
            self._envelope.replace(b"%", b"%%")
            + b'"choices":[{"index":0,'
            + before
            + b',"logprobs":null,"finish_reason":%b,"stop_reason":null'
            + ids
            + b"%b}]"
            + usage
            + b"}"
        )

    @property
    def is_chat(self) -> bool:
        """Whether a role belongs before the first token."""
        return self._asked.chat

    def chunk(self, done: int, tokens: int, finish: str | None = None) -> bytes:
        """The chunk with tokens ``done`` + 1 to ``done`` + ``tokens``; ``finish`` on the last."""
        asked = self._asked
        text = letters(done, tokens)
        fields: list[object] = [text, b'"%b"' % finish.encode() if finish else b"null"]
        if asked.token_ids:
            fields.append(b"%d" % text[0] if tokens == 1 else b",".join(b"%d" % t for t in text))
        fields.append(b"" if done or asked.chat else self._echo())
        if asked.continuous_usage:
            fields += (done + tokens, asked.prompt_tokens + done + tokens)
        return self._chunk % tuple(fields)

    def role(self) -> bytes:
        """A chunk without a token: in chat it names the role."""
        asked = self._asked
        body = b'"delta":{"role":"assistant","content":""}' if asked.chat else b'"text":""'
        usage = self._usage() % (0, asked.prompt_tokens) if asked.continuous_usage else b""
        return (
            self._envelope
            + b'"choices":[{"index":0,'
            + body
            + b',"logprobs":null,"finish_reason":null}]'
            + (self._echo() if asked.chat else b"")
            + usage
            + b"}"
        )

    def total(self, generated: int) -> bytes | None:
        """The usage frame, where it was asked for."""
        if not self._asked.include_usage:
            return None
        counts = self._usage() % (generated, self._asked.prompt_tokens + generated)
        return self._envelope + b'"choices":[]' + counts + b"}"

    def whole(self, generated: int, finish: str) -> bytes:
        """The body of an answer that is not streamed."""
        asked = self._asked
        text = letters(0, generated)
        said = (
            b'"message":{"role":"assistant","content":"%b"}' if asked.chat else b'"text":"%b"'
        ) % text
        ids = b',"token_ids":' + msgspec.json.encode(list(text)) if asked.token_ids else b""
        counts = self._usage() % (generated, asked.prompt_tokens + generated)
        return (
            self._start("chat.completion" if asked.chat else "text_completion")
            + b'"choices":[{"index":0,'
            + said
            + b',"logprobs":null,"finish_reason":"%b","stop_reason":null' % finish.encode()
            + ids
            + (b"" if asked.chat else self._echo())
            + b"}]"
            + (self._echo() if asked.chat else b"")
            + counts
            + b"}"
        )

    def _start(self, kind: str) -> bytes:
        fields = {"id": self._id, "object": kind, "created": self._created, "model": self._model}
        return msgspec.json.encode(fields)[:-1] + b","

    def _usage(self) -> bytes:
        """Usage with two places to fill: generated tokens and all tokens."""
        prompt = self._asked.prompt_tokens
        return b',"usage":{"prompt_tokens":%d,' % prompt + (
            b'"completion_tokens":%d,"total_tokens":%d}'
        )

    def _echo(self) -> bytes:
        """vLLM sends the prompt's ids back where token ids are asked for."""
        if not self._asked.token_ids:
            return b""
        return b',"prompt_token_ids":' + msgspec.json.encode(list(self._asked.prompt_ids))


def letters(done: int, tokens: int) -> bytes:
    """The text of tokens ``done`` + 1 to ``done`` + ``tokens``."""
    first = done % len(_LETTERS)
    if first + tokens <= len(_LETTERS):
        return _LETTERS[first : first + tokens]
    return bytes(_LETTERS[(done + i) % len(_LETTERS)] for i in range(tokens))


def error_body(message: str, kind: str, code: int) -> bytes:
    """OpenAI's error body, also the in-band frame of a stream."""
    return msgspec.json.encode({"error": {"message": message, "type": kind, "code": code}})


class Events:
    """Payloads as events of a stream."""

    def __init__(self, framing: Framing) -> None:
        self._framing = framing
        self._end = _ENDS[framing.ends]
        self._field = b"data:" if framing.no_space else b"data: "
        self._tail = self._end * 2

    def event(self, payload: bytes) -> bytes:
        """One event."""
        if self._framing.multi_line:
            # JSON may be broken between its members, and lines are joined with LF
            payload = payload.replace(b',"choices"', b"," + self._end + self._field + b'"choices"')
        event = self._field + payload + self._tail
        return self.comment() + event if self._framing.comments else event

    def comment(self) -> bytes:
        """A line that says nothing, as servers send it to keep a connection open."""
        return _COMMENT + self._tail

    def parts(self, event: bytes) -> list[bytes]:
        """What is written of an event: two parts where that is asked for.

        The second holds the blank line that completes it, the first at least a byte.
        """
        if not self._framing.split:
            return [event]
        cut = max(1, len(event) // 2)
        return [event[:cut], event[cut:]]
