"""One HTTP request that ends: within a time for all of it, and a size, whatever is sent.

httpx' own timeouts are per read, so that an answer of which a byte comes every few seconds
would never time out. Here a timer closes the connection for both directions when the time
is over, which wakes whoever reads from it, in whatever part of the answer that is. The
timer is a greenlet in a process that Locust has patched, else a thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

#: larger than any server's page; an answer that never ends must not fill the memory
MAX_ANSWER_BYTES = 32 * 2**20


class EndlessAnswerError(httpx.RequestError):
    """The answer did not end within its time or its size; the text says which."""


@dataclass(frozen=True)
class Answer:
    """A whole answer."""

    status: int
    headers: httpx.Headers
    body: bytes

    @property
    def text(self) -> str:
        """The body as UTF-8, whatever encoding it claims."""
        return self.body.decode("utf-8", "replace")

    @property
    def object(self) -> Mapping[str, Any] | None:
        """The JSON object of a successful answer; None for anything else."""
        if self.status != httpx.codes.OK:
            return None
        try:
            value = json.loads(self.body)
        except (ValueError, RecursionError):
            return None
        return value if isinstance(value, dict) else None


def fetch(
    client: httpx.Client,
    method: str,
    url: str,
    *,
    within_s: float,
    body: Mapping[str, Any] | None = None,
    most_bytes: int = MAX_ANSWER_BYTES,
) -> Answer:
    """Make one request, on a connection of its own, with ``body`` as JSON.

    Raises EndlessAnswerError after ``within_s`` seconds or ``most_bytes``, and httpx'
    HTTPError for all else that goes wrong.
    """
    # no compression: a small body could become a large one
    headers = {"Accept-Encoding": "identity", "Connection": "close"}
    with _TimeLimit(within_s) as limit:
        try:
            with client.stream(
                method,
                url,
                json=body,
                headers=headers,
                extensions={"trace": limit.trace},
            ) as answer:
                content = _content(answer, most_bytes)
        except httpx.TimeoutException as error:
            raise limit.error() from error
        except Exception as error:
            if limit.is_over:
                raise limit.error() from error
            raise
        # an answer without a length ends where its connection is closed, also by the limit
        if limit.is_over:
            raise limit.error()
        return Answer(answer.status_code, answer.headers, content)


def _content(answer: httpx.Response, most_bytes: int) -> bytes:
    content = bytearray()
    for piece in answer.iter_bytes():
        content += piece
        if len(content) > most_bytes:
            raise EndlessAnswerError(f"an answer of more than {most_bytes:,} bytes")
    return bytes(content)


class _TimeLimit:
    """Closes the connection of a request when its time is over."""

    def __init__(self, within_s: float) -> None:
        self._within_s = within_s
        self._timer = threading.Timer(within_s, self._end)
        self._timer.daemon = True
        self._lock = threading.Lock()
        #: a descriptor of ours for the connection, whatever is wrapped around it (TLS)
        self._connection: int | None = None
        self.is_over = False

    def __enter__(self) -> _TimeLimit:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._lock:
            if self._connection is not None:
                os.close(self._connection)
                self._connection = None

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Called by httpx at each step of a request."""
        if event != "connection.connect_tcp.complete":
            return
        sock = info["return_value"].get_extra_info("socket")
        # no descriptor: it was closed meanwhile, and the request fails by itself
        with self._lock, contextlib.suppress(OSError):
            self._connection = os.dup(sock.fileno())
        if self.is_over:
            self._shut()

    def error(self) -> EndlessAnswerError:
        """What to raise once the time is over."""
        return EndlessAnswerError(f"no whole answer within {self._within_s:g} s")

    def _end(self) -> None:
        self.is_over = True
        self._shut()

    def _shut(self) -> None:
        with self._lock, contextlib.suppress(OSError):
            if self._connection is not None:
                with socket.socket(fileno=os.dup(self._connection)) as connection:
                    connection.shutdown(socket.SHUT_RDWR)
