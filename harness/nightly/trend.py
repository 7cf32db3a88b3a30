"""What a stored history tells of each series: its nights, what the gate can see, since when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.errors import UsageError
from harness.nightly.baseline import tonight_series
from harness.nightly.gate_types import GateLimits, Reading, Series
from harness.nightly.history import History, StoredRun
from harness.nightly.metrics import METRICS
from harness.nightly.setup import setup_hash
from harness.nightly.sight import ChangePoint, Sight, change_point, visible_regression

#: all nights of a suite and setup, whatever was said of them
_NIGHTS = """SELECT r.run_id, r.at_wall_s, r.mark, f.cell, f.metric, f.value, f.requests, v.verdict
    FROM figures f JOIN runs r USING (run_id)
    JOIN setups s ON s.run_id = f.run_id AND s.backend = f.backend
    LEFT JOIN verdicts v ON v.run_id = f.run_id AND v.cell = f.cell AND v.metric = f.metric
    WHERE r.suite = ? AND f.backend = ? AND s.setup = ? AND f.value IS NOT NULL
    ORDER BY r.at_wall_s, r.run_id, f.cell, f.metric, f.repeat"""


@dataclass(frozen=True)
class TrendNight:
    """A night of one series: wall-clock start in seconds, its mark, and what was said of it."""

    reading: Reading
    at_wall_s: float
    mark: str
    verdict: str | None


@dataclass(frozen=True)
class Trend:
    """One cell and metric over all nights of the newest setup, oldest first.

    ``series.baseline`` holds those that the next night will be compared with.
    """

    series: Series
    nights: tuple[TrendNight, ...]
    sight: Sight
    since: ChangePoint | None


def trends(
    history: History, suite: str | None = None, limits: GateLimits | None = None
) -> tuple[Trend, ...]:
    """Every series of the newest good run (of ``suite``), by cell and metric.

    ``limits`` default to the gate's own. A change is dated among the nights since the newest
    that was marked as a baseline; those that were called regressed count there, bad ones do not.
    Raises UsageError for a history without such a run.
    """
    limits = limits or GateLimits()
    run = _newest(history, suite)
    setups = history.setups(run.run_id)
    # a newer kvknee may have stored metrics that this one does not know
    figures = [item for item in history.figures(run.run_id) if item.metric in METRICS]
    said = [item for item in history.said(run.run_id) if item.metric in METRICS]
    gated = {(item.cell, item.metric) for item in said if item.gated}
    # as the next night would see it
    coming = tonight_series(history, run.suite, "", float("inf"), setups, figures, gated)
    backends = {item.cell: item.backend for item in figures}
    past = {
        name: _nights(history, (run.suite, name, setup_hash(facts)))
        for name, facts in setups.items()
    }
    return tuple(
        _trend(series, past.get(backends.get(series.cell, ""), {}), limits, len(gated))
        for series in coming
    )


def _newest(history: History, suite: str | None) -> StoredRun:
    runs = [item for item in history.runs() if item.mark != "bad"]
    named = [item for item in runs if suite is None or item.suite == suite]
    if named:
        return named[-1]
    if runs:
        others = ", ".join(sorted({item.suite for item in runs}))
        raise UsageError(f"{history.path} holds no good run of suite {suite}; it has {others}")
    raise UsageError(f"{history.path} holds no good run yet; kvknee nightly SUITE adds one")


def _trend(
    series: Series,
    past: Mapping[tuple[str, str], tuple[TrendNight, ...]],
    limits: GateLimits,
    gated: int,
) -> Trend:
    nights = past.get((series.cell, series.metric.name), ())
    marked = [i for i, item in enumerate(nights) if item.mark == "baseline"]
    counted = nights[marked[-1] if marked else 0 :]
    readings = [item.reading for item in counted if item.mark != "bad"]
    sight = visible_regression(series, limits, gated or None)
    return Trend(series, nights, sight, change_point(readings, series.metric))


def _nights(
    history: History, values: tuple[object, ...]
) -> dict[tuple[str, str], tuple[TrendNight, ...]]:
    found: dict[tuple[str, str], dict[str, list[Any]]] = {}
    for row in history.rows(_NIGHTS, values):
        run_id, cell, metric = str(row[0]), str(row[3]), str(row[4])
        found.setdefault((cell, metric), {}).setdefault(run_id, []).append(row)
    return {key: tuple(map(_night, by_run.values())) for key, by_run in found.items()}


def _night(rows: list[Any]) -> TrendNight:
    run_id, at_wall_s, mark, *_, verdict = rows[0]
    counts = [row[6] for row in rows if row[6] is not None]
    reading = Reading(run_id, tuple(row[5] for row in rows), min(counts, default=None))
    return TrendNight(reading, at_wall_s, mark, verdict)
