"""Whether a history holds what kvknee writes: SQLite keeps whatever else somebody put there."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import msgspec

from harness.errors import printable, shortened
from harness.records import Scalar

_TEXTS = {
    "runs": ("run_id", "suite", "kvknee_version"),
    "setups": ("backend", "setup"),
    "figures": ("backend", "cell", "metric"),
    "verdicts": ("cell", "metric", "verdict"),
}
#: what is wrong, and the rows that are: (run, what stands there)
_WRONG = (
    (
        "its time is no time in seconds",
        "SELECT run_id, at_wall_s FROM runs WHERE typeof(at_wall_s) NOT IN ('real', 'integer')"
        # the end of the year 9999 is the last moment that a date can show
        " OR at_wall_s NOT BETWEEN 0 AND 253402300799",
    ),
    (
        "a figure is no finite number, 0 or more",
        "SELECT run_id, value FROM figures WHERE typeof(value) NOT IN ('real', 'integer', 'null')"
        " OR value NOT BETWEEN 0 AND 1.7e308",
    ),
    (
        "a number of requests is no whole number",
        "SELECT run_id, requests FROM figures WHERE typeof(requests) NOT IN ('integer', 'null')",
    ),
    (
        "a repeat is no whole number",
        "SELECT run_id, repeat FROM figures WHERE typeof(repeat) <> 'integer'",
    ),
)


def wrong_row(database: sqlite3.Connection) -> str | None:
    """The first row that cannot be read as kvknee wrote it, in words; None when all can."""
    for what, query in (*_WRONG, *_no_texts()):
        row = database.execute(query + " LIMIT 1").fetchone()
        if row is not None:
            return f"{_shown(row[0])}: {what}: {_shown(row[1])}"
    for run_id, facts in database.execute("SELECT run_id, facts FROM setups"):
        try:
            msgspec.json.decode(facts, type=dict[str, Scalar])
        except (msgspec.MsgspecError, TypeError) as error:
            return f"{_shown(run_id)}: the facts of a setup cannot be read: {error}"
    return None


def _no_texts() -> Iterator[tuple[str, str]]:
    for table, columns in _TEXTS.items():
        for name in columns:
            # names of this file, no input
            query = f"SELECT run_id, {name} FROM {table} WHERE typeof({name}) <> 'text'"  # noqa: S608
            yield f"its {name} is no text", query


def _shown(value: object) -> str:
    return printable(shortened(str(value)))
