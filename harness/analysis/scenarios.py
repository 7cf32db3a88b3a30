"""The figures that a run has beside those of every run, by what it asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.analysis.fragmentation import fragmentation_rows, waterfalls
from harness.analysis.scenario_types import ScenarioFigures
from harness.analysis.sharing import conversation_row, prefix_row, turn_rows
from harness.analysis.summary_types import CellFigures
from harness.analysis.table import CellTable
from harness.manifest import Manifest
from harness.observe.series import BackendSeries
from harness.records import CellKey
from harness.workload import Conversations, LengthMix, SharedPrefix

#: The scenario whose backends are steps from one to the next.
DECOMPOSITION = "decompose"


def scenario_figures(
    manifest: Manifest,
    figures: Sequence[CellFigures],
    tables: Mapping[CellKey, CellTable],
    series: Mapping[str, BackendSeries],
) -> ScenarioFigures:
    """The rows of the run's own scenario; none of them for an ordinary run."""
    asks = manifest.workload.asks
    pairs = [(item, tables[item.cell]) for item in figures if item.cell in tables]
    if isinstance(asks, LengthMix):
        rows = fragmentation_rows(manifest, pairs, series)
        steps = manifest.workload.scenario == DECOMPOSITION
        return ScenarioFigures(
            fragmentation=rows, waterfalls=waterfalls(manifest, rows) if steps else ()
        )
    if isinstance(asks, SharedPrefix):
        return ScenarioFigures(prefixes=tuple(prefix_row(item, table) for item, table in pairs))
    if isinstance(asks, Conversations):
        return ScenarioFigures(
            turns=tuple(row for item, table in pairs for row in turn_rows(item, table)),
            conversations=tuple(
                conversation_row(
                    manifest.backend(item.cell.backend),
                    item,
                    table,
                    series.get(item.cell.backend),
                )
                for item, table in pairs
            ),
        )
    return ScenarioFigures()
