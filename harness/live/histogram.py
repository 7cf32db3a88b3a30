"""A histogram that takes many values at once and adds up exactly."""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from harness.live.buckets import NS_PER_US
from harness.live.snapshot import Times


class Histogram:
    """Values in whole nanoseconds, counted by upper edge: a value equal to an edge is in it."""

    def __init__(self, edges_ns: Sequence[int]) -> None:
        """``edges_ns`` rise; one more bucket takes what lies above them."""
        self._edges = edges_ns
        # all edges are whole microseconds
        self._edges_us = np.array(edges_ns, dtype=np.int64) // NS_PER_US
        # one value costs less in a list, many cost less in an array
        self._single = [0] * (len(edges_ns) + 1)
        self._many: NDArray[np.int64] = np.zeros(len(edges_ns) + 1, dtype=np.int64)
        self._sum_ns = 0

    def add(self, value_ns: int) -> None:
        """Count one value."""
        self._single[bisect_left(self._edges, value_ns)] += 1
        self._sum_ns += value_ns

    def add_many_us(self, values_us: Sequence[int]) -> None:
        """Count many values, in whole microseconds, in one pass."""
        values = np.array(values_us, dtype=np.int64)
        places = self._edges_us.searchsorted(values, side="left")
        self._many += np.bincount(places, minlength=self._many.size)
        self._sum_ns += sum(values_us) * NS_PER_US

    def times(self) -> Times:
        """What was counted so far."""
        counts = tuple(map(operator.add, self._single, self._many.tolist()))
        return Times(counts, self._sum_ns)
