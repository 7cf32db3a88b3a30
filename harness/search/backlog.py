"""Does more come in than goes out? Told inside a running level of an open loop. Pure."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

#: As the report says it (``harness.analysis.open_loop``): the growth is more than this share of
#: what ended, and more than so many standard deviations of as many Poisson arrivals.
GROWTH_SHARE, GROWTH_SIGMAS = 0.10, 3.0
_QUARTERS = 4


class Backlog:
    """Requests in flight, and times to first token, over one level."""

    def __init__(self) -> None:
        self._in_flight: list[tuple[float, int]] = []
        self._ttft: list[tuple[float, float]] = []

    def in_flight(self, now_s: float, requests: int) -> None:
        """So many are in flight now."""
        self._in_flight.append((now_s, requests))

    def answered(self, due_s: float, ttft_s: float) -> None:
        """A request that was due then got its first token so much later."""
        self._ttft.append((due_s, ttft_s))

    def rises(self, open_s: float, now_s: float, ended: int) -> bool:
        """Whether both grow, quarter by quarter, by more than chance explains.

        A level that is merely busy has a backlog that comes and goes, and one whose requests
        are long has it grow until the first ones end: its times to first token do not.
        """
        held = _by_quarter(self._in_flight, open_s, now_s)
        waits = _by_quarter(self._ttft, open_s, now_s)
        if held is None or waits is None:
            return False
        growth = held[-1] - held[0]
        least = max(GROWTH_SHARE * ended, GROWTH_SIGMAS * math.sqrt(ended))
        return _rising(held) and waits[-1] > waits[0] and growth > least


def _rising(values: list[float]) -> bool:
    return all(a < b for a, b in pairwise(values))


def _by_quarter(
    points: list[tuple[float, int]] | list[tuple[float, float]], open_s: float, now_s: float
) -> list[float] | None:
    """Mean of each quarter of a stretch of time; None when one has no point."""
    edges = [float(edge) for edge in np.linspace(open_s, now_s, _QUARTERS + 1)]
    means = []
    for start, end in pairwise(edges):
        inside = [value for at, value in points if start <= at < end]
        if not inside:
            return None
        means.append(sum(inside) / len(inside))
    return means
