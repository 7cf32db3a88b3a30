"""From a run's records and series to the samples that are drawn again."""

from __future__ import annotations

import numpy as np

from harness.analysis.latency import request_times
from harness.analysis.matching import match
from harness.analysis.reconcile_theory import KvTheory, stated_theory
from harness.analysis.summary_types import Window
from harness.analysis.table import CANCELLED, CellTable, Floats
from harness.analysis.throughput import output_tokens
from harness.analysis.windows import counted_mask
from harness.compare.types import Sample
from harness.manifest import BackendInfo
from harness.observe.series import BackendSeries
from harness.records import Loop


def cell_sample(
    info: BackendInfo,
    table: CellTable,
    window: Window,
    series: BackendSeries | None,
    loop: Loop,
    theory: KvTheory | None = None,
) -> Sample:
    """The counted requests of one cell, and the moments at which its memory can be counted."""
    counted = counted_mask(table, window) & (table.outcome != CANCELLED)
    rows = np.flatnonzero(counted)
    rows = rows[np.argsort(table.reference_s[rows], kind="stable")]
    times = request_times(table)
    used, places = _memory(info, table, window, series, theory)
    return Sample(
        ok=table.ok[rows],
        latency={
            "ttft_s": times.ttft_s[rows],
            "tpot_s": times.tpot_s[rows],
            "e2e_s": times.e2e_s[rows],
        },
        tokens=np.where(table.ok, output_tokens(table), 0)[rows].astype(np.float64),
        taken_s=(table.end_s - table.intended_s)[rows],
        used_bytes=used,
        token_places=places,
        users=window.users,
        loop=loop,
    )


def _memory(
    info: BackendInfo,
    table: CellTable,
    window: Window,
    series: BackendSeries | None,
    theory: KvTheory | None,
) -> tuple[Floats, Floats]:
    """(bytes in use, places) at the scrapes where server and client count the same requests.

    Places are the tokens held, rounded up to blocks or slots as the layout does, so that it does
    not matter how full the last block was at a scrape; the tokens themselves where the layout is
    not known. How much of a prompt has been read is an estimate, so only moments at which none is
    being read are taken.
    """
    found = match(table, window, series, info, theory or stated_theory(info))
    if isinstance(found, str):
        return np.empty(0), np.empty(0)
    settled = np.array([moment.settled for moment in found.moments], dtype=np.bool_)
    places = np.array(
        [
            float(moment.held.sum()) if item.places is None else item.places
            for moment, item in zip(found.moments, found.expected, strict=True)
        ]
    )
    return found.used[settled], places[settled]
