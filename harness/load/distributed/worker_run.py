"""One run on a worker: its crew, its journal, and what it tells the master."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import gevent
import msgspec

from harness.live import feed
from harness.live.snapshot import encode as encode_snapshot
from harness.live.worker import LiveWorker
from harness.load.clock import Clock
from harness.load.crew import Crew, Numbering
from harness.load.distributed.clock_map import ClockMap, Offset
from harness.load.distributed.messages import (
    Ack,
    Begin,
    EnterLevel,
    Fault,
    FromWorker,
    Live,
    Obey,
    Prepare,
    Progress,
    StartUsers,
)
from harness.load.distributed.outbox import Outbox
from harness.load.distributed.worker_level import WorkerLevel
from harness.load.preflight import PreparedBackend
from harness.load.self_check import watch_client
from harness.load.stamped_socket import StampKeeper
from harness.records import RequestRecord, RunEvent

logger = logging.getLogger(__name__)

SHIP_INTERVAL_S = 1.0
_PROGRESS_INTERVAL_S = 0.05
#: progress that has not changed is told again as a sign of life
_SIGN_OF_LIFE_S = 1.0
#: A master answers every shipment; one that has not for so long is gone.
_MASTER_LOST_S = 20.0
#: How long the last records wait for their acknowledgement.
_LAST_ACK_S = 15.0
_POLL_S = 0.02


class WorkerRun:
    """From the master's ``Begin`` to the acknowledgement of the last record."""

    def __init__(
        self,
        plan: Prepare,
        begin: Begin,
        backends: Mapping[str, PreparedBackend],
        clock: Clock,
        clock_map: ClockMap,
        send: Callable[[FromWorker], None],
        show: Callable[[RequestRecord], None],
        master_lost: Callable[[], None],
    ) -> None:
        """Raises JournalError. ``master_lost`` is called at most once, from a greenlet."""
        self.run = begin.run
        self.crew = Crew(
            plan.workload,
            backends,
            clock,
            numbering=Numbering(plan.worker, plan.index, plan.of),
            record=self._record,
        )
        self._clock = clock
        self._map = clock_map
        self._offset: Offset = clock_map.offset()
        self._send = send
        self._show = show
        self._master_lost = master_lost
        self._worker = plan.worker
        self._outbox = Outbox(begin.run, plan.worker)
        self._stamps = StampKeeper()
        self._level: WorkerLevel | None = None
        self._answered_s = clock.monotonic()
        self._live: LiveWorker | None = None
        if begin.live:
            wall_offset_s = clock.wall() - self._now()
            self._live = LiveWorker(begin.run, plan.worker, begin.slo, wall_offset_s)
        self._greenlets: list[gevent.Greenlet[..., None]] = [
            gevent.spawn(watch_client, clock, lambda: self.in_flight, self._sampled),
            gevent.spawn(self._report),
            gevent.spawn(self._ship),
            gevent.spawn(self._publish),
        ]

    @property
    def in_flight(self) -> int:
        """Requests being made now."""
        return self._level.in_flight if self._level is not None else 0

    def enter(self, message: EnterLevel) -> None:
        """Let the users gather for a level, or go home."""
        level = None
        if message.cell is not None:
            # one map for a whole level: a better guess must not shift it in the middle
            self._offset = self._map.offset()
            level = WorkerLevel(message.cell, message.number, self._offset, self._count_event)
        self._level = level
        self.crew.enter(level)

    def start(self, message: StartUsers) -> None:
        """Number the users."""
        level = self._level
        if level is None or level.number != message.number:
            return
        if self.crew.present != message.users:
            self._fail(f"has {self.crew.present} users where the level began with {message.users}")
            return
        level.start(message.users, message.first)
        self.crew.start(message.first)

    def obey(self, message: Obey) -> None:
        """A phase of the level has begun."""
        level = self._level
        if level is not None and level.number == message.number:
            level.obey(message.order, self._now())
            self.crew.wake()

    def acknowledged(self, ack: Ack) -> None:
        """The master has a shipment; its answer tells the time, too."""
        now = self._clock.monotonic()
        self._answered_s = now
        self._map.answered(ack.own_s, ack.t_s, now)
        self._outbox.acknowledged(ack.number)

    def finish(self) -> bool:
        """Ship all there is, once the users are gone; False when the master never took it.

        What it did not take is kept, and said where.
        """
        gevent.killall(self._greenlets)
        self.crew.settle()
        self._stamps.close()
        self._publish_once()
        self._outbox.pack(self._now(), last=True)
        give_up_s = self._clock.monotonic() + _LAST_ACK_S
        while not self._outbox.empty and self._clock.monotonic() < give_up_s:
            if self._is_master_lost():
                break
            self._send_due()
            gevent.sleep(_POLL_S)
        folder = self._outbox.close()
        if folder is None:
            return True
        logger.error("the master did not take all records; this worker's own lie in %s", folder)
        return False

    def _now(self) -> float:
        """The master's time."""
        return self._offset.to_master(self._clock.monotonic())

    def _record(self, record: RequestRecord) -> None:
        record = in_masters_time(record, self._offset)
        self._outbox.record(record)
        if self._live is not None:
            self._live.record(record)
        self._show(record)

    def _sampled(self, event: RunEvent) -> None:
        event = msgspec.structs.replace(
            event,
            t_s=self._offset.to_master(event.t_s),
            detail=event.detail | {"worker": self._worker},
        )
        self._outbox.event(event)
        self._count_event(event)

    def _count_event(self, event: RunEvent) -> None:
        if self._live is not None:
            self._live.event(event)

    def _report(self) -> None:
        """Tells how far the level is, until killed."""
        last: Progress | None = None
        while True:
            progress = self._progress()
            if progress is not None and (
                last is None
                or progress.t_s - last.t_s >= _SIGN_OF_LIFE_S
                or msgspec.structs.replace(last, t_s=progress.t_s) != progress
            ):
                self._send(progress)
                last = progress
            gevent.sleep(_PROGRESS_INTERVAL_S)

    def _progress(self) -> Progress | None:
        level = self._level
        if level is None:
            return None
        if not level.in_flight:
            # what is told of a level that has drained must be all of it
            self.crew.settle()
        return Progress(
            run=self.run,
            number=level.number,
            present=self.crew.present,
            parked=self.crew.parked,
            tally=level.tally(),
            records=self._outbox.written,
            t_s=self._now(),
        )

    def _ship(self) -> None:
        """Ships what was recorded, until killed or the master is gone."""
        while True:
            gevent.sleep(SHIP_INTERVAL_S)
            self._outbox.pack(self._now())
            self._send_due()
            if self._outbox.fault is not None:
                self._fail(self._outbox.fault)
            if self._is_master_lost():
                self._master_lost()
                return

    def _send_due(self) -> None:
        for shipment in self._outbox.due(self._clock.monotonic()):
            self._send(shipment)

    def _is_master_lost(self) -> bool:
        return self._clock.monotonic() - self._answered_s > _MASTER_LOST_S

    def _publish(self) -> None:
        """Sends live figures, until killed."""
        while True:
            self._publish_once()
            gevent.sleep(feed.INTERVAL_S)

    def _publish_once(self) -> None:
        if self._live is not None:
            line = encode_snapshot(self._live.snapshot(self.in_flight))
            self._send(Live(run=self.run, line=line))

    def _fail(self, text: str) -> None:
        self._send(Fault(run=self.run, text=text))


def in_masters_time(record: RequestRecord, offset: Offset) -> RequestRecord:
    """The record with its three times shifted; what it measured are differences and stay."""
    if not offset.offset_s:
        return record
    sent_s = record.t_sent_s
    return msgspec.structs.replace(
        record,
        t_intended_s=offset.to_master(record.t_intended_s),
        t_sent_s=None if sent_s is None else offset.to_master(sent_s),
        t_end_s=offset.to_master(record.t_end_s),
    )
