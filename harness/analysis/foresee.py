"""Verdicts with their predictions: both capacities, the one that fits, and what would move it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from harness.analysis.forecast import forecast, recorded_lengths
from harness.analysis.knee import with_prediction
from harness.analysis.movers import Situation, movers
from harness.analysis.reconcile_theory import KvTheory
from harness.analysis.summary_types import CellFigures
from harness.analysis.table import CellTable
from harness.analysis.verdict_types import BackendVerdict
from harness.manifest import Manifest
from harness.observe.series import BackendSeries
from harness.records import CellKey

#: of the manifest's environment: memory of the smallest GPU
GPU_MEMORY = "gpu_memory_bytes"


def with_forecasts(
    manifest: Manifest,
    verdicts: Sequence[BackendVerdict],
    figures: Sequence[CellFigures],
    tables: Mapping[CellKey, CellTable],
    series: Mapping[str, BackendSeries],
    theories: Mapping[str, KvTheory],
) -> tuple[BackendVerdict, ...]:
    """The verdicts in their order, each held against the prediction that fits its records."""
    return tuple(
        _foreseen(
            manifest,
            verdict,
            [cell for cell in figures if is_of(cell, verdict)],
            tables,
            series.get(verdict.backend.name),
            theories.get(verdict.backend.name),
        )
        for verdict in verdicts
    )


def is_of(cell: CellFigures, verdict: BackendVerdict) -> bool:
    """Whether a verdict speaks of a cell."""
    key = cell.cell
    return (key.backend, key.prompt_tokens, key.output_tokens, key.variant) == (
        verdict.backend.name,
        verdict.prompt_tokens,
        verdict.output_tokens,
        verdict.variant,
    )


def _foreseen(
    manifest: Manifest,
    verdict: BackendVerdict,
    cells: Sequence[CellFigures],
    tables: Mapping[CellKey, CellTable],
    series: BackendSeries | None,
    theory: KvTheory | None,
) -> BackendVerdict:
    info, work = verdict.backend, manifest.workload
    pool = series.pool if series is not None else None
    found = forecast(info, pool, work.loop, work.asks, cells, tables, verdict.capacity)
    if found is None:
        return verdict
    held = replace(with_prediction(verdict, cells, found.fitting), forecast=found)
    if verdict.memory.first_bad is None:
        return held
    memory = manifest.environment.get(GPU_MEMORY)
    now = Situation(
        info=info,
        lengths=recorded_lengths(info, cells, tables),
        fits=found.fits,
        pool=pool,
        theory=theory,
        device_bytes=memory if isinstance(memory, int) else None,
    )
    return replace(held, movers=movers(now))
