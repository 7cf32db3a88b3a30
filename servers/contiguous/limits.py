"""How much a client may send: bodies are cut off while they arrive, texts before tokenizing.

A text is refused without tokenizing when even the vocabulary's longest tokens could not
write it within the context. That is exact for byte-level vocabularies, where a token of k
bytes writes at most k characters. A tokenizer that drops characters, or folds a run of
unknown ones into one token, might have fitted a text beyond it: such a text is refused too.
"""

from __future__ import annotations

from typing import Any

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from servers.contiguous.errors import RequestError

#: bytes of a request's body: room for a million tokens of text with every character escaped,
#: and parsed within a second, for which nothing else is answered
MAX_BODY_BYTES = 32 * 2**20


class BodyLimit:
    """Middleware: an HTTPException 413 out of the reading of a body that is too large.

    A body that nobody reads costs no memory and is let through.
    """

    def __init__(self, app: ASGIApp, max_bytes: int = MAX_BODY_BYTES) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI call."""
        if scope["type"] == "http":
            receive = self._limited(receive, _declared_bytes(scope))
        await self._app(scope, receive, send)

    def _limited(self, receive: Receive, declared: int) -> Receive:
        read = 0

        async def limited() -> Message:
            nonlocal read
            # a declared length is refused before a byte is kept
            if declared <= self._max_bytes:
                message = await receive()
                read += len(message.get("body", b""))
                if read <= self._max_bytes:
                    return message
            raise HTTPException(413, f"the body is larger than {self._max_bytes} bytes")

        return limited


def _declared_bytes(scope: Scope) -> int:
    """Content-Length; 0 where there is none, as in a chunked body."""
    value = dict(scope["headers"]).get(b"content-length", b"0")
    return int(value) if value.isdigit() else 0


def longest_token(tokenizer: Any) -> int:
    """Characters of the longest entry of a vocabulary."""
    return max(map(len, tokenizer.get_vocab()))


def check_unicode(text: str, param: str) -> None:
    r"""Raises RequestError for half a surrogate pair: JSON can say ``"\ud800"``, UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"character {error.start} of the text is U+{ord(text[error.start]):04X}, half a "
            "surrogate pair, which is no character of its own",
            param=param,
            code="invalid_unicode",
        ) from error
