"""Findings about memory figures: absent, thin, or contradicting the budget."""

from __future__ import annotations

import numpy as np

from harness.analysis.summary_types import CellFigures, MemoryFigures
from harness.kv.units import counted
from harness.manifest import Manifest
from harness.observe.series import BackendSeries
from harness.records import CellKey, Finding

#: Prefix-cache hits beyond this share of the looked-up tokens are accidental.
PREFIX_HIT_LIMIT = 0.01
#: A gap this many scrape intervals long, and at least this many seconds, loses a peak.
GAP_INTERVALS, GAP_S = 5.0, 5.0
#: Share of failed scrapes worth a finding.
FAILED_SHARE = 0.10
#: Used bytes may exceed the budget by rounding only.
_BUDGET_SLACK = 1.001


def memory_findings(
    figures: CellFigures, series: BackendSeries | None, manifest: Manifest
) -> list[Finding]:
    """Findings about the memory of one cell whose window opened."""
    if figures.window.span is None or series is None or not series.values:
        return []
    memory = figures.memory
    if memory is None:
        return [_none_in_window(figures.cell)]
    return [
        *_thin(figures.cell, memory, manifest.scrape_interval_s),
        *([] if manifest.workload.shares_prefixes else _prefix_hits(figures.cell, memory)),
        *_over_budget(figures.cell, memory),
    ]


def source_findings(name: str, kind: str, series: BackendSeries | None) -> list[Finding]:
    """Findings about the source of one backend's memory figures."""
    if series is None or not series.values:
        why = "; ".join(series.failures) if series is not None and series.failures else ""
        known = kind != "openai"
        return [
            Finding(
                code="memory_unavailable",
                severity="warning" if known else "note",
                text=f"{name}: no metrics were read, so memory figures and the memory knee are "
                f"absent{f' ({why})' if why else ''}.",
                remedy="Let the server expose /metrics and check that the harness reaches it.",
            )
        ]
    if series.missing:
        return [
            Finding(
                code="metrics_missing",
                severity="warning",
                text=f"{name}: the server does not expose {', '.join(series.missing)}; what "
                "needs them is absent.",
                remedy="Use a server version whose metrics are known, or enable them.",
            )
        ]
    return []


def lost_scrape_findings(name: str, series: BackendSeries | None) -> list[Finding]:
    """Scrapes that failed over the whole run, when they are many."""
    if series is None or not series.values:
        return []
    failed = int(series.failed_t_s.size)
    good = max(len(item) for item in series.values.values())
    if not failed or failed / (failed + good) < FAILED_SHARE:
        return []
    reasons = "; ".join(series.failures)
    return [
        Finding(
            code="scrapes_lost",
            severity="warning",
            text=f"{name}: {failed} of {failed + good} scrapes failed ({reasons}): gaps, not "
            "zeros.",
            remedy="Look at the server's log; a longer scrape interval may help a busy one.",
        )
    ]


def _none_in_window(cell: CellKey) -> Finding:
    return Finding(
        code="memory_unavailable",
        severity="warning",
        text="No metrics sample lies inside the window, so its memory figures are absent.",
        remedy="Use a longer window or a shorter scrape interval.",
        cell=cell,
    )


def _thin(cell: CellKey, memory: MemoryFigures, interval_s: float) -> list[Finding]:
    gap = memory.longest_gap_s
    if memory.source == "prometheus":
        # it keeps an interval of its own, which the manifest does not know
        interval_s = max(interval_s, memory.interval_s or 0.0)
    limit = max(GAP_INTERVALS * interval_s, GAP_S)
    if gap is None or gap <= limit:
        return []
    return [
        Finding(
            code="scrape_gap",
            severity="warning",
            text=f"No sample for {gap:.1f} s inside the window "
            f"({counted(memory.samples, 'sample')} in all); a peak in between is not seen.",
            remedy="Check why the server's /metrics did not answer.",
            cell=cell,
        )
    ]


def _prefix_hits(cell: CellKey, memory: MemoryFigures) -> list[Finding]:
    ratio = memory.prefix_hit_ratio
    if ratio is None or ratio < PREFIX_HIT_LIMIT:
        return []
    return [
        Finding(
            code="prefix_cache_hits",
            severity="warning",
            text=f"{ratio * 100:.1f} % of the prompt tokens came from the prefix cache, though no "
            "shared prefix was asked for: TTFT and memory look better than they are.",
            remedy="Restart the server or change --seed, so that no prompt was seen before.",
            cell=cell,
        )
    ]


def _over_budget(cell: CellKey, memory: MemoryFigures) -> list[Finding]:
    used, budget = memory.used_bytes, memory.budget_bytes
    if used is None or budget is None or used.maximum <= budget * _BUDGET_SLACK:
        return []
    if not np.isfinite(used.maximum):
        return []
    return [
        Finding(
            code="kv_over_budget",
            severity="invalid",
            text=f"KV cache used {used.maximum:,.0f} B of a budget of {budget:,.0f} B: one of the "
            "two figures is wrong.",
            remedy="Check the pool that the server states and the flags it was started with.",
            cell=cell,
        )
    ]
