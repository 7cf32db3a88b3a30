"""From a run's summary to the figures that nights are compared by.

A figure is None where it is absent or not trusted: a percentile that its sample is too small
for, a latency read through a buffer, a cell that gives no verdict, a scrape that failed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from harness.analysis.summary_types import CellFigures, RunSummary
from harness.analysis.verdict_types import BackendVerdict
from harness.nightly.metrics import METRICS
from harness.records import Loop


@dataclass(frozen=True)
class StoredFigure:
    """One figure of one repeat; ``value`` in the metric's unit, ``requests`` behind it."""

    backend: str
    cell: str
    metric: str
    repeat: int
    value: float | None
    requests: int | None


def run_figures(summary: RunSummary) -> tuple[StoredFigure, ...]:
    """Every figure of a run, by cell (its label without the repeat), then metric."""
    found = [item for cell in summary.cells for item in cell_figures(cell)]
    found += [_knee(verdict, _unknown_levels(verdict, summary)) for verdict in summary.verdicts]
    return tuple(found)


def cell_figures(figures: CellFigures) -> tuple[StoredFigure, ...]:
    """The figures of one cell and repeat; all None where the cell gives no verdict."""
    key = figures.cell
    loop: Loop = "open" if figures.open_loop is not None else "closed"
    label = _without_repeat(key.label_in(loop), key.repeat)
    sound = unsound(figures) is None
    return tuple(
        StoredFigure(
            backend=key.backend,
            cell=label,
            metric=name,
            repeat=key.repeat,
            value=value if sound or name == "failure_rate" else None,
            requests=requests,
        )
        for name, (value, requests) in _of_cell(figures).items()
    )


def unsound(figures: CellFigures) -> str | None:
    """Why nothing of a cell counts; None when it does."""
    if figures.unjudged is not None:
        return figures.unjudged
    if not figures.window.complete:
        return "its window was cut short"
    return "the client was the limit" if figures.client.bound else None


def _of_cell(figures: CellFigures) -> dict[str, tuple[float | None, int | None]]:
    latency, rates, memory = figures.latency, figures.throughput, figures.memory
    found: dict[str, tuple[float | None, int | None]] = {}
    for name, sample, trusted in (
        ("ttft", latency.ttft_s, latency.ttft_trusted),
        ("tpot", latency.tpot_s, latency.tpot_trusted),
        ("e2e", latency.e2e_s, not latency.buffered),
    ):
        for p in (50, 95, 99):
            found[f"{name}_p{p}_s"] = (sample.earned(p) if trusted else None, sample.n)
    ended = figures.counts.ok + figures.counts.failed
    found["output_tokens_per_s"] = (rates.output_tokens_per_s, rates.requests_ended)
    found["goodput_rps"] = (rates.goodput_rps, ended)
    held = memory.used_bytes_per_token_held if memory is not None else None
    found["kv_bytes_per_token"] = (held, None)
    found["failure_rate"] = (figures.counts.failure_share, ended)
    assert found.keys() <= METRICS.keys()  # noqa: S101
    return found


def _unknown_levels(verdict: BackendVerdict, summary: RunSummary) -> set[float]:
    """Levels of the workload that were not run, or of which nothing can be said."""
    cells = [c for c in summary.cells if c.cell.backend == verdict.backend.name]
    judged = {c.cell.level for c in cells if c.unjudged is None and c.admission.state != "unknown"}
    return {*map(float, summary.manifest.workload.levels), *(c.cell.level for c in cells)} - judged


def _knee(verdict: BackendVerdict, unknown: set[float]) -> StoredFigure:
    """The memory knee: what is held. A knee that was not reached is at least the last level.

    A server that is full at the lowest level already holds none of those asked: 0, not absent.
    Absent where a level between what is held and what is not was lost: it might have been held,
    and a lower knee that only a crash made is no regression.
    """
    knee = verdict.memory
    value = knee.last_good if knee.status in ("bracketed", "not_reached") else None
    if knee.status == "below_first":
        value = 0.0
    top = math.inf if knee.first_bad is None else knee.first_bad
    if value is not None and any(value < level < top for level in unknown):
        value = None
    lengths = f"{verdict.prompt_tokens}+{verdict.output_tokens}"
    variant = f" {verdict.variant}" if verdict.variant else ""
    name = verdict.backend.name
    return StoredFigure(name, f"{name} {lengths}{variant}", "memory_knee", 0, value, None)


def _without_repeat(label: str, repeat: int) -> str:
    return label.removesuffix(f" r{repeat}") if repeat else label
