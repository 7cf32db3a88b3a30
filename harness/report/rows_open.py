"""The table that only open loops have: rates, lateness, requests in flight."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.open_types import OpenFigures
from harness.analysis.summary_types import CellFigures
from harness.report.rows import Column, is_open, level_column, percentile_column
from harness.report.units import count_text, number


def open_columns(cells: Sequence[CellFigures]) -> list[Column]:
    """One row per rate; empty in a closed loop."""
    if not is_open(cells):
        return []
    return [
        level_column(cells),
        Column("due", "/s", lambda c: number(_open(c).rate_due_rps), "requests due in the window"),
        Column(
            "sent",
            "/s",
            lambda c: number(_open(c).rate_sent_rps),
            "these requests over the time until the last of them had left",
        ),
        *(
            percentile_column(
                f"intended p{p}", p, lambda c: c.latency.ttft_intended_s, "due to first token"
            )
            for p in (50, 95)
        ),
        *(
            percentile_column(f"late p{p}", p, lambda c: _open(c).lateness_s, "due to sent")
            for p in (50, 95, 99)
        ),
        Column("in-flight", "mean", lambda c: number(c.throughput.mean_in_flight), "sent to ended"),
        Column("in-flight", "max", lambda c: count_text(c.throughput.max_in_flight), ""),
    ]


def _open(figures: CellFigures) -> OpenFigures:
    if figures.open_loop is None:
        raise ValueError(f"{figures.cell.label} is no level of an open loop")
    return figures.open_loop
