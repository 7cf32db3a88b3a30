"""A body that is nothing but one ``data: ...`` line and a blank line per event. Pure.

Nearly all servers write just this. Such a body is not split: the ends of its events are
found in one pass over its bytes, and with everything that is not JSON blanked out it is
JSON text, one value after the other, that a decoder reads in one go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

_PREFIX = np.frombuffer(b"data: ", dtype=np.uint8)
_PREFIX_AT = np.arange(len(_PREFIX))
_LF, _BLANK = 10, 32

_Places = npt.NDArray[np.int64]


class PlainBody(Sequence[bytes]):
    """The data of each event, cut out when asked for."""

    def __init__(self, body: bytes, starts: _Places, ends: _Places) -> None:
        """``starts`` and ``ends`` of the data within ``body``."""
        self._body, self._starts, self.ends = body, starts, ends

    def __len__(self) -> int:
        return len(self.ends)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...

    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        """The data of one event, or of some."""
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self._body[self._starts[index] : self.ends[index]]

    def text(self, events: int) -> bytes:
        """The data of the first so many events, with white space between them."""
        if not events:
            return b""
        text = np.frombuffer(self._body, dtype=np.uint8)[: self.ends[events - 1]].copy()
        text[self._starts[:events, None] - len(_PREFIX) + _PREFIX_AT] = _BLANK
        return text.tobytes()


def plain_body(body: bytes) -> PlainBody | None:
    """The events of a plain body; None where it holds anything else, or events without data."""
    raw = np.frombuffer(body, dtype=np.uint8)
    feeds = np.flatnonzero(raw == _LF)
    if not len(feeds) or len(feeds) % 2 or b"\r" in body:
        return None
    ends, blank = feeds[::2], feeds[1::2]
    starts = np.concatenate(([0], blank[:-1] + 1)) + len(_PREFIX)
    if blank[-1] != len(raw) - 1 or (blank != ends + 1).any() or (starts >= ends).any():
        return None
    if (raw[starts[:, None] - len(_PREFIX) + _PREFIX_AT] != _PREFIX).any():
        return None
    return PlainBody(body, starts, ends)
