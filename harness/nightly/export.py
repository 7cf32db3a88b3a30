"""Every figure of every run for other programs: CSV, or Parquet with the extra ``parquet``."""

from __future__ import annotations

import csv
import importlib
import io
from pathlib import Path
from typing import Any

from harness.errors import UsageError
from harness.nightly.history import History

#: a column's name and its type in Parquet
COLUMNS = (
    *(("run_id", "string"), ("suite", "string"), ("at_wall_s", "float64"), ("mark", "string")),
    *(("note", "string"), ("backend", "string"), ("setup", "string"), ("cell", "string")),
    *(("metric", "string"), ("repeat", "int64"), ("value", "float64"), ("requests", "int64")),
)
_ROWS = """SELECT r.run_id, r.suite, r.at_wall_s, r.mark, r.note, f.backend, s.setup,
    f.cell, f.metric, f.repeat, f.value, f.requests
    FROM figures f JOIN runs r USING (run_id)
    LEFT JOIN setups s ON s.run_id = f.run_id AND s.backend = f.backend
    ORDER BY r.at_wall_s, r.run_id, f.cell, f.metric, f.repeat"""


def export_csv(history: History) -> str:
    """A line for each figure and repeat, in seconds, bytes and tokens; absent is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(name for name, _ in COLUMNS)
    writer.writerows(history.rows(_ROWS))
    return text.getvalue()


def export_parquet(history: History, path: Path) -> None:
    """The same rows as a Parquet file; absent is null.

    Raises UsageError where pyarrow is not installed, OSError for a file that cannot be written.
    """
    arrow = _arrow("pyarrow")
    parquet = _arrow("pyarrow.parquet")
    rows = tuple(history.rows(_ROWS))
    schema = arrow.schema([(name, getattr(arrow, kind)()) for name, kind in COLUMNS])
    columns = [
        arrow.array([row[place] for row in rows], schema.field(place).type)
        for place in range(len(COLUMNS))
    ]
    parquet.write_table(arrow.Table.from_arrays(columns, schema=schema), str(path))


def _arrow(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(
            "--format parquet needs pyarrow: pip install 'kvknee[parquet]', or use --format csv"
        ) from error
