"""A model hub of two models: one that is open, and one that is gated."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from tests.doctor.well_machine import MODEL_CONFIG

OPEN = "org/open"
GATED = "org/gated"
NO_CONFIG = "org/gguf"
WEIGHTS = 123_456
_BODY = json.dumps(MODEL_CONFIG).encode()


class _Hub(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == f"/{OPEN}/resolve/main/config.json":
            headers = {"ETag": '"1"', "X-Repo-Commit": "c" * 40}
            self._answer(200, _BODY, headers)
        elif path == f"/api/models/{OPEN}":
            files = [{"rfilename": "model.safetensors", "size": WEIGHTS}, {"rfilename": "a.md"}]
            self._answer(200, json.dumps({"id": OPEN, "siblings": files}).encode(), {})
        elif path.startswith(f"/{GATED}/"):
            self._answer(403, b"", {"X-Error-Code": "GatedRepo"})
        elif path.startswith(f"/{NO_CONFIG}/"):
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
        else:
            self._answer(404, b"", {"X-Error-Code": "RepoNotFound"})

    def _answer(self, code: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def hub() -> Iterator[str]:
    """The hub's address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    thread = Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
