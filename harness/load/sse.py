"""Server-sent events: from the bytes of a body to events. Pure.

Format: WHATWG HTML standard, section "Interpreting an event stream". The body is
reassembled byte for byte before anything is split or decoded, so where the network cut it
does not matter; only *when* an event was complete depends on the reads.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from harness.load.plain_body import plain_body

#: A line ends with CRLF, LF or CR, mixed as the server likes.
_END_OF_LINE = re.compile(rb"\r\n|\n|\r")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

_Positions = Sequence[int] | npt.NDArray[np.int64]


class SseEvent(NamedTuple):
    """One event that carries data."""

    #: data lines joined with LF, undecoded
    data: bytes
    #: the ``event:`` field, None when absent
    name: str | None
    #: index of the read in which the event became complete
    read: int


@dataclass(frozen=True)
class Events:
    """The events of a body in columns; iterating gives them one by one."""

    data: Sequence[bytes] = ()
    reads: Sequence[int] = ()
    #: by the event's index, where there is one
    names: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, events: Iterable[SseEvent]) -> Events:
        """The same events in columns."""
        rows = list(events)
        names = {i: row.name for i, row in enumerate(rows) if row.name is not None}
        return cls([row.data for row in rows], [row.read for row in rows], names)

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[SseEvent]:
        for index, (data, read) in enumerate(zip(self.data, self.reads, strict=True)):
            yield SseEvent(data, self.names.get(index), read)


def parse_events(pieces: Sequence[tuple[int, bytes]]) -> Events:
    """All complete events of a body given as (index of the read, bytes) pieces.

    Comments and events without data are no events. An event whose closing blank line is
    missing at the end of the body is not dispatched, as the standard says. An event is
    complete with the *first* byte of its blank line: the LF of a CRLF adds nothing.
    """
    return parse_columns([read for read, _ in pieces], [data for _, data in pieces])


def parse_columns(reads: Sequence[int], parts: Sequence[bytes]) -> Events:
    """The same of pieces in columns."""
    body = b"".join(parts)
    plain = plain_body(body)
    if plain is not None:
        return Events(plain, _reads_of(plain.ends + 1, reads, parts))
    data, ends, names = split_lines(body)
    return Events(data, _reads_of(ends, reads, parts), names)


def split_lines(body: bytes) -> tuple[list[bytes], list[int], dict[int, str]]:
    """Data, position of the end, and names of the events of any body, line by line."""
    start = len(_BYTE_ORDER_MARK) if body.startswith(_BYTE_ORDER_MARK) else 0
    found: list[bytes] = []
    ends: list[int] = []
    names: dict[int, str] = {}
    lines: list[bytes] = []
    name: str | None = None
    for end in _END_OF_LINE.finditer(body, start):
        line, start = body[start : end.start()], end.end()
        if line:
            key, value = _field(line)
            if key == b"data":
                lines.append(value)
            elif key == b"event":
                name = value.decode("utf-8", "replace")
            continue
        data = b"\n".join(lines)
        if data:
            if name is not None:
                names[len(found)] = name
            found.append(data)
            ends.append(end.start())
        lines, name = [], None
    return found, ends, names


def _field(line: bytes) -> tuple[bytes, bytes]:
    """Name and value of a line; the name of a comment is empty."""
    name, _, value = line.partition(b":")
    return name, value[1:] if value.startswith(b" ") else value


def _reads_of(positions: _Positions, reads: Sequence[int], parts: Sequence[bytes]) -> Sequence[int]:
    """Which read each of these bytes of the body came with."""
    if not len(positions):
        return []
    ends = np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)))
    at = np.searchsorted(ends, positions, side="right")
    found: list[int] = np.array(reads, dtype=np.int64)[at].tolist()
    return found
