"""HTTP/1.1 of one connection: requests in, one after the other; answers by the link."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import httptools

from servers.simulated.link import Link

#: of a request's body: a million token ids
MAX_BODY_BYTES = 16 * 2**20
_MAX_HEAD_BYTES = 64 * 1024
_REASONS = {
    200: "OK",
    307: "Temporary Redirect",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Content Too Large",
    429: "Too Many Requests",
    503: "Service Unavailable",
}
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclass
class Request:
    """One request, completely read."""

    method: str
    target: str
    body: bytes
    keep_alive: bool
    #: monotonic: when its last byte had been read
    t_received_s: float


Handler = Callable[["Connection", Request], None]


def head(status: int, headers: Mapping[str, str]) -> bytes:
    """The head of a response."""
    lines = [f"HTTP/1.1 {status} {_REASONS[status]}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


class Connection(asyncio.Protocol):
    """One client's connection."""

    def __init__(
        self, handle: Handler, make_link: Callable[[asyncio.Transport], Link], *, close: bool
    ) -> None:
        """``close``: after the first response."""
        self._handle = handle
        self._make_link = make_link
        self._close = close
        self._parser: Any = httptools.HttpRequestParser(self)
        self._target = b""
        self._body = bytearray()
        self._head_bytes = 0
        self._waiting: deque[Request] = deque()
        self._current: Request | None = None
        self.link: Link
        #: called once when the client has gone before the response's end
        self.on_gone: Callable[[], None] | None = None

    @property
    def keeps_alive(self) -> bool:
        """Whether the connection stays open after this response."""
        return self._current is not None and self._current.keep_alive and not self._close

    def respond(
        self, status: int, body: bytes, kind: str = "application/json", **headers: str
    ) -> None:
        """A whole response."""
        fields = {"content-type": kind, "content-length": str(len(body))}
        fields |= {name.replace("_", "-"): value for name, value in headers.items()}
        fields["connection"] = "keep-alive" if self.keeps_alive else "close"
        self.link.send(head(status, fields) + body)
        self.done()

    def done(self, *, close: bool = False) -> None:
        """The response has been handed over; the next request may start."""
        keeps = self.keeps_alive and not close
        self._current = self.on_gone = None
        if not keeps:
            self._waiting.clear()
            self.link.close()
        elif self._waiting:
            self._start(self._waiting.popleft())

    # what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has come."""
        # uvloop's transports are no subclass of asyncio's
        self.link = self._make_link(cast("asyncio.Transport", transport))

    def data_received(self, data: bytes) -> None:
        """Bytes have come; they may end a request."""
        self._now_s = time.monotonic()
        try:
            plain = self.link.received(data)
            if plain:
                self._parser.feed_data(plain)
        except httptools.HttpParserUpgrade:
            self._refuse(400, "no upgrade is offered")
        except httptools.HttpParserError as error:
            self._refuse(400, f"not HTTP/1.1 ({error})")
        except ssl.SSLError:
            self.link.reset()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has gone, or we have closed."""
        gone, self.on_gone = self.on_gone, None
        self.link.lost()
        self._waiting.clear()
        self._current = None
        if gone is not None:
            gone()

    # what the parser calls

    def on_message_begin(self) -> None:
        """A request begins."""
        self._target, self._head_bytes = b"", 0
        self._body.clear()

    def on_url(self, url: bytes) -> None:
        """A piece of the request's target."""
        self._target += url
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        self._count(len(name) + len(value))
        if name.lower() == b"expect" and value.lower() == b"100-continue" and not self._current:
            self.link.send(CONTINUE)

    def on_body(self, data: bytes) -> None:
        """A piece of the body; what is too much is not kept."""
        if len(self._body) <= MAX_BODY_BYTES:
            self._body += data

    def on_message_complete(self) -> None:
        """The request has been read."""
        request = Request(
            method=self._parser.get_method().decode(),
            target=self._target.decode("latin-1"),
            body=bytes(self._body),
            keep_alive=self._parser.should_keep_alive(),
            t_received_s=self._now_s,
        )
        self._body.clear()
        if self._current is None:
            self._start(request)
        else:
            self._waiting.append(request)

    def _start(self, request: Request) -> None:
        self._current = request
        self._handle(self, request)

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > _MAX_HEAD_BYTES:
            # the parser passes it on as one of its errors
            raise ValueError("its head is too long")

    def _refuse(self, status: int, words: str) -> None:
        """Answer what is no request, and close; an answer in progress ends here."""
        if self._current is None:
            self.link.send(
                head(status, {"content-length": str(len(words)), "connection": "close"})
                + words.encode()
            )
        self.link.close()
