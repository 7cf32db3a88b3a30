"""The cells of a run, ready to be reconciled and fitted; several runs may be put together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.analysis.matching import Matched, match
from harness.analysis.open_loop import open_window
from harness.analysis.reconcile import reconcile_cell
from harness.analysis.reconcile_theory import KvTheory, stated_theory
from harness.analysis.reconcile_types import Reconciled, Unreconciled
from harness.analysis.sound import SoundRecords, without_earlier
from harness.analysis.summary_types import Window
from harness.analysis.table import Bools, CellTable, build_tables
from harness.analysis.windows import counted_mask, level_marks, measure_window, redone
from harness.manifest import BackendInfo, Manifest
from harness.observe.series import BackendSeries
from harness.records import RequestRecord, RunEvent

#: From a backend's name to what its model's config predicts.
Theories = Mapping[str, KvTheory]


@dataclass(frozen=True)
class RunCell:
    """One cell with both of its sides."""

    info: BackendInfo
    table: CellTable
    counted: Bools
    #: one request at a time, in a closed loop
    alone: bool
    theory: KvTheory | None
    #: None where the sides could not be matched
    matched: Matched | None
    explained: Reconciled | Unreconciled


def run_cell(
    manifest: Manifest,
    info: BackendInfo,
    table: CellTable,
    window: Window,
    series: BackendSeries | None,
    theories: Theories,
) -> RunCell:
    """One cell, matched and explained."""
    theory = theories.get(info.name) or stated_theory(info)
    found = match(table, window, series, info, theory)
    return RunCell(
        info=info,
        table=table,
        counted=counted_mask(table, window),
        alone=manifest.workload.loop == "closed" and table.cell.level == 1,
        theory=theory,
        matched=None if isinstance(found, str) else found,
        explained=reconcile_cell(table.cell, found, series, info, theory),
    )


def cells_of_run(
    manifest: Manifest,
    records: Iterable[RequestRecord],
    events: Iterable[RunEvent],
    series: Mapping[str, BackendSeries],
    theories: Theories,
) -> tuple[RunCell, ...]:
    """Every cell of a run that has records, by backend (in the manifest's order) and level."""
    marks = level_marks(events)
    tables = build_tables(SoundRecords(without_earlier(records, redone(marks))))
    order = {info.name: index for index, info in enumerate(manifest.backends)}
    cells = sorted(
        (cell for cell in tables if cell.backend in order and cell in marks),
        key=lambda cell: (order[cell.backend], cell),
    )
    closed = manifest.workload.loop == "closed"
    found = []
    for cell in cells:
        window = (measure_window if closed else open_window)(tables[cell], marks[cell])
        info = manifest.backend(cell.backend)
        found.append(
            run_cell(manifest, info, tables[cell], window, series.get(cell.backend), theories)
        )
    return tuple(found)


def explained(cells: Sequence[RunCell]) -> tuple[Reconciled | Unreconciled, ...]:
    """What became of each cell's memory."""
    return tuple(cell.explained for cell in cells)
