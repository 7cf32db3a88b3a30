"""Sends ``/truth``: many megabytes after a long run, so line by line and never in the way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from servers.simulated.connection import Connection, head
from servers.simulated.truth import RequestTruth

#: of lines that are made before the loop may do other work
_PIECE_BYTES = 64 * 1024
#: no more is made while this much waits for a slow reader
_MOST_WAITING_BYTES = 2**20


def send_truth(
    connection: Connection, loop: asyncio.AbstractEventLoop, entries: Sequence[RequestTruth]
) -> None:
    """Answer with one line of JSON per entry."""
    _Sender(connection, loop, iter(entries)).begin()


class _Sender:
    def __init__(
        self,
        connection: Connection,
        loop: asyncio.AbstractEventLoop,
        entries: Iterator[RequestTruth],
    ) -> None:
        self._connection, self._loop, self._entries = connection, loop, entries
        self._over = False

    def begin(self) -> None:
        connection = self._connection
        connection.on_gone = self._gone
        keeps = "keep-alive" if connection.keeps_alive else "close"
        fields = {"content-type": "application/x-ndjson", "transfer-encoding": "chunked"}
        connection.link.send(head(200, fields | {"connection": keeps}))
        self._more()

    def _gone(self) -> None:
        self._over = True

    def _more(self) -> None:
        link = self._connection.link
        link.on_drained = None
        if self._over:
            return
        if link.waiting_bytes > _MOST_WAITING_BYTES:
            link.on_drained = self._more
            return
        piece = bytearray()
        while len(piece) < _PIECE_BYTES and (entry := next(self._entries, None)) is not None:
            piece += entry.line()
        if piece:
            link.send(b"%x\r\n%b\r\n" % (len(piece), bytes(piece)))
            self._loop.call_soon(self._more)
        else:
            link.send(b"0\r\n\r\n")
            self._connection.done()
