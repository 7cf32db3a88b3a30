"""The process that answers scrapes: ``python -m harness.live.server FD``.

FD is a listening socket that the load has opened; messages of the load come on stdin, one a
line. Rendering a page takes some milliseconds of Python, which in the measuring process
would delay requests; here it costs them nothing.

When stdin ends, so does the process. A Prometheus that has been scraping gets two seconds
to fetch the last figures first.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import IO

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from harness.live.collector import LiveCollector
from harness.live.snapshot import decode

#: Who scraped within this time will scrape again.
_SCRAPED_LATELY_S = 10.0
_LINGER_S = 2.0
#: A client that connects and sends nothing holds its thread no longer.
_IDLE_CLIENT_S = 10.0
_HINT = b"kvknee: live figures of the load at /metrics\n"


class Scrapes:
    """When the page was last read."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._changed = threading.Condition()
        self._last_s = -float("inf")

    def served(self, begun_s: float) -> None:
        """A scrape that began then was answered."""
        with self._changed:
            self._last_s = max(self._last_s, begun_s)
            self._changed.notify_all()

    def wait_for_one_after(self, time_s: float, lately_s: float, limit_s: float) -> bool:
        """Wait for a scrape that began after ``time_s``; at once when nobody scrapes."""
        with self._changed:
            if self._now() - self._last_s > lately_s:
                return False
            return self._changed.wait_for(lambda: self._last_s >= time_s, limit_s)


class MetricsServer(ThreadingHTTPServer):
    """Serves ``/metrics`` of one collector on a socket that already listens."""

    daemon_threads = True
    # a scrape under way is no reason to stay
    block_on_close = False

    def __init__(self, listener: socket.socket, collector: LiveCollector) -> None:
        super().__init__(listener.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.scrapes = Scrapes()
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(collector)

    def handle_error(self, request: object, client_address: object) -> None:
        """A scraper that went away is no news; anything else is a fault of ours."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    """GET /metrics in the format that the scraper asks for."""

    server: MetricsServer
    timeout = _IDLE_CLIENT_S
    server_version = "kvknee"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer one request."""
        begun_s = time.monotonic()
        path = self.path.partition("?")[0]
        if path == "/metrics":
            encode, kind = choose_encoder(self.headers.get("Accept", ""))
            self._reply(200, kind, encode(self.server.registry))
            self.server.scrapes.served(begun_s)
        elif path == "/":
            self._reply(200, "text/plain; charset=utf-8", _HINT)
        else:
            self._reply(404, "text/plain; charset=utf-8", _HINT)

    def _reply(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """No line per scrape."""


def take_messages(lines: Iterable[bytes], collector: LiveCollector) -> None:
    """Read messages until the load closes its end; a torn last line is left out."""
    for line in lines:
        if line.endswith(b"\n"):
            collector.take(decode(line))


def serve(listener: socket.socket, messages: IO[bytes]) -> None:
    """Answer scrapes until ``messages`` end."""
    collector = LiveCollector()
    with MetricsServer(listener, collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        take_messages(messages, collector)
        server.scrapes.wait_for_one_after(time.monotonic(), _SCRAPED_LATELY_S, _LINGER_S)
        server.shutdown()


if __name__ == "__main__":
    LISTENER = socket.socket(fileno=int(sys.argv[1]))
    # an event loop may have opened it, and then it does not block
    LISTENER.setblocking(True)
    serve(LISTENER, sys.stdin.buffer)
