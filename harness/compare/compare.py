"""Two runs put side by side, cell by cell and figure by figure."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import msgspec
import numpy as np

from harness.analysis.fit_types import Interval
from harness.analysis.summary_types import CellFigures
from harness.compare.metadata import mismatches, paired_names
from harness.compare.metrics import METRICS, value_of
from harness.compare.resample import draws_of
from harness.compare.shares import share_difference
from harness.compare.trust import cell_marks, metric_marks
from harness.compare.types import (
    CellPair,
    Change,
    Comparison,
    Metric,
    Mismatch,
    Outcome,
    RunSide,
    Sample,
)
from harness.errors import UsageError, printable, shortened
from harness.records import CellKey

_MOST_FACTS = 6


def compare_runs(a: RunSide, b: RunSide, *, force: bool = False, seed: int = 0) -> Comparison:
    """B against A; raises UsageError where they answer different questions, unless forced.

    Raises UsageError, too, where they have no cell in common.
    """
    names = paired_names(a.summary.manifest, b.summary.manifest)
    found = mismatches(a.summary.manifest, b.summary.manifest, names)
    refusing = [item for item in found if item.refuses]
    if refusing and not force:
        raise UsageError(
            f"{_shown(a)} and {_shown(b)} are not comparable: {_list(refusing)}; "
            "--force compares them anyway and marks it"
        )
    cells_b = {item.cell: item for item in b.summary.cells}
    pairs: list[CellPair] = []
    only_a: list[CellKey] = []
    taken: set[CellKey] = set()
    for item in a.summary.cells:
        key = _key_in_b(item.cell, names)
        other = cells_b.get(key) if key is not None else None
        if key is None or other is None:
            only_a.append(item.cell)
            continue
        taken.add(key)
        pairs.append(_pair(a, b, item, other, seed))
    if not pairs:
        raise UsageError(
            f"{_shown(a)} and {_shown(b)} have no level in common ({_cells(a)} against {_cells(b)})"
        )
    return Comparison(
        name_a=a.name,
        name_b=b.name,
        loop=a.summary.manifest.workload.loop,
        mismatches=found,
        forced=bool(refusing),
        pairs=tuple(pairs),
        only_a=tuple(only_a),
        only_b=tuple(item.cell for item in b.summary.cells if item.cell not in taken),
        notes=_notes(a, b),
    )


def _notes(a: RunSide, b: RunSide) -> tuple[str, ...]:
    notes = [
        f"{side.name} was {side.summary.manifest.status}: its last levels may be missing"
        for side in (a, b)
        if side.summary.manifest.status != "complete"
    ]
    if a.summary.manifest.run_id == b.summary.manifest.run_id:
        notes.append("both are the same run: every difference is 0")
    return tuple(notes)


def _key_in_b(cell: CellKey, names: Mapping[str, str]) -> CellKey | None:
    backend = names.get(cell.backend)
    return None if backend is None else msgspec.structs.replace(cell, backend=backend)


def _pair(a: RunSide, b: RunSide, one: CellFigures, other: CellFigures, seed: int) -> CellPair:
    marks = tuple(
        f"{which}: {mark}"
        for which, side, item in (("A", a, one), ("B", b, other))
        for mark in cell_marks(item, shares_prefixes=side.summary.manifest.workload.shares_prefixes)
    )
    samples = a.samples.get(one.cell), b.samples.get(other.cell)
    changes = [
        _change(metric, (one, other), samples, trusted=not marks, seed=seed) for metric in METRICS
    ]
    return CellPair(
        cell=one.cell,
        n_a=one.counts.ok,
        n_b=other.counts.ok,
        changes=tuple(change for change in changes if change is not None),
        marks=marks,
    )


def _change(
    metric: Metric,
    figures: tuple[CellFigures, CellFigures],
    samples: tuple[Sample | None, Sample | None],
    *,
    trusted: bool,
    seed: int,
) -> Change | None:
    """One figure in both runs; None where neither has it, or a p99 that neither earned."""
    both = tuple(zip(figures, samples, strict=True))
    a, b = (value_of(metric, item, sample) for item, sample in both)
    if a is None and b is None:
        return None
    of_each = [metric_marks(metric, item, sample) for item, sample in both]
    if metric.p == 99 and all(of_each):
        return None
    marks = tuple(
        f"{which}: {mark}" for which, found in zip("AB", of_each, strict=True) for mark in found
    )
    if a is None or b is None:
        return Change(
            metric, a, b, None, "unsure", (*marks, f"{'A' if a is None else 'B'}: absent")
        )
    change = _interval(metric, (a, b), figures, samples, seed)
    outcome = _outcome(metric, change) if trusted and not marks else "unsure"
    return Change(metric, a, b, change, outcome, marks)


def _interval(
    metric: Metric,
    values: tuple[float, float],
    figures: tuple[CellFigures, CellFigures],
    samples: tuple[Sample | None, Sample | None],
    seed: int,
) -> Interval | None:
    if metric.kind == "difference":
        one, other = (item.counts for item in figures)
        return share_difference(
            one.failed, one.ok + one.failed, other.failed, other.ok + other.failed
        )
    (a, b), (of_a, of_b) = values, samples
    if a <= 0 or of_a is None or of_b is None:
        return None
    name = zlib.crc32(f"{figures[0].cell.label} {metric.name}".encode())
    drawn_a = draws_of(metric, of_a, (seed, name, 0))
    drawn_b = draws_of(metric, of_b, (seed, name, 1))
    if drawn_a is None or drawn_b is None:
        return None
    ratio = b / a
    with np.errstate(invalid="ignore", divide="ignore"):
        drawn = drawn_b / drawn_a
    if metric.name == "output_tokens_per_s":
        # these draws are relative to what each run measured
        drawn = drawn * ratio
    drawn = drawn[np.isfinite(drawn)]
    if drawn.size < 2:
        return None
    low, high = np.percentile(drawn, [2.5, 97.5])
    # the interval of a skewed estimate can miss the estimate itself
    return Interval(ratio, min(float(low), ratio), max(float(high), ratio))


def _outcome(metric: Metric, change: Interval | None) -> Outcome:
    """What the interval says, the figure's own direction considered."""
    if change is None:
        return "unsure"
    unchanged = 1.0 if metric.kind == "ratio" else 0.0
    if change.holds(unchanged):
        return "same"
    return "better" if (change.high < unchanged) is metric.lower_is_better else "worse"


def _shown(side: RunSide) -> str:
    return printable(shortened(side.name))


def _list(items: list[Mismatch]) -> str:
    told = [
        f"{item.fact} ({printable(shortened(item.a))} against {printable(shortened(item.b))})"
        for item in items[:_MOST_FACTS]
    ]
    rest = len(items) - _MOST_FACTS
    return "; ".join([*told, f"and {rest} more"] if rest > 0 else told)


def _cells(side: RunSide) -> str:
    loop = side.summary.manifest.workload.loop
    told = [printable(item.cell.label_in(loop)) for item in side.summary.cells[:_MOST_FACTS]]
    return ", ".join(told) or "none"
