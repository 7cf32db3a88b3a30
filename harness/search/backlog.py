"""Does more come in than goes out? Told inside a running level of an open loop. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

#: As the report says it (``harness.analysis.open_loop``): the growth is more than this share of
#: what ended, and more than so many standard deviations of as many Poisson arrivals.
GROWTH_SHARE, GROWTH_SIGMAS = 0.10, 3.0
#: It is clear without the server's word where the growth is so many times that much, and the
#: times to first token of the last quarter are so many times those of the first.
CLEARLY, SLOWER = 2.0, 1.5
#: ... and from the third quarter to the last it still grows by this share of its mean growth:
#: one that fills up to what its requests need slows down on the way there.
STEADY_GROWTH = 0.5
_QUARTERS = 4


class Backlog:
    """Requests in flight, and times to first token, over one level."""

    def __init__(self) -> None:
        self._in_flight: list[tuple[float, float]] = []
        self._ttft: list[tuple[float, float]] = []
        self._e2e: list[tuple[float, float]] = []

    def in_flight(self, now_s: float, requests: int) -> None:
        """So many are in flight now."""
        self._in_flight.append((now_s, float(requests)))

    def answered(self, due_s: float, ttft_s: float, e2e_s: float) -> None:
        """A request that was due then got its first token, and its last, so much later."""
        # by when it ended: of a server that is far behind none has that was due of late
        self._ttft.append((due_s + e2e_s, ttft_s))
        self._e2e.append((due_s + e2e_s, e2e_s))

    def rises(self, open_s: float, now_s: float, ended: int) -> bool:
        """Whether both grow, quarter by quarter, by more than chance explains.

        A level that is merely busy has a backlog that comes and goes, and one whose requests
        are long has it grow until the first ones end: its times to first token do not.
        """
        held = _by_quarter(self._in_flight, open_s, now_s)
        if held is None or not _rising(held) or held[-1] - held[0] <= _chance(ended):
            return False
        waits = _by_quarter(self._ttft, open_s, now_s)
        return waits is not None and waits[-1] > waits[0]

    def clear(self, open_s: float, now_s: float, ended: int) -> bool:
        """Whether both grow so much, and so evenly, that nothing else need say so.

        The requests that end in the first quarter must have taken no longer than it lasts.
        Before that a level fills up, and each request is slower than the one before, although
        the server may well keep up once as many are in flight as their time asks for.
        """
        held = _by_quarter(self._in_flight, open_s, now_s)
        waits = _by_quarter(self._ttft, open_s, now_s)
        took = _by_quarter(self._e2e, open_s, now_s, only_first=True)
        if held is None or waits is None or took is None:
            return False
        growth = held[-1] - held[0]
        evenly = _rising(held) and held[-1] - held[-2] >= STEADY_GROWTH * growth / (_QUARTERS - 1)
        slower = _rising(waits) and waits[-1] >= SLOWER * waits[0]
        lasting = took[0] <= (now_s - open_s) / _QUARTERS
        return evenly and slower and lasting and growth > CLEARLY * _chance(ended)


def _chance(ended: int) -> float:
    """The growth that a level may show which keeps up."""
    return max(GROWTH_SHARE * ended, GROWTH_SIGMAS * math.sqrt(ended))


def _rising(values: list[float]) -> bool:
    return all(a < b for a, b in pairwise(values))


def _by_quarter(
    points: Sequence[tuple[float, float]],
    open_s: float,
    now_s: float,
    *,
    only_first: bool = False,
) -> list[float] | None:
    """Mean of each quarter of a stretch of time, or of its first; None when one has no point."""
    edges = [float(edge) for edge in np.linspace(open_s, now_s, _QUARTERS + 1)]
    means = []
    for start, end in list(pairwise(edges))[: 1 if only_first else _QUARTERS]:
        inside = [value for at, value in points if start <= at < end]
        if not inside:
            return None
        means.append(sum(inside) / len(inside))
    return means
