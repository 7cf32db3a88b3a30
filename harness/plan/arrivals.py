"""When the requests of an open loop are due: a schedule fixed before the run. Pure.

Arrivals form a renewal process whose gaps follow a gamma distribution with the shape
``burstiness`` and a mean of 1/rate, as in vLLM's benchmark: 1 is a Poisson process, less
is burstier, more is steadier, and None (``inf``) is one request every 1/rate seconds.

A rate that changes over time is met by stretching time (the time-rescaling theorem): the
gaps are drawn for a rate of 1, summed up, and mapped through the inverse of the requests
that the ramp has asked for up to each moment. So a ramp has no steps, and the same seed
gives the same bursts at any rate.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import NamedTuple

from harness.plan.levels import FixedLevels
from harness.plan.replay import Replay
from harness.plan.traces import TraceRow
from harness.records import CellKey
from harness.workload import Ramp, Workload

#: A window that cannot be closed by its number of requests stops looking here.
_MOST_ARRIVALS = 10_000_000


class Arrival(NamedTuple):
    """One request of a schedule."""

    #: 0 for the first of its level
    number: int
    #: seconds from the level's start
    at_s: float
    #: lengths and shared blocks where a trace states them; None: those of the workload
    row: TraceRow | None = None


@dataclass(frozen=True)
class Share:
    """Which arrivals one of several workers makes: those with index % of == worker."""

    worker: int = 0
    of: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.worker < self.of:
            raise ValueError(f"worker {self.worker} of {self.of}")

    def takes(self, index: int) -> bool:
        """Whether this worker makes that arrival."""
        return index % self.of == self.worker

    def part_of(self, limit: int) -> int:
        """This worker's part of a limit that all share, 1 at least."""
        return max(1, limit // self.of + (self.worker < limit % self.of))


class Schedule(ABC):
    """One level: its arrivals in order, and which of them count.

    Counted are those due in [``open_s``, ``close_s``], seconds from the level's start.
    Arrivals go on behind ``close_s`` where the schedule has more, so that the load stays
    as it is until the last counted request has ended.
    """

    open_s: float
    close_s: float
    #: ``complete``, or ``time_limit`` where the time was too short for the requests
    reason: str

    @abstractmethod
    def arrivals(self) -> Iterator[Arrival]:
        """All of them, in order of time; the same at every call."""

    def counts(self, arrival: Arrival) -> bool:
        """Whether it is due in the window."""
        return self.open_s <= arrival.at_s <= self.close_s

    def until(self, close_s: float, reason: str) -> Schedule:
        """The same arrivals with a window that closes then, and why."""
        cut = copy(self)
        cut.close_s, cut.reason = close_s, reason
        return cut

    def shared_by(self, share: Share) -> Iterator[Arrival]:
        """One worker's arrivals; all workers' together are ``arrivals()``, each once."""
        return (arrival for arrival in self.arrivals() if share.takes(arrival.number))


class RateSchedule(Schedule):
    """Arrivals at a rate, or along a ramp; endless.

    The window opens after the warm-up and closes at the last of ``min_requests`` arrivals
    due in it, but not before ``min_s``, and at ``max_s`` after the level's start at most. A
    ramp is the level itself: its window closes when the ramp is over.
    """

    def __init__(
        self,
        rate_rps: float,
        burstiness: float | None,
        seed: str,
        *,
        warmup_s: float,
        min_requests: int,
        min_s: float,
        max_s: float,
        ramp: Ramp | None = None,
    ) -> None:
        self._rate_rps = rate_rps
        self._burstiness = burstiness
        self._seed = seed
        self._ramp = ramp
        self.open_s = warmup_s
        self.reason = "complete"
        if ramp is not None:
            self.close_s = ramp.seconds
            return
        self.close_s = self._close_s(min_requests, min_s, max_s)

    def arrivals(self) -> Iterator[Arrival]:
        """Endless, in order of time."""
        total = 0.0
        for number, gap in enumerate(unit_gaps(self._burstiness, self._seed)):
            total += gap
            yield Arrival(number, self._when_s(total))

    def _when_s(self, requests: float) -> float:
        if self._ramp is not None:
            return ramp_time_s(self._ramp, requests)
        return requests / self._rate_rps

    def _close_s(self, min_requests: int, min_s: float, max_s: float) -> float:
        counted = 0
        for arrival in self.arrivals():
            if arrival.at_s > max_s or arrival.number > _MOST_ARRIVALS:
                self.reason = "time_limit"
                return max(max_s, self.open_s)
            counted += arrival.at_s >= self.open_s
            if counted == min_requests:
                return min(max(arrival.at_s, self.open_s + min_s), max_s)
        raise AssertionError("a schedule without an end ended")


class ListSchedule(Schedule):
    """The arrivals of a trace; all that are due from ``warmup_s`` on count."""

    def __init__(self, rows: tuple[TraceRow, ...], *, warmup_s: float, length_s: float) -> None:
        """``length_s``: of the part of the trace that is replayed."""
        self._rows = rows
        self.open_s = warmup_s
        self.close_s = max(length_s, rows[-1].at_s)
        self.reason = "complete"

    def arrivals(self) -> Iterator[Arrival]:
        """One per row."""
        for number, row in enumerate(self._rows):
            yield Arrival(number, row.at_s, row)


class OpenLevels(FixedLevels):
    """The levels of an open loop, in order, each with its schedule."""

    def __init__(
        self, cells: Sequence[CellKey], workload: Workload, replay: Replay | None = None
    ) -> None:
        """``replay`` holds the requests where a trace is replayed; else rates are asked for."""
        super().__init__(cells)
        self.replay = replay
        self._workload = workload

    def schedule(self, cell: CellKey) -> Schedule:
        """The arrivals of one level."""
        if self.replay is None:
            return rate_schedule(cell, self._workload)
        asked = self._workload.open_loop
        return ListSchedule(
            self.replay.rows,
            warmup_s=asked.warmup_s if asked is not None else 0.0,
            length_s=self.replay.length_s,
        )


def rate_schedule(cell: CellKey, workload: Workload) -> RateSchedule:
    """The schedule of one rate; the same for every backend, another for every repeat.

    Raises ValueError for a workload of another kind.
    """
    asked = workload.open_loop
    if asked is None:
        raise ValueError("the workload is no open loop")
    wanted = dict(zip(workload.levels, workload.min_requests, strict=True))
    return RateSchedule(
        cell.level,
        asked.burstiness,
        f"{workload.seed}/{cell.level!r}/{cell.repeat}",
        warmup_s=asked.warmup_s,
        min_requests=wanted.get(cell.level, workload.min_requests[-1]),
        min_s=workload.min_level_s,
        max_s=workload.max_level_s,
        ramp=asked.ramp,
    )


def unit_gaps(burstiness: float | None, seed: str) -> Iterator[float]:
    """Gaps with a mean of 1: gamma of shape ``burstiness``, scale 1/shape; None: all 1."""
    draw = random.Random(seed)  # noqa: S311 - not for secrets
    while True:
        yield 1.0 if burstiness is None else draw.gammavariate(burstiness, 1.0 / burstiness)


def ramp_time_s(ramp: Ramp, requests: float) -> float:
    """When a ramp has asked for so many requests; behind its end its last rate stays.

    linear       rate(t) = a + (b - a) t / T, so requests(t) = a t + (b - a) t^2 / (2 T)
    exponential  rate(t) = a (b / a)^(t / T), so requests(t) = a T / ln(b / a) ((b/a)^(t/T) - 1)
    """
    first, last, seconds = ramp.start_rps, ramp.end_rps, ramp.seconds
    whole = ramp_requests(ramp)
    if requests >= whole:
        return seconds + (requests - whole) / last
    if first == last:
        return requests / first
    if ramp.strategy == "exponential":
        growth = math.log(last / first)
        return seconds / growth * math.log1p(requests * growth / (first * seconds))
    slope = (last - first) / seconds
    # the root that needs no difference of nearly equal numbers
    return 2.0 * requests / (first + math.sqrt(max(0.0, first * first + 2.0 * slope * requests)))


def ramp_requests(ramp: Ramp) -> float:
    """Requests that a whole ramp asks for."""
    first, last = ramp.start_rps, ramp.end_rps
    if ramp.strategy == "linear" or first == last:
        return (first + last) / 2.0 * ramp.seconds
    return (last - first) / math.log(last / first) * ramp.seconds
