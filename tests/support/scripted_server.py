"""A raw TCP server on 127.0.0.1 that says exactly what a test wants, when it wants it.

Each request is answered by a *script*, a function that gets the connection and the
request and writes bytes, waits for events of the test, resets, or closes. Runs in plain
threads, so it must not be used in a process that Locust has patched.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import socket
import ssl
import struct
import termios
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType

#: No test waits longer than this for anything.
PATIENCE_S = 20.0


@dataclass
class Request:
    """What a client sent."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, object]:
        value = json.loads(self.body)
        assert isinstance(value, dict)
        return value


class Peer:
    """The server's end of one connection."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.closed = False

    def send(self, data: bytes) -> None:
        self._sock.sendall(data)

    def headers(
        self,
        status: int = 200,
        content_type: str = "text/event-stream",
        *extra: str,
        chunked: bool = True,
    ) -> None:
        lines = [f"HTTP/1.1 {status} X", f"Content-Type: {content_type}", *extra]
        if chunked:
            lines.append("Transfer-Encoding: chunked")
        self.send("\r\n".join([*lines, "", ""]).encode())

    def chunk(self, data: bytes) -> None:
        self.send(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def end(self) -> None:
        self.send(b"0\r\n\r\n")

    def stream(self, *events: bytes) -> None:
        """A whole chunked event stream, one write per event."""
        self.headers()
        for event in events:
            self.chunk(event)
        self.end()

    def reply(self, status: int, body: object, *extra: str) -> None:
        """A whole JSON (or text) response with its length."""
        text = isinstance(body, str)
        data = str(body).encode() if text else json.dumps(body).encode()
        kind = "text/plain; version=0.0.4" if text else "application/json"
        self.headers(status, kind, f"Content-Length: {len(data)}", *extra, chunked=False)
        self.send(data)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
            self._sock.close()

    def reset(self) -> None:
        """Close so that the client sees ECONNRESET: linger 0."""
        self.closed = True
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._sock.close()

    def wait_received(self) -> None:
        """Until the client's kernel has acknowledged all that was sent."""
        give_up_s = time.monotonic() + PATIENCE_S
        # SIOCOUTQ: bytes sent and not acknowledged yet
        while struct.unpack("i", fcntl.ioctl(self._sock, termios.TIOCOUTQ, b"\0" * 4))[0]:
            assert time.monotonic() < give_up_s
            time.sleep(0.001)

    def wait_closed(self) -> None:
        """Until the client closes its end."""
        self._sock.settimeout(PATIENCE_S)
        try:
            while self._sock.recv(65536):
                pass
        except ConnectionError:
            pass


Script = Callable[[Peer, Request], None]


def sse(payload: object, end: str = "\n\n") -> bytes:
    """One event with JSON (or, for text, as it stands)."""
    data = payload if isinstance(payload, str) else json.dumps(payload)
    return f"data: {data}{end}".encode()


def text_chunk(text: str | None, **extra: object) -> bytes:
    """A completion chunk."""
    finish = extra.pop("finish_reason", None)
    choice = {"index": 0, "text": text, "finish_reason": finish}
    for key in ("token_ids",):
        if key in extra:
            choice[key] = extra.pop(key)
    return sse({"choices": [choice], **extra})


DONE = b"data: [DONE]\n\n"


@dataclass
class ScriptedServer:
    """Use as a context manager; ``script`` answers every request."""

    script: Script
    tls: ssl.SSLContext | None = None
    host: str = "127.0.0.1"
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    #: exceptions of scripts, for the test to look at
    errors: list[BaseException] = field(default_factory=list)

    def __enter__(self) -> ScriptedServer:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        self._listener = socket.create_server((self.host, 0), family=family, backlog=1024)
        self.port: int = self._listener.getsockname()[1]
        name = f"[{self.host}]" if ":" in self.host else self.host
        self.url = f"http{'s' if self.tls else ''}://{name}:{self.port}"
        self._peers: list[Peer] = []
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    def kill(self) -> None:
        """As if the process died: no listener, every connection gone."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._acceptor.join(PATIENCE_S)
        with self._lock:
            peers, self._peers = self._peers, []
        for peer in peers:
            peer.close()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(sock,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket) -> None:
        try:
            if self.tls is not None:
                sock = self.tls.wrap_socket(sock, server_side=True)
            peer = Peer(sock)
            with self._lock:
                self._peers.append(peer)
            while not peer.closed:
                request = _read_request(sock)
                if request is None:
                    break
                with self._lock:
                    self.requests.append(request)
                self.script(peer, request)
            peer.close()
        except OSError:
            sock.close()
        except BaseException as error:
            self.errors.append(error)
            sock.close()


def _read_request(sock: socket.socket) -> Request | None:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = sock.recv(65536)
        if not piece:
            return None
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    while len(body) < int(headers.get("content-length", 0)):
        piece = sock.recv(65536)
        if not piece:
            return None
        body += piece
    return Request(method, path, headers, body)
