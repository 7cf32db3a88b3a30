"""What a level has to say of its SLO: shares with their intervals, and what it missed."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.confidence import share_interval, state_of
from harness.analysis.fit_types import Interval
from harness.analysis.summary_types import CellFigures
from harness.analysis.verdict_types import SloMiss
from harness.workload import Slo, Workload

#: Share of the counted requests that must meet the SLO, where the run asked for no other.
SLO_SHARE = 0.95


def wanted_share(workload: Workload) -> float:
    """The share that must meet the SLO: a knee search's ``--attainment``, else ``SLO_SHARE``."""
    return SLO_SHARE if workload.search is None else workload.search.attainment


def slo_evidence(figures: CellFigures, slo: Slo, wanted: float) -> str:
    """The share that met it, with Wilson's interval, and the p95s beside their limits."""
    rates, latency = figures.throughput, figures.latency
    n = figures.counts.ok + figures.counts.failed
    parts = [f"{(rates.slo_attainment or 0.0) * 100:.1f} % of {n} requests meet the SLO"]
    spread = figures.spread
    if spread is not None and spread.met is not None and spread.n:
        parts[0] += interval_text(share_interval(spread.met, spread.n), wanted, ".1f")
    for name, limit, found in (
        ("TTFT", slo.ttft_s, latency.ttft_s),
        ("TPOT", slo.tpot_s, latency.tpot_s),
        ("E2E", slo.e2e_s, latency.e2e_s),
    ):
        p95 = found.value(95)
        if limit is not None and p95 is not None:
            parts.append(f"{name} p95 {p95:.3g} s (limit {limit:g} s)")
    return "; ".join(parts)


def interval_text(found: Interval, threshold: float, digits: str) -> str:
    """`` (95 % interval 88.1 to 97.2 %: undecided)``; ``digits`` is the format of a percentage."""
    undecided = ": undecided" if state_of(found, threshold) == "undecided" else ""
    low, high = (format(end * 100, digits) for end in (found.low, found.high))
    return f" (95 % interval {low} to {high} %{undecided})"


def slo_miss(
    groups: Sequence[tuple[float, Sequence[CellFigures]]], level: float | None, wanted: float
) -> SloMiss | None:
    """What the first bad level missed: its first judged repeat below the wanted share."""
    for figures in (cell for at, cells in groups if at == level for cell in cells):
        share = figures.throughput.slo_attainment
        if figures.unjudged is None and share is not None and share < wanted:
            n = figures.counts.ok + figures.counts.failed
            return SloMiss(figures.cell.level, share, n, _missed_limits(figures, wanted))
    return None


def _missed_limits(figures: CellFigures, wanted: float) -> tuple[str, ...]:
    rates = figures.throughput
    shares = {
        "TTFT": rates.ttft_attainment,
        "TPOT": rates.tpot_attainment,
        "E2E": rates.e2e_attainment,
    }
    known = {name: share for name, share in shares.items() if share is not None}
    missed = tuple(name for name, share in known.items() if share < wanted)
    return missed or tuple(name for name, share in known.items() if share < 1.0)
