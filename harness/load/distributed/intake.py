"""Merges what the workers ship: each record once, whatever comes twice or out of order. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from harness.load.distributed.messages import Shipment
from harness.records import Outcome


class Shipped(msgspec.Struct, frozen=True):
    """The part of a record that merging needs; the line itself is kept as it came."""

    worker: str
    seq: int
    outcome: Outcome


@dataclass(frozen=True)
class Taken:
    """What was new in a shipment."""

    #: lines of ``records.jsonl``, and the outcome of each
    records: bytes = b""
    outcomes: tuple[Outcome, ...] = ()
    #: lines of ``events.jsonl``
    events: bytes = b""


@dataclass
class Seen:
    """Numbers from 1 that were seen, in any order; small as long as few are missing."""

    #: all up to this one were
    upto: int = 0
    _beyond: set[int] = field(default_factory=set)

    def add(self, number: int) -> bool:
        """Note a number; False when it was seen before."""
        if number <= self.upto or number in self._beyond:
            return False
        self._beyond.add(number)
        while self.upto + 1 in self._beyond:
            self.upto += 1
            self._beyond.discard(self.upto)
        return True

    @property
    def highest(self) -> int:
        """The largest; 0 when there is none."""
        return max(self._beyond, default=self.upto)


class Intake:
    """What one worker has shipped in one run."""

    def __init__(self, worker: str) -> None:
        self._worker = worker
        self._shipments = Seen()
        self._seqs = Seen()
        self._last_number: int | None = None
        #: records taken
        self.records = 0
        #: lines that were no record of this worker
        self.damaged = 0
        #: when the newest shipment was made; None before the first
        self.made_s: float | None = None

    @property
    def complete(self) -> bool:
        """Whether the worker's last shipment is here, and every one before it."""
        return self._last_number is not None and self._shipments.upto >= self._last_number

    @property
    def last_seq(self) -> int:
        """The highest number of a record that was taken."""
        return self._seqs.highest

    def take(self, shipment: Shipment) -> Taken:
        """What of it is new; nothing when it was here before."""
        if not self._shipments.add(shipment.number):
            return Taken()
        if shipment.last:
            self._last_number = shipment.number
        self.made_s = max(shipment.made_s, self.made_s or shipment.made_s)
        kept: list[bytes] = []
        outcomes: list[Outcome] = []
        for line in shipment.records.splitlines(keepends=True):
            record = self._decoded(line)
            if record is not None and self._seqs.add(record.seq):
                kept.append(line)
                outcomes.append(record.outcome)
        self.records += len(kept)
        return Taken(b"".join(kept), tuple(outcomes), shipment.events)

    def _decoded(self, line: bytes) -> Shipped | None:
        try:
            record = _SHIPPED.decode(line)
        except msgspec.MsgspecError:
            record = None
        if record is None or record.worker != self._worker or not line.endswith(b"\n"):
            self.damaged += 1
            return None
        return record


_SHIPPED = msgspec.json.Decoder(Shipped)
