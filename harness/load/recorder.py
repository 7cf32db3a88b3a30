"""Writes records and events as they happen, and counts them.

A journal that cannot be written any more (disk full) does not end the process: the fault
is kept, the run is told to end, and what was written stays readable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from harness.errors import JournalError
from harness.records import RequestRecord, RunEvent, wire_bytes
from harness.rundir import Journal, RunDir


class Recorder:
    """The journals of one run."""

    def __init__(self, run_dir: RunDir) -> None:
        """Open the journals; raises JournalError."""
        self._records = run_dir.records_journal()
        self._events = run_dir.events_journal()
        #: requests by outcome, written or not
        self.outcomes: Counter[str] = Counter()
        #: why a journal was given up; None while all is well
        self.fault: str | None = None

    def record(self, record: RequestRecord) -> None:
        """Keep one request."""
        self.outcomes[record.outcome] += 1
        self._append(self._records, wire_bytes(record))

    def event(self, event: RunEvent) -> None:
        """Keep one event."""
        self._append(self._events, wire_bytes(event))

    def shipped(self, records: bytes, outcomes: Iterable[str], events: bytes) -> None:
        """Keep what another process wrote: whole lines, and the outcomes of the records."""
        self.outcomes.update(outcomes)
        self._append(self._records, records)
        self._append(self._events, events)

    @property
    def sent(self) -> int:
        """All requests: succeeded + failed + cancelled."""
        return self.outcomes.total()

    @property
    def failed(self) -> int:
        """Requests that failed; a cancelled one did not."""
        return self.sent - self.outcomes["ok"] - self.outcomes["cancelled"]

    @property
    def failure_rate(self) -> float | None:
        """Failed of those that succeeded or failed; None when there are none."""
        judged = self.sent - self.outcomes["cancelled"]
        return self.failed / judged if judged else None

    def close(self) -> None:
        """Close the journals."""
        self._records.close()
        self._events.close()

    def _append(self, journal: Journal, lines: bytes) -> None:
        if not lines:
            return
        try:
            journal.append_lines(lines)
        except JournalError as error:
            # after the first failure later lines may fit again; each is worth the try
            self.fault = self.fault or str(error)
