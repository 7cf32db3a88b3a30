"""Which figures of a cell are not trusted, and why."""

from __future__ import annotations

from harness.analysis.summary_types import CellFigures
from harness.compare.metrics import distribution_of
from harness.compare.types import Metric, Sample

#: Share of prompt tokens out of a prefix cache that nobody asked for (``prefix_cache_hits``).
WARM_SHARE = 0.01
#: Fewer scrapes say too little of bytes per token.
MIN_MOMENTS = 10


def cell_marks(figures: CellFigures, *, shares_prefixes: bool) -> tuple[str, ...]:
    """Why nothing of a cell is trusted; empty when it is."""
    marks = []
    if figures.client.bound:
        marks.append("client_bound: the client was the limit")
    elif figures.unjudged is not None:
        marks.append(f"unjudged: {figures.unjudged}")
    ratio = figures.memory.prefix_hit_ratio if figures.memory is not None else None
    if ratio is not None and ratio >= WARM_SHARE and not shares_prefixes:
        marks.append(
            f"warm prefix cache: {ratio * 100:.1f} % of the prompt tokens came out of it unasked"
        )
    return tuple(marks)


def metric_marks(metric: Metric, figures: CellFigures, sample: Sample | None) -> tuple[str, ...]:
    """Why one figure is not trusted, beside what ``cell_marks`` says."""
    if metric.name == "kv_bytes_per_token":
        moments = 0 if sample is None else sample.token_places.size
        return (f"too few samples: {moments}",) if 0 < moments < MIN_MOMENTS else ()
    if metric.p is None:
        return ()
    marks = []
    found = distribution_of(metric, figures)
    if found.at(metric.p).insufficient:
        marks.append(f"too few samples: {found.n}")
    if metric.latency != "e2e_s" and not figures.latency.ttft_trusted:
        doubtful = figures.latency.doubtful_share
        marks.append(f"stamps: those of {doubtful * 100:.1f} % of the requests are upper bounds")
    return tuple(marks)
