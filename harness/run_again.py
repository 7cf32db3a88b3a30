"""Makes a run directory ready to be written on: held by one process, without torn ends."""

from __future__ import annotations

import fcntl
import math
import os
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path

from harness.errors import JournalError, UsageError
from harness.journal_bytes import whole_lines_bytes, whole_members_bytes
from harness.records import CellKey
from harness.rundir import RunDir


class RunHold:
    """Keeps other processes from writing to a run directory; the system frees a dead one's."""

    def __init__(self, run: RunDir) -> None:
        """Raises UsageError while another process holds it, JournalError for a bad disk."""
        path = run.path / "events.jsonl"
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise JournalError(f"{path}: {error.strerror}") from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise UsageError(
                f"--resume: another process is still measuring in {run.path}; wait for its end, "
                "or end it with Ctrl-C"
            ) from error
        except OSError:
            # a file system without locks: nothing is held, which is no reason not to measure
            return

    def close(self) -> None:
        """Let it go; a second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def earlier_outcomes(run: RunDir, cells: Collection[CellKey]) -> Counter[str]:
    """How the requests of some cells ended, without those of a cell from before it began anew."""
    since_s = {event.cell: event.t_s for event in run.events() if event.kind == "level_redone"}
    return Counter(
        record.outcome
        for record in run.records()
        if record.cell in cells and record.t_intended_s >= since_s.get(record.cell, -math.inf)
    )


def cut_torn_ends(run: RunDir) -> None:
    """Cut what a crash left half-written off all journals; raises JournalError.

    What is appended next would else be joined to it, and be lost with it. A last line that
    lacks its newline alone counts for every reader, so it gets the newline.
    """
    for name in ("records.jsonl", "events.jsonl"):
        _cut(run.path / name, whole_lines_bytes, end=b"\n")
    for path in sorted((run.path / "scrapes").glob("*.jsonl.gz")):
        _cut(path, whole_members_bytes)


def _cut(path: Path, whole_bytes: Callable[[bytes], int], end: bytes = b"") -> None:
    if not path.is_file():
        return
    try:
        data = path.read_bytes()
        whole = whole_bytes(data)
        if whole < len(data):
            os.truncate(path, whole)
        if not data[:whole].endswith(end) and whole:
            with path.open("ab") as file:
                file.write(end)
    except OSError as error:
        raise JournalError(f"{path}: {error.strerror}") from error
