"""``history.sqlite``: what the nights measured, safe under kill -9.

A run is stored in one transaction with all its figures, so it is there whole or not at all; the
file is in WAL mode, where a killed writer leaves nothing that the next reader counts.
"""

from __future__ import annotations

import difflib
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal

import msgspec

from harness.errors import UsageError, printable, shortened
from harness.nightly.figures import StoredFigure
from harness.nightly.gate_types import Verdict
from harness.nightly.history_check import wrong_row
from harness.nightly.history_schema import migrate, refuse_foreign
from harness.nightly.setup import setup_hash
from harness.records import Scalar

Mark = Literal["", "baseline", "bad"]
#: for another program that writes; a night, which took hours, waits so many times as long
_WAIT_S, _NIGHTS_WAITS = 30.0, 20


@dataclass(frozen=True)
class StoredRun:
    """A run: wall-clock start in seconds, its mark with the reason."""

    run_id: str
    suite: str
    at_wall_s: float
    kvknee_version: str
    mark: Mark = ""
    note: str | None = None


@dataclass(frozen=True)
class Said:
    """A stored verdict; ``gated`` is None where an older kvknee stored it."""

    run_id: str
    cell: str
    metric: str
    name: str
    kept_out: bool
    gated: bool | None

    @property
    def alarm(self) -> bool:
        """True when this alone failed the night."""
        return self.gated is True and self.name == "regressed"


class History:
    """An open history; use as a context manager."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._db = connection
        self.path = path
        self._file = _file_of(path)

    @classmethod
    def open(cls, path: Path, *, create: bool = True) -> History:
        """Open or make the file, migrated; raises UsageError when it is none or not there."""
        if not create and not path.is_file():
            raise UsageError(f"{path}: no such history; kvknee nightly makes one, or name it")
        connection: sqlite3.Connection | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            connection = sqlite3.connect(path, timeout=_WAIT_S, isolation_level=None)
            refuse_foreign(connection, str(path))
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            migrate(connection, str(path))
        except (sqlite3.Error, OSError, UsageError) as error:
            if connection is not None:
                connection.close()
            if isinstance(error, UsageError):
                raise
            raise UsageError(
                f"{path}: not a history that can be opened ({_why(error)}); name another file"
            ) from error
        return cls(connection, path)

    @classmethod
    @contextmanager
    def opened(cls, path: Path, *, create: bool = True) -> Iterator[History]:
        """As ``open``; rows of another's hand, and what SQLite finds later, are UsageErrors."""
        with cls.open(path, create=create) as history:
            try:
                wrong = wrong_row(history._db)
                if wrong is not None:
                    raise UsageError(f"{path}: {wrong}; put a copy back, or mend that row")
                yield history
            except (sqlite3.Error, msgspec.MsgspecError) as error:
                busy = getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY
                hint = "where it is damaged, put a copy back, or name another file"
                raise UsageError(
                    f"{path}: the history cannot be used ({error}); "
                    f"{'another program writes to it: try again' if busy else hint}"
                ) from error

    def require_whole(self) -> None:
        """Raise UsageError for a damaged file, before hours are spent on what it cannot take."""
        try:
            found = str(self._db.execute("PRAGMA quick_check(1)").fetchone()[0])
        except sqlite3.Error as error:
            found = str(error)
        if found != "ok":
            raise UsageError(
                f"{self.path}: the history is damaged ({shortened(printable(found), 120)}); "
                "put a copy back, or name another file"
            )

    def __enter__(self) -> History:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def store(
        self,
        run: StoredRun,
        setups: Mapping[str, Mapping[str, Scalar]],
        figures: Sequence[StoredFigure],
        verdicts: Sequence[Verdict] = (),
    ) -> None:
        """Add a run whole or not at all; raises UsageError when it is there already.

        ``setups`` are the facts of each backend (``harness.nightly.setup``). A file that was
        removed or replaced meanwhile is an error, too: what is written to it is lost.
        """
        if _file_of(self.path) != self._file:
            raise UsageError(f"{self.path} was removed or replaced since it was opened")
        try:
            with self._transaction(_NIGHTS_WAITS):
                self._db.execute(
                    "INSERT INTO runs (run_id, suite, at_wall_s, kvknee_version, mark, note)"
                    " VALUES (?, ?, ?, ?, ?, ?)",
                    (run.run_id, run.suite, run.at_wall_s, run.kvknee_version, run.mark, run.note),
                )
                self._db.executemany(
                    "INSERT INTO setups VALUES (?, ?, ?, ?)",
                    [
                        (run.run_id, name, setup_hash(facts), _json(facts))
                        for name, facts in setups.items()
                    ],
                )
                self._db.executemany(
                    "INSERT INTO figures VALUES (?, ?, ?, ?, ?, ?, ?)",
                    [
                        (run.run_id, f.backend, f.cell, f.metric, f.repeat, f.value, f.requests)
                        for f in figures
                    ],
                )
                self._db.executemany(
                    "INSERT INTO verdicts VALUES (?, ?, ?, ?, ?, ?)",
                    [(run.run_id, v.cell, v.metric, v.name, v.kept_out, v.gated) for v in verdicts],
                )
        except sqlite3.IntegrityError as error:
            raise UsageError(
                f"run {run.run_id} cannot be stored in {self.path}: {error}"
            ) from error

    def runs(self) -> tuple[StoredRun, ...]:
        """All runs, oldest first."""
        rows = self._db.execute(
            "SELECT run_id, suite, at_wall_s, kvknee_version, mark, note FROM runs"
            " ORDER BY at_wall_s, run_id"
        )
        return tuple(StoredRun(*row) for row in rows)

    def run(self, run_id: str) -> StoredRun:
        """The run of that name; raises UsageError that names the near ones, or the newest."""
        runs = {item.run_id: item for item in self.runs()}
        if run_id in runs:
            return runs[run_id]
        near = difflib.get_close_matches(run_id, runs, n=3)
        if near:
            hint = f"did you mean {' or '.join(near)}?"
        else:
            hint = f"the newest is {next(reversed(runs))}" if runs else "it holds no run"
        raise UsageError(f"no run '{printable(shortened(run_id))}' in {self.path}; {hint}")

    def setups(self, run_id: str) -> dict[str, dict[str, Scalar]]:
        """The facts of each backend of a run."""
        rows = self._db.execute(
            "SELECT backend, facts FROM setups WHERE run_id = ? ORDER BY backend", (run_id,)
        )
        return {name: msgspec.json.decode(facts) for name, facts in rows}

    def figures(self, run_id: str) -> tuple[StoredFigure, ...]:
        """The figures of a run, by cell, metric and repeat."""
        rows = self._db.execute(
            "SELECT backend, cell, metric, repeat, value, requests FROM figures"
            " WHERE run_id = ? ORDER BY cell, metric, repeat",
            (run_id,),
        )
        return tuple(StoredFigure(*row) for row in rows)

    def verdicts(self, run_id: str) -> dict[tuple[str, str], str]:
        """What the gate said of a run: (cell, metric) -> verdict."""
        rows = self._db.execute(
            "SELECT cell, metric, verdict FROM verdicts WHERE run_id = ?", (run_id,)
        )
        return {(cell, metric): verdict for cell, metric, verdict in rows}

    def said(self, run_id: str | None = None) -> tuple[Said, ...]:
        """What the gate said of a run, or of every run; by run, cell and metric."""
        rows = self._db.execute(
            "SELECT run_id, cell, metric, verdict, kept_out, gated FROM verdicts"
            " WHERE run_id = COALESCE(?, run_id) ORDER BY run_id, cell, metric",
            (run_id,),
        )
        return tuple(
            Said(run, cell, metric, name, bool(kept_out), None if gated is None else bool(gated))
            for run, cell, metric, name, kept_out, gated in rows
        )

    def mark(
        self, run_id: str, mark: Mark, note: str | None, at_wall_s: float | None = None
    ) -> None:
        """Mark a run, now or at those wall-clock seconds; raises UsageError when it is not there.

        A new baseline lets the nights between it and now count, too: they were judged by nights
        that count no more.
        """
        self.run(run_id)
        at_wall_s = time.time() if at_wall_s is None else at_wall_s
        with self._transaction():
            self._db.execute(
                "UPDATE runs SET mark = ?, note = ?, marked_at_wall_s = ? WHERE run_id = ?",
                (mark, note, at_wall_s if mark else None, run_id),
            )

    def rows(self, statement: str, values: Sequence[object] = ()) -> Iterator[tuple[object, ...]]:
        """Rows of a reading statement, for the modules beside this one."""
        yield from self._db.execute(statement, values)

    @contextmanager
    def _transaction(self, waits: int = 1) -> Iterator[None]:
        self._begin(waits)
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def _begin(self, waits: int) -> None:
        # again and again, since SQLite's own wait hears no signal
        for left in reversed(range(waits)):
            try:
                self._db.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if not left or error.sqlite_errorcode != sqlite3.SQLITE_BUSY:
                    raise
            else:
                return


def _why(error: Exception) -> str:
    """The reason without the path, which stands before it."""
    return (isinstance(error, OSError) and error.strerror) or str(error)


def _file_of(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _json(facts: Mapping[str, Scalar]) -> str:
    return msgspec.json.encode(dict(facts), order="sorted").decode()
