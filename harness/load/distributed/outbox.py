"""A worker's records on their way to the master.

Every line is in a journal of the worker's own before it is shipped. Shipments are numbered
and kept until they are acknowledged, so nothing is lost while both ends live, and the
journal is what remains when the master does not.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import msgspec

from harness.errors import JournalError
from harness.load.distributed.messages import Shipment
from harness.records import RequestRecord, RunEvent, wire_bytes
from harness.rundir import Journal

#: A shipment that is not acknowledged after this long is sent again.
RESEND_AFTER_S = 5.0


class Outbox:
    """What one worker has recorded in one run."""

    def __init__(self, run: str, worker: str) -> None:
        """Make the worker's own journals in a temporary folder; raises JournalError."""
        self.run = run
        try:
            self.folder = Path(tempfile.mkdtemp(prefix=f"kvknee-{run}-{worker}-"))
        except OSError as error:
            raise JournalError(f"no folder for the worker's own journal: {error}") from error
        self._records_journal = Journal(self.folder / "records.jsonl")
        self._events_journal = Journal(self.folder / "events.jsonl")
        self._records: list[bytes] = []
        self._events: list[bytes] = []
        #: number -> shipment and when it was last sent; in order
        self._open: dict[int, tuple[Shipment, float]] = {}
        self._number = 0
        self._closed = False
        #: records written so far
        self.written = 0
        #: why the journal was given up; None while all is well
        self.fault: str | None = None

    @property
    def empty(self) -> bool:
        """Whether the master has all of it, the word that it is all included."""
        return self._closed and not self._open

    def record(self, record: RequestRecord) -> None:
        """Keep one request; its times are the master's."""
        line = wire_bytes(record)
        self._write(self._records_journal, line)
        self._records.append(line)
        self.written += 1

    def event(self, event: RunEvent) -> None:
        """Keep one event; its time is the master's."""
        line = wire_bytes(event)
        self._write(self._events_journal, line)
        self._events.append(line)

    def pack(self, made_s: float, *, last: bool = False) -> None:
        """Make a shipment of what came since the one before; an empty one is a sign of life.

        Nothing is packed after the last one, which may be asked for again.
        """
        if self._closed:
            return
        self._number += 1
        shipment = Shipment(
            run=self.run,
            number=self._number,
            records=b"".join(self._records),
            events=b"".join(self._events),
            made_s=made_s,
            last=last,
            own_s=0.0,
        )
        self._records.clear()
        self._events.clear()
        self._open[self._number] = (shipment, -float("inf"))
        self._closed = last

    def due(self, own_s: float) -> list[Shipment]:
        """Shipments to be sent now, oldest first: new ones and those never acknowledged."""
        due = [
            number for number, (_, sent_s) in self._open.items() if own_s - sent_s >= RESEND_AFTER_S
        ]
        for number in due:
            shipment = msgspec.structs.replace(self._open[number][0], own_s=own_s)
            self._open[number] = (shipment, own_s)
        return [self._open[number][0] for number in due]

    def acknowledged(self, number: int) -> None:
        """The master has written it down; an answer that comes twice changes nothing."""
        self._open.pop(number, None)

    def close(self) -> Path | None:
        """End; the folder is removed when the master has all of it, else it is returned."""
        self._records_journal.close()
        self._events_journal.close()
        if self.empty:
            shutil.rmtree(self.folder, ignore_errors=True)
            return None
        return self.folder

    def _write(self, journal: Journal, line: bytes) -> None:
        try:
            journal.append_lines(line)
        except JournalError as error:
            self.fault = self.fault or str(error)
