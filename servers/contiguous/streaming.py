"""Answers: an event stream with one write per token, or one body; both notice who leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from servers.contiguous.engine import Engine
from servers.contiguous.frames import Frames, error_body, error_frames
from servers.contiguous.mailbox import Mailbox
from servers.contiguous.sequence import ErrorEvent, Sequence, TokenEvent

_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_JSON_HEADERS = [(b"content-type", b"application/json")]


class GenerationResponse(Response):
    """Runs one submitted sequence to its end, or cancels it when its client leaves.

    Nothing is sent before the first event, so a request that fails before its first token
    gets a real error status.
    """

    def __init__(
        self, engine: Engine, sequence: Sequence, mailbox: Mailbox, frames: Frames, *, stream: bool
    ) -> None:
        super().__init__()
        self._engine = engine
        self._sequence = sequence
        self._mailbox = mailbox
        self._frames = frames
        self._stream = stream
        self._ended = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI call: answers, with a watch on the connection beside it."""
        watch = asyncio.create_task(_until_disconnect(receive, self._leave))
        try:
            await (self._send_stream(send) if self._stream else self._send_whole(send))
        finally:
            watch.cancel()
            self._leave()

    def _leave(self) -> None:
        """Cancel unless it has ended: the client left, or the server dropped the connection."""
        if not self._ended:
            self._ended = True
            self._engine.cancel(self._sequence)
            self._mailbox.close()

    async def _send_stream(self, send: Send) -> None:
        started = False
        while events := await self._mailbox.take():
            first, last = events[0], events[-1]
            # tokens before an error in one batch were generated: they make it a stream
            if isinstance(first, ErrorEvent) and not started:
                await self._send_error(send, first)
                return
            if not started:
                started = True
                await send(
                    {"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS}
                )
            done = isinstance(last, ErrorEvent) or last.finish_reason is not None
            self._ended = self._ended or done
            body = b"".join(map(self._frame, events))
            if isinstance(last, TokenEvent) and done:
                # the last token first: what follows it must not delay or cover its arrival
                await send({"type": "http.response.body", "body": body, "more_body": True})
                body = self._frames.end(last.generated)
            await send({"type": "http.response.body", "body": body, "more_body": not done})
            if done:
                return

    def _frame(self, event: TokenEvent | ErrorEvent) -> bytes:
        return self._frames.token(event) if isinstance(event, TokenEvent) else error_frames(event)

    async def _send_whole(self, send: Send) -> None:
        tokens: list[TokenEvent] = []
        while events := await self._mailbox.take():
            for event in events:
                if isinstance(event, ErrorEvent):
                    await self._send_error(send, event)
                    return
                tokens.append(event)
            if tokens[-1].finish_reason is not None:
                self._ended = True
                await _send_body(send, 200, self._frames.whole(tokens))
                return

    async def _send_error(self, send: Send, event: ErrorEvent) -> None:
        self._ended = True
        await _send_body(send, event.status, error_body(event.message, "server_error"))


async def _send_body(send: Send, status: int, body: bytes) -> None:
    headers = [*_JSON_HEADERS, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _until_disconnect(receive: Receive, then: Callable[[], None]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    then()
