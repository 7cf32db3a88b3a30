"""From stored runs to the series that the gate judges."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.nightly.figures import StoredFigure
from harness.nightly.gate_types import Reading, Series
from harness.nightly.history import History
from harness.nightly.metrics import METRICS
from harness.nightly.setup import setup_hash
from harness.records import Scalar

#: Nights of a suite and setup that are not bad, from the newest of them that was marked as a
#: baseline on; a mark on a night of another setup says nothing of this one.
_COMPARABLE = """WITH newest AS (
        SELECT at_wall_s, COALESCE(marked_at_wall_s, at_wall_s) AS marked_at_wall_s FROM runs
        JOIN setups m USING (run_id)
        WHERE mark = 'baseline' AND suite = ? AND at_wall_s < ? AND m.backend = ? AND m.setup = ?
        ORDER BY at_wall_s DESC LIMIT 1)
    SELECT r.run_id, f.cell, f.metric, f.value, f.requests
    FROM figures f JOIN runs r USING (run_id)
    JOIN setups s ON s.run_id = f.run_id AND s.backend = f.backend
    LEFT JOIN verdicts v ON v.run_id = f.run_id AND v.cell = f.cell AND v.metric = f.metric
    LEFT JOIN newest n
    WHERE r.suite = ? AND f.backend = ? AND s.setup = ? AND r.mark <> 'bad'
    AND (r.at_wall_s, r.run_id) < (?, ?) AND f.value IS NOT NULL
    AND r.at_wall_s >= COALESCE(n.at_wall_s, r.at_wall_s)"""
#: What was kept out before somebody set that mark counts again: nights that do not had judged it.
_KEPT = """
    AND (r.mark = 'baseline' OR COALESCE(v.kept_out, 0) = 0
        OR COALESCE(r.at_wall_s < n.marked_at_wall_s, 0))"""
_ORDER = """
    ORDER BY r.at_wall_s, r.run_id, f.cell, f.metric, f.repeat"""
_BASELINE = _COMPARABLE + _KEPT + _ORDER
#: what happened, not what is compared with
_ALL_NIGHTS = _COMPARABLE + _ORDER
_OTHERS = """SELECT COUNT(DISTINCT r.run_id) FROM runs r JOIN setups s USING (run_id)
    WHERE r.suite = ? AND s.backend = ? AND s.setup <> ?"""


@dataclass(frozen=True)
class NightKey:
    """Which night is judged: its suite, its name and its wall-clock start in seconds."""

    suite: str
    run_id: str
    at_wall_s: float


def tonight_series(
    history: History,
    suite: str,
    run_id: str,
    at_wall_s: float,
    setups: Mapping[str, Mapping[str, Scalar]],
    figures: Sequence[StoredFigure],
    primary: Collection[tuple[str, str]],
) -> tuple[Series, ...]:
    """A series for each (cell, metric) of tonight, and for each primary one that is missing.

    ``primary`` holds the (cell, metric) that are gated.
    """
    tonight = _readings((run_id, f.cell, f.metric, f.value, f.requests) for f in figures)
    backends = {f.cell: f.backend for f in figures}
    of = NightKey(suite, run_id, at_wall_s)
    past = {
        name: _readings(history.rows(_BASELINE, _values(of, name, facts)))
        for name, facts in setups.items()
    }
    others = {
        name: _count(history, (suite, name, setup_hash(facts))) for name, facts in setups.items()
    }
    keys = {(f.cell, f.metric) for f in figures} | set(primary)
    order = {name: i for i, name in enumerate(METRICS)}
    return tuple(
        Series(
            cell=cell,
            metric=METRICS[metric],
            tonight=next(iter(tonight.get((cell, metric), ())), None),
            baseline=past.get(backends.get(cell, ""), {}).get((cell, metric), ()),
            gated=(cell, metric) in primary,
            other_nights=others.get(backends.get(cell, ""), 0),
        )
        for cell, metric in sorted(keys, key=lambda key: (key[0], order[key[1]]))
    )


def all_nights(
    history: History, of: NightKey, backend: str, facts: Mapping[str, Scalar]
) -> dict[tuple[str, str], tuple[Reading, ...]]:
    """Every comparable night before tonight, oldest first, by (cell, metric).

    Other than a baseline it holds the nights that were called regressed.
    """
    return _readings(history.rows(_ALL_NIGHTS, _values(of, backend, facts)))


def _values(of: NightKey, backend: str, facts: Mapping[str, Scalar]) -> tuple[object, ...]:
    """What ``_COMPARABLE`` asks for, in its order."""
    suite, at, setup = of.suite, of.at_wall_s, (backend, setup_hash(facts))
    return (suite, at, *setup, suite, *setup, at, of.run_id)


def _count(history: History, values: tuple[object, ...]) -> int:
    return int(str(next(history.rows(_OTHERS, values))[0]))


def _readings(
    rows: Iterable[Any],
) -> dict[tuple[str, str], tuple[Reading, ...]]:
    """Rows of (run, cell, metric, value, requests) as readings; absent values are left out."""
    nights: dict[tuple[str, str], dict[str, list[tuple[float, int | None]]]] = defaultdict(dict)
    for run_id, cell, metric, value, requests in rows:
        if value is not None and metric in METRICS:
            nights[cell, metric].setdefault(run_id, []).append((value, requests))
    return {
        key: tuple(_reading(run_id, found) for run_id, found in by_run.items())
        for key, by_run in nights.items()
    }


def _reading(run_id: str, found: Sequence[tuple[float, int | None]]) -> Reading:
    counts = [requests for _, requests in found if requests is not None]
    return Reading(run_id, tuple(value for value, _ in found), min(counts, default=None))
