"""Two synthetic runs, analysed as ``kvknee compare`` does it."""

from __future__ import annotations

from harness.analysis.run import analyse
from harness.analysis.table import build_tables
from harness.compare.samples import cell_sample
from harness.compare.types import CellPair, Change, Comparison, MetricName, RunSide
from tests.support.run_builder import Run


def side_of(run: Run, name: str = "run") -> RunSide:
    """One side of a comparison."""
    manifest = run.manifest
    summary = analyse(manifest, run.records, run.events, run.series)
    tables = build_tables(run.records)
    samples = {
        cell.cell: cell_sample(
            manifest.backend(cell.cell.backend),
            tables[cell.cell],
            cell.window,
            run.series.get(cell.cell.backend),
            manifest.workload.loop,
        )
        for cell in summary.cells
        if cell.cell in tables
    }
    return RunSide(name, summary, samples)


def pair_at(found: Comparison, level: float, backend: str = "paged") -> CellPair:
    """The pair of one level."""
    return next(
        pair for pair in found.pairs if (pair.cell.backend, pair.cell.level) == (backend, level)
    )


def change_at(found: Comparison, level: float, name: MetricName, backend: str = "paged") -> Change:
    """One figure of one level."""
    pair = pair_at(found, level, backend)
    return next(change for change in pair.changes if change.metric.name == name)
