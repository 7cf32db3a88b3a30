"""Walks the levels of an open loop: each request goes out when it is due, come what may.

One greenlet, Locust's only user, waits for each arrival and starts a greenlet that makes
the request. Where requests in flight are limited, what is due beyond the limit waits in
order. Nothing is left out: how late a request left stands in its record.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, takewhile
from typing import Any

import gevent
from gevent.event import Event

from harness.load.clock import Clock
from harness.load.exchange import Ask, Ended
from harness.load.itinerary import Itinerary
from harness.load.open_asks import AskMaker
from harness.load.open_clients import ClientMaker, ClientPool, Slot, stream_client
from harness.load.open_level import OpenLevel
from harness.load.preflight import PreparedBackend
from harness.load.reader import AnswerReader
from harness.load.session import WORKER
from harness.plan.arrivals import Arrival, OpenLevels, Share
from harness.plan.levels import LevelPolicy
from harness.records import CellKey, RequestRecord, RunEvent
from harness.workload import Workload

#: How late a timer of the loop may be.
_TIMER_ERROR_S = 0.002


@dataclass(frozen=True)
class _Made:
    """Where a request came from that has ended and is not read yet."""

    level: OpenLevel
    slot: Slot


def wait_for(event: Event, seconds: float | None) -> None:
    """Until the event is set, or so many seconds at most, perhaps a little less.

    The loop's timers are late by a millisecond or two. So they end that much early, and
    the rest is slept with the loop standing still: that delays no request, since there is
    one that sends them, and arrival times come from the kernel.
    """
    if seconds is None:
        event.wait()
    elif seconds > _TIMER_ERROR_S:
        event.wait(seconds - _TIMER_ERROR_S)
    else:
        time.sleep(seconds)


class OpenWalk:
    """The walk through the levels of one run; Locust gives it one user."""

    def __init__(
        self,
        policy: LevelPolicy,
        workload: Workload,
        backends: Mapping[str, PreparedBackend],
        clock: Clock,
        *,
        emit: Callable[[RunEvent], None],
        record: Callable[[RequestRecord], None],
        share: Share | None = None,
        worker: str = WORKER,
        make_client: ClientMaker = stream_client,
        wait: Callable[[Event, float | None], None] = wait_for,
    ) -> None:
        """``policy`` is an OpenLevels; ``share`` the part of it that this worker makes.

        Raises TypeError for another policy.
        """
        if not isinstance(policy, OpenLevels):
            raise TypeError("an open loop needs the schedules of OpenLevels")
        self._policy = policy
        self._clock = clock
        self._emit = emit
        self._record = record
        self._share = share or Share()
        self._wait = wait
        limit = workload.open_loop.max_concurrency if workload.open_loop is not None else None
        self._most = None if limit is None else self._share.part_of(limit)
        self._asks = AskMaker(policy, workload, backends, worker)
        self._clients = ClientPool(backends, clock, make_client)
        self._levels = self._make_levels(policy)(workload, backends, clock, emit)
        self._requests: set[gevent.Greenlet[..., None]] = set()
        self._reader: AnswerReader[_Made] = AnswerReader(self._judged, clock)
        #: the next one to send, and those behind it
        self._next: Arrival | None = None
        self._arrivals: Iterator[Arrival] = iter(())
        #: a request has ended, or the walk has
        self._wake = Event()
        self._closed = False
        self.level: OpenLevel | None = None
        self._next_level()

    @property
    def finished(self) -> bool:
        """Whether there is nothing more to do."""
        return self.level is None

    @property
    def wanted_users(self) -> int | None:
        """One, as long as there is a level."""
        return None if self.level is None else 1

    @property
    def in_flight(self) -> int:
        """Requests being made now."""
        return self.level.in_flight if self.level is not None else 0

    @property
    def waits_for_users(self) -> bool:
        """Whether the user has not come yet."""
        return self.level is not None and not self.level.started

    @property
    def awaited(self) -> set[str]:
        """Backends that are idle now and have levels to come."""
        return set() if self.level is None else self._levels.awaited(self.level.cell)

    def join(self) -> None:
        """The user has come."""

    def leave(self, member: Any) -> None:
        """The user is gone."""
        self._cancel()
        self._clients.close()

    def request(self, member: Any) -> bool:
        """Make one level's requests; False when there is no other level.

        A greenlet killed here cancels the requests in flight and passes the kill on.
        """
        level = self.level
        if level is None or self._closed:
            return False
        try:
            self._run(level)
        except BaseException:
            self._cancel()
            raise
        return self.level is not None and not self._closed

    def settle(self) -> None:
        """Read and record all requests that have ended."""
        self._reader.drain()

    def tick(self) -> None:
        """Time passed; called some times a second."""
        if self.level is not None:
            self.level.tick(self._clock.monotonic())

    def abort(self, reason: str) -> None:
        """End the walk now: this level ends with the reason, the others are skipped."""
        self.close()
        self._cancel()
        self.settle()
        level, self.level = self.level, None
        if level is None:
            return
        now_s = self._clock.monotonic()
        level.abort(reason, now_s, self._unsent(level, now_s))
        self._levels.cut_short(level.summary(), begun=level.started)
        self._levels.skip_rest(reason)

    def give_up(self, backend: str, reason: str) -> None:
        """A backend is gone: the walk ends."""
        self._levels.give_up(backend, reason)
        self.abort(reason)

    def close(self) -> None:
        """Nothing more is sent."""
        self._closed = True
        self._wake.set()

    def _run(self, level: OpenLevel) -> None:
        """All requests of a level, from its start until the last one has ended."""
        level.start(self._clock.monotonic())
        arrivals = self._arrivals = level.schedule.shared_by(self._share)
        self._next = next(arrivals, None)
        while self._next is not None and level.wants(self._next):
            # made before it is due: a long prompt takes milliseconds
            ask = self._asks.ask(level.cell, level.start_s, self._next)
            if not self._await_turn(level, self._next, ask.t_intended_s):
                break
            arrival, self._next = self._next, next(arrivals, None)
            self._send(level, arrival, ask)
        self._await_end(level)
        if self._closed:
            return
        self.settle()
        level.finish(self._clock.monotonic())
        self._levels.completed(level.summary())
        self._next_level()

    def _await_turn(self, level: OpenLevel, arrival: Arrival, due_s: float) -> bool:
        """Wait until it is due and may be sent; False when it is not wanted any more."""
        while not self._closed and level.wants(arrival):
            left_s = due_s - self._clock.monotonic()
            full = self._most is not None and level.in_flight >= self._most
            if left_s <= 0 and not full:
                return True
            self._wake.clear()
            self._wait(self._wake, left_s if left_s > 0 else None)
        return False

    def _await_end(self, level: OpenLevel) -> None:
        """Until nothing is in flight and the window is over."""
        while not self._closed or level.in_flight:
            left_s = level.start_s + level.schedule.close_s - self._clock.monotonic()
            if left_s <= 0 and not level.in_flight:
                return
            self._wake.clear()
            self._wait(self._wake, left_s if left_s > 0 and not self._closed else None)

    def _send(self, level: OpenLevel, arrival: Arrival, ask: Ask) -> None:
        """Start the request, and let it get out before anything else is done."""
        level.begun(ask.seq, arrival)
        slot = self._clients.take(level.cell.backend)
        greenlet = gevent.spawn(self._make, level, slot, replace(ask, user=slot.number))
        self._requests.add(greenlet)
        greenlet.link(self._requests.discard)
        gevent.sleep(0)

    def _make(self, level: OpenLevel, slot: Slot, ask: Ask) -> None:
        """One request; the body of a greenlet."""

        def ended(over: Ended) -> None:
            # later: reading takes a millisecond in which others are due
            self._reader.put(_Made(level, slot), over)
            level.ended(ask.seq)
            self._wake.set()

        slot.client.request(ask, ended)
        self._clients.give_back(level.cell.backend, slot)

    def _judged(self, made: _Made, record: RequestRecord) -> None:
        """An answer was read."""
        made.slot.client.judge(record)
        made.level.judged(record.outcome)
        self._record(record)

    def _cancel(self) -> None:
        """End what is in flight; each request leaves its record."""
        gevent.killall(list(self._requests))

    def _unsent(self, level: OpenLevel, now_s: float) -> int:
        """Requests of the window that are due and have not been sent: they waited in vain."""
        if not level.started:
            return 0
        waiting = chain([self._next] if self._next is not None else [], self._arrivals)
        due = takewhile(lambda arrival: arrival.at_s <= now_s - level.start_s, waiting)
        inside = takewhile(lambda arrival: arrival.at_s <= level.schedule.close_s, due)
        return sum(level.schedule.counts(arrival) for arrival in inside)

    def _make_levels(self, policy: LevelPolicy) -> Callable[..., Itinerary]:
        """What makes the list of levels, from the other arguments of ``Itinerary``."""
        return partial(Itinerary, policy)

    def _make_level(self, cell: CellKey) -> OpenLevel:
        """The next level, before it begins."""
        return OpenLevel(cell, self._policy.schedule(cell), self._emit)

    def _next_level(self) -> None:
        cell = self._levels.next_cell()
        self.level = None
        if cell is not None:
            self.level = self._make_level(cell)
