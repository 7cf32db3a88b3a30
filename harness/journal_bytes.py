"""What can still be read of a journal's bytes after a crash or damage. Pure."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator

_SLICE_BYTES = 65_536
#: gzip's magic number and its only method, deflate (RFC 1952)
_GZIP_START = b"\x1f\x8b\x08"


def begins_whole(line: bytes) -> bool:
    """Whether a whole JSON value begins the line: then more than its end is lost."""
    try:
        json.JSONDecoder().raw_decode(line[:_SLICE_BYTES].decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return False
    return True


def gzip_members(data: bytes) -> Iterator[bytes | None]:
    """Each gzip member's content; None once for damage, a torn last one is left out.

    After damage it goes on at the next magic number. One that stands there by chance is no
    member: its checksum would have to be right, too.
    """
    view = memoryview(data)
    start, damaged = 0, False
    while 0 <= start < len(view):
        try:
            member = _gzip_member(view, start)
        except zlib.error:
            member, damaged = None, True
        if member is None:
            start = data.find(_GZIP_START, start + 1)
            # what ended too early is torn only where nothing follows
            damaged |= start >= 0
            continue
        if damaged:
            yield None
            damaged = False
        content, start = member
        yield content
    if damaged:
        yield None


def whole_lines_bytes(data: bytes) -> int:
    """Length of the bytes that readers count as lines: only a torn end is no part of them.

    A last line that lacks nothing but its newline is one, too.
    """
    end = data.rfind(b"\n") + 1
    last = data[end:]
    return len(data) if last and (_is_whole(last) or begins_whole(last)) else end


def _is_whole(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def whole_members_bytes(data: bytes) -> int:
    """Length of the bytes up to the end of the last whole gzip member; damage stays in."""
    view = memoryview(data)
    start = whole = 0
    while 0 <= start < len(view):
        try:
            member = _gzip_member(view, start)
        except zlib.error:
            member = None
        if member is None:
            start = data.find(_GZIP_START, start + 1)
        else:
            start = whole = member[1]
    return whole


def _gzip_member(view: memoryview, start: int) -> tuple[bytes, int] | None:
    """One member's content and where the next begins; None when it is torn.

    Raises zlib.error for bytes that are none.

    Fed in slices: a decompressor given all the rest copies it as unused data, which makes
    a long run's scrapes quadratic to read.
    """
    reader = zlib.decompressobj(wbits=31)
    parts = []
    position = start
    while not reader.eof and position < len(view):
        piece = view[position : position + _SLICE_BYTES]
        parts.append(reader.decompress(piece))
        position += len(piece)
    return (b"".join(parts), position - len(reader.unused_data)) if reader.eof else None
