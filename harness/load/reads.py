"""The reads of one response in columns: when each was made, and the kernel's stamp. Pure.

A long answer has thousands of reads, and a busy client holds hundreds of such answers. A
column costs a few bytes a read and gives the garbage collector nothing to walk through.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

#: ``struct timespec`` of the kernel's receive stamps, two longs: seconds and nanoseconds.
TIMESPEC = struct.Struct("@ll")
#: Stands for a read without a stamp: no packet came in 1970.
NO_STAMP = bytes(TIMESPEC.size)


class Reads:
    """What is known of the reads of one response, but for their bytes."""

    __slots__ = ("stamps", "times_s")

    def __init__(self, reads: Iterable[tuple[float, bytes]] = ()) -> None:
        #: monotonic time just after each read
        self.times_s = array("d")
        #: the stamp of the last packet of each read, one ``timespec`` after the other
        self.stamps = bytearray()
        for t_s, stamp in reads:
            self.add(t_s, stamp)

    def __len__(self) -> int:
        return len(self.times_s)

    def add(self, t_s: float, stamp: bytes) -> None:
        """Note one read; ``stamp`` is a ``timespec`` or NO_STAMP."""
        self.times_s.append(t_s)
        self.stamps += stamp

    def keep_first(self) -> None:
        """Forget all reads but the first."""
        del self.times_s[1:], self.stamps[TIMESPEC.size :]

    def stamps_s(self) -> npt.NDArray[np.float64]:
        """The stamps as wall-clock seconds; NaN where a read has none."""
        pairs = np.frombuffer(self.stamps, dtype=np.dtype("l")).reshape(-1, 2)
        seconds = pairs[:, 0] + pairs[:, 1] * 1e-9
        seconds[(pairs == 0).all(axis=1)] = np.nan
        return seconds
