"""Server-sent events: from the bytes of a body to events. Pure.

Format: WHATWG HTML standard, section "Interpreting an event stream". The body is
reassembled byte for byte before anything is split or decoded, so where the network cut it
does not matter; only *when* an event was complete depends on the reads.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

#: A line ends with CRLF, LF or CR, mixed as the server likes.
_END_OF_LINE = re.compile(rb"\r\n|\n|\r")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class SseEvent(NamedTuple):
    """One event that carries data."""

    #: data lines joined with LF, undecoded
    data: bytes
    #: the ``event:`` field, None when absent
    name: str | None
    #: index of the read in which the event became complete
    read: int


def parse_events(pieces: Sequence[tuple[int, bytes]]) -> list[SseEvent]:
    """All complete events of a body given as (index of the read, bytes) pieces.

    Comments and events without data are no events. An event whose closing blank line is
    missing at the end of the body is not dispatched, as the standard says. An event is
    complete with the *first* byte of its blank line: the LF of a CRLF adds nothing.
    """
    body = b"".join(data for _, data in pieces)
    at_read = _ReadFinder(pieces)
    start = len(_BYTE_ORDER_MARK) if body.startswith(_BYTE_ORDER_MARK) else 0
    events: list[SseEvent] = []
    lines: list[bytes] = []
    name: str | None = None
    for end in _END_OF_LINE.finditer(body, start):
        line, start = body[start : end.start()], end.end()
        if line:
            field, value = _field(line)
            if field == b"data":
                lines.append(value)
            elif field == b"event":
                name = value.decode("utf-8", "replace")
            continue
        data = b"\n".join(lines)
        if data:
            events.append(SseEvent(data, name, at_read(end.start())))
        lines, name = [], None
    return events


def _field(line: bytes) -> tuple[bytes, bytes]:
    """Name and value of a line; the name of a comment is empty."""
    name, _, value = line.partition(b":")
    return name, value[1:] if value.startswith(b" ") else value


class _ReadFinder:
    """Which read a byte of the body came with; asked for rising positions only."""

    def __init__(self, pieces: Sequence[tuple[int, bytes]]) -> None:
        self._pieces = pieces
        self._piece = 0
        self._end = len(pieces[0][1]) if pieces else 0

    def __call__(self, position: int) -> int:
        while position >= self._end:
            self._piece += 1
            self._end += len(self._pieces[self._piece][1])
        return self._pieces[self._piece][0]
