"""An open loop in virtual time: its greenlets run for real, its clock and servers do not.

Time moves only when every greenlet waits, and then to the next moment that one waits for.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

import gevent
from gevent.event import Event

from harness.load.exchange import Ask, Ended, Exchange
from harness.load.open_walk import OpenWalk
from harness.load.preflight import PreparedBackend
from harness.load.reads import NO_STAMP
from harness.load.timeline import Failure
from harness.plan.arrivals import OpenLevels
from harness.records import CellKey, RequestRecord, RunEvent
from harness.workload import Workload
from tests.support.scripted_server import DONE, sse, text_chunk


class VirtualTime:
    """A clock, and a wait that the clock knows of."""

    def __init__(self, start_s: float = 0.0) -> None:
        self.now_s = start_s
        self._waiting: list[tuple[float, int, Event]] = []
        self._order = count()

    def monotonic(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return self.now_s

    def wait(self, event: Event, seconds: float | None) -> None:
        """Until the event is set; it is when so many seconds have passed."""
        if seconds is not None:
            heapq.heappush(self._waiting, (self.now_s + seconds, next(self._order), event))
        event.wait()

    def sleep(self, seconds: float) -> None:
        self.wait(Event(), seconds)

    def run(self, until: gevent.Greenlet[[], None]) -> None:
        """Let time pass until a greenlet is over."""
        while True:
            gevent.idle()
            if until.ready():
                return
            due_s, _, event = heapq.heappop(self._waiting)
            self.now_s = max(self.now_s, due_s)
            event.set()


class TimedClient:
    """Answers one token after ``service_s(seq)`` seconds, by a real client's record."""

    def __init__(self, time: VirtualTime, service_s: Callable[[int], float]) -> None:
        self._time = time
        self._service_s = service_s

    def request(
        self,
        ask: Ask,
        on_ended: Callable[[Ended], None],
        on_sent: Callable[[float], None] | None = None,
    ) -> Ended:
        exchange = Exchange(t_sent_s=self._time.now_s)
        try:
            self._time.sleep(self._service_s(ask.seq))
        except BaseException:
            exchange.failure = Failure("cancelled", "the run ended first")
            on_ended(Ended(ask, exchange, self._time.now_s, exact=True, secret=None))
            raise
        usage = {"prompt_tokens": ask.prompt_tokens, "completion_tokens": 1}
        body = text_chunk("x", usage=usage, finish_reason="length") + sse({"choices": []}) + DONE
        head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {len(body)}"
        take = exchange.taker()
        take(self._time.now_s, NO_STAMP, head.encode() + b"\r\n\r\n" + body)
        over = Ended(ask, exchange, self._time.now_s, exact=True, secret=None)
        on_ended(over)
        return over

    def judge(self, record: RequestRecord) -> None:
        assert record.outcome in ("ok", "cancelled"), record.error

    def close(self) -> None:
        pass


class TimedWalk:
    """A walk in virtual time, and what it wrote."""

    def __init__(
        self,
        cells: list[CellKey],
        workload: Workload,
        backend: PreparedBackend,
        service_s: Callable[[int], float],
    ) -> None:
        self.time = VirtualTime()
        self.events: list[RunEvent] = []
        self.records: list[RequestRecord] = []
        self.walk = OpenWalk(
            OpenLevels(cells, workload),
            workload,
            {backend.info.name: backend},
            self.time,
            emit=self.events.append,
            record=self.records.append,
            make_client=lambda *_: TimedClient(self.time, service_s),
            wait=self.time.wait,
        )
        self.user = gevent.spawn(self._user)

    def _user(self) -> None:
        self.walk.join()
        while self.walk.request(None):
            pass
        self.walk.leave(None)

    def follow(self) -> None:
        """To the end."""
        self.time.run(self.user)
        self.user.get()
