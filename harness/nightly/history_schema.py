"""The tables of ``history.sqlite`` and how older files are brought up to date.

Schema history
    1   first version
    2   ``runs.note`` (why a run is a new baseline or bad)
    3   ``verdicts.gated`` (whether it could fail the night; NULL where an older kvknee stored it),
        ``runs.marked_at_wall_s`` (when the mark was set)
"""

from __future__ import annotations

import sqlite3

from harness.errors import UsageError

HISTORY_SCHEMA_VERSION = 3
_TABLES = {"runs", "setups", "figures", "verdicts"}

_FIRST = (
    """CREATE TABLE runs (
        run_id TEXT PRIMARY KEY,
        suite TEXT NOT NULL,
        at_wall_s REAL NOT NULL,
        kvknee_version TEXT NOT NULL,
        mark TEXT NOT NULL DEFAULT '' CHECK (mark IN ('', 'baseline', 'bad'))
    ) WITHOUT ROWID""",
    """CREATE TABLE setups (
        run_id TEXT NOT NULL REFERENCES runs ON DELETE CASCADE,
        backend TEXT NOT NULL,
        setup TEXT NOT NULL,
        facts TEXT NOT NULL,
        PRIMARY KEY (run_id, backend)
    ) WITHOUT ROWID""",
    """CREATE TABLE figures (
        run_id TEXT NOT NULL REFERENCES runs ON DELETE CASCADE,
        backend TEXT NOT NULL,
        cell TEXT NOT NULL,
        metric TEXT NOT NULL,
        repeat INTEGER NOT NULL,
        value REAL,
        requests INTEGER,
        PRIMARY KEY (run_id, cell, metric, repeat)
    ) WITHOUT ROWID""",
    """CREATE TABLE verdicts (
        run_id TEXT NOT NULL REFERENCES runs ON DELETE CASCADE,
        cell TEXT NOT NULL,
        metric TEXT NOT NULL,
        verdict TEXT NOT NULL,
        kept_out INTEGER NOT NULL,
        PRIMARY KEY (run_id, cell, metric)
    ) WITHOUT ROWID""",
    "CREATE INDEX figures_by_series ON figures (cell, metric)",
    "CREATE INDEX setups_by_setup ON setups (backend, setup)",
)
_SECOND = ("ALTER TABLE runs ADD COLUMN note TEXT",)
_THIRD = (
    "ALTER TABLE verdicts ADD COLUMN gated INTEGER",
    "ALTER TABLE runs ADD COLUMN marked_at_wall_s REAL",
)
#: The steps from version i to i + 1.
MIGRATIONS: tuple[tuple[str, ...], ...] = (_FIRST, _SECOND, _THIRD)


def refuse_foreign(connection: sqlite3.Connection, name: str) -> None:
    """Raise UsageError for a database of another program; nothing is written to it.

    A history has its tables from the first version on; without any table it is a new file.
    """
    rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    tables = {str(row[0]) for row in rows}
    if tables and _TABLES - tables:
        raise UsageError(f"{name}: a database of another program, no history; name another file")


def migrate(connection: sqlite3.Connection, name: str) -> None:
    """Bring the file to this version in one transaction; raises UsageError for a newer one."""
    if _version(connection) == HISTORY_SCHEMA_VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        # read again: another process may have migrated it meanwhile
        found = _version(connection)
        if found > HISTORY_SCHEMA_VERSION:
            raise UsageError(
                f"{name} is of history schema {found}; this kvknee knows up to "
                f"{HISTORY_SCHEMA_VERSION}: use a newer one"
            )
        for steps in MIGRATIONS[found:]:
            for statement in steps:
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {HISTORY_SCHEMA_VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])
