"""HTTP/1.1 as far as a streaming POST needs it: encode a request, frame a response."""

from __future__ import annotations

import re
from array import array
from dataclasses import dataclass
from urllib.parse import urlsplit

import httptools

from harness import __version__

_OK = 200
#: An error body beyond this is cut: nobody reads it.
MAX_ERROR_BODY_BYTES = 65536
#: The data line [DONE] and its blank line at the end of a body, and more bytes than they take.
_DONE_AT_END = re.compile(rb"(?:^|[\r\n])data: ?\[DONE\](?>\r\n|\r|\n){2}\Z")
_TAIL_BYTES = 24


class MalformedResponseError(Exception):
    """The response is no HTTP; the text says where it went wrong."""


@dataclass(frozen=True)
class Endpoint:
    """Where requests go: the parts of a backend's URL."""

    host: str
    port: int
    tls: bool
    #: path before ``/v1``, without a trailing slash; mostly empty
    prefix: str

    @classmethod
    def from_url(cls, url: str) -> Endpoint:
        """Split an http(s) URL; raises ValueError when it is none."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(url)
        tls = parts.scheme == "https"
        port = parts.port or (443 if tls else 80)
        return cls(parts.hostname, port, tls, parts.path.rstrip("/"))

    @property
    def authority(self) -> str:
        """The Host header's value."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


class RequestEncoder:
    """Encodes POST requests of one shape; everything but the body is encoded once."""

    def __init__(self, endpoint: Endpoint, path: str, api_key: str | None) -> None:
        lines = [
            f"POST {endpoint.prefix}{path} HTTP/1.1",
            f"Host: {endpoint.authority}",
            f"User-Agent: kvknee/{__version__}",
            "Accept: text/event-stream, application/json",
            # a compressed stream would be held back until the packer has enough of it
            "Accept-Encoding: identity",
            "Content-Type: application/json",
        ]
        if api_key:
            lines.append(f"Authorization: Bearer {api_key}")
        self._head = ("\r\n".join(lines) + "\r\nContent-Length: ").encode("latin-1")

    def encode(self, body: bytes) -> bytes:
        """The whole request."""
        return self._head + str(len(body)).encode() + b"\r\n\r\n" + body


class ResponseReader:
    """Frames one response by httptools: content-length, chunked, or until close."""

    def __init__(self) -> None:
        #: the body in pieces, and the read that brought each: columns, which the garbage
        #: collector does not count
        self.pieces: list[bytes] = []
        self.piece_reads = array("l")
        self.headers: dict[bytes, bytes] = {}
        self.status: int | None = None
        self.complete = False
        #: how the body ends can be told from its last bytes, or by the peer's closing alone
        self.can_wait = False
        self._read = 0
        self._headers_done = False
        self._keep_alive = False
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, read: int, data: bytes) -> None:
        """Take the bytes of one read; raises MalformedResponseError."""
        self._read = read
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise MalformedResponseError(f"malformed HTTP response: {error}") from error

    def end(self) -> None:
        """The peer closed; that ends a response that has no other end."""
        framed = b"content-length" in self.headers or b"transfer-encoding" in self.headers
        if self._headers_done and not framed:
            self.complete = True

    @property
    def reusable(self) -> bool:
        """Whether the connection can carry another request."""
        return self.complete and self._keep_alive

    @property
    def is_event_stream(self) -> bool:
        """Whether the server calls the body an event stream."""
        return self.headers.get(b"content-type", b"").lower().startswith(b"text/event-stream")

    @property
    def encoding(self) -> str | None:
        """How the body is packed, though ``identity`` was asked for; None when it is not."""
        value = self.headers.get(b"content-encoding", b"").decode("latin-1").strip()
        return value if value.lower() not in ("", "identity") else None

    @property
    def ends_with_done(self) -> bool:
        """Whether the body, as far as it came, ends with the event ``[DONE]``.

        Looks at the last few bytes only, for it is asked after every read. The same
        letters inside a text are no end: they are not the whole of a data line.
        """
        pieces = self.pieces
        at = len(pieces) - 1
        tail = pieces[at][-_TAIL_BYTES:] if pieces else b""
        while at > 0 and len(tail) < _TAIL_BYTES:
            at -= 1
            tail = pieces[at][-_TAIL_BYTES:] + tail
        return b"[DONE]" in tail and _DONE_AT_END.search(tail) is not None

    @property
    def body(self) -> bytes:
        """The body without its times."""
        return b"".join(self.pieces)

    def forget_pieces(self, first: int) -> None:
        """Let go of the body from this piece on."""
        del self.pieces[first:], self.piece_reads[first:]

    # callbacks of httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep one header; names are case-insensitive. Trailers change nothing."""
        if not self._headers_done:
            self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        """The status is known now; an interim 1xx response is passed over."""
        status = self._parser.get_status_code()
        if status >= 200:
            self.status, self._headers_done = status, True
            self.can_wait = status == _OK and b"content-length" not in self.headers

    def on_body(self, data: bytes) -> None:
        """Keep body bytes with the number of their read."""
        self.pieces.append(data)
        self.piece_reads.append(self._read)

    def on_message_complete(self) -> None:
        """The response has ended, unless it was an interim one."""
        if self._headers_done:
            self.complete = True
            # the parser forgets the answer when it has left this callback
            self._keep_alive = self._parser.should_keep_alive()
        else:
            self.headers.clear()
