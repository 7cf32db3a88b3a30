"""Findings about open loops: backlog, requests kept back or late, a trace that was cut."""

from __future__ import annotations

from harness.analysis.client import LATENESS_FLOOR_S, LATENESS_SHARE
from harness.analysis.open_types import OpenFigures
from harness.analysis.summary_types import CellFigures
from harness.kv.units import counted
from harness.manifest import Manifest
from harness.records import Finding

#: A level that sends less than this share of the rate that was due is not the one asked for.
RATE_SHARE = 0.95


def short_of_rate(figures: CellFigures) -> bool:
    """Whether far fewer requests left than were due, and no limit of the user's held them."""
    found = figures.open_loop
    return found is not None and not found.kept_back and _reached(found) < RATE_SHARE


def open_findings(figures: CellFigures) -> list[Finding]:
    """Findings about one level of an open loop; none in a closed one."""
    found = figures.open_loop
    if found is None or figures.window.span is None:
        return []
    return [
        *_over_saturated(figures, found),
        *_kept_back(figures, found),
        *_late(figures, found),
        *_unsent(figures, found),
    ]


def trace_findings(manifest: Manifest) -> list[Finding]:
    """What was changed in a replayed trace."""
    asked = manifest.workload.open_loop
    trace = asked.trace if asked is not None else None
    if trace is None or not (trace.shortened or trace.skipped):
        return []
    parts = [
        f"{trace.shortened:,} of its {counted(trace.requests, 'request')} were made shorter "
        f"({trace.over_length})"
        if trace.shortened
        else "",
        f"{counted(trace.skipped, 'longer request')} left out" if trace.skipped else "",
    ]
    return [
        Finding(
            code="trace_cut",
            severity="note",
            text=f"{trace.name} is not replayed as it is: {' and '.join(p for p in parts if p)}.",
            remedy="Raise --max-prompt-tokens and --max-output-tokens where the server allows it.",
        )
    ]


def _over_saturated(figures: CellFigures, found: OpenFigures) -> list[Finding]:
    if not found.over_saturated:
        return []
    return [
        Finding(
            code="over_saturated",
            severity="warning",
            text=backlog_text(found),
            remedy="The server does not keep up with this rate: its latencies grow with the "
            "length of the level and are those of no steady state. Where requests last longer "
            "than --warmup-seconds, lengthen that first; else compare at a lower rate.",
            cell=figures.cell,
        )
    ]


def backlog_text(found: OpenFigures) -> str:
    """The evidence of over-saturation."""
    steps = ", ".join(f"{value:.1f}" for value in found.outstanding)
    return (
        f"Requests came due faster than they ended: {steps} were outstanding in the quarters of "
        f"the window, {found.growth:,} more at its end than at its start, of {found.due:,} due."
    )


def _kept_back(figures: CellFigures, found: OpenFigures) -> list[Finding]:
    if not found.kept_back:
        return []
    return [
        Finding(
            code="kept_back",
            severity="note",
            text=f"{found.kept_back:,} of {counted(found.due, 'request')} waited because "
            f"{found.max_concurrency} were in flight{_lateness(found)}.",
            remedy="TTFT from intended holds that wait, TTFT from sent does not; "
            "--max-concurrency is the limit.",
            cell=figures.cell,
        )
    ]


def _late(figures: CellFigures, found: OpenFigures) -> list[Finding]:
    """Requests that left late by the client's own doing."""
    late_s = found.lateness_s.value(95)
    limit_s = max(LATENESS_FLOOR_S, LATENESS_SHARE * (figures.latency.ttft_s.value(50) or 0.0))
    short = short_of_rate(figures)
    if not short and (found.kept_back or late_s is None or late_s <= limit_s):
        return []
    return [
        Finding(
            code="sent_late",
            severity="invalid" if short else "warning",
            text=f"The client sent {found.rate_sent_rps or 0:.3g} requests/s of "
            f"{found.rate_due_rps or 0:.3g} due{_lateness(found)}.",
            remedy="Read TTFT from intended, and give the client a core of its own.",
            cell=figures.cell,
        )
    ]


def _unsent(figures: CellFigures, found: OpenFigures) -> list[Finding]:
    if not found.unsent:
        return []
    return [
        Finding(
            code="unsent",
            severity="warning",
            text=f"{counted(found.unsent, 'request')} of the window had not been sent when the "
            "run ended, and stand in no percentile.",
            remedy="Run it again to the end, or with a higher --max-concurrency.",
            cell=figures.cell,
        )
    ]


def _lateness(found: OpenFigures) -> str:
    values = [(p, found.lateness_s.value(p)) for p in (50, 95, 99)]
    known = ", ".join(f"p{p} {value:.3g} s" for p, value in values if value is not None)
    return f"; late by {known}" if known else ""


def _reached(found: OpenFigures) -> float:
    """Share of the rate due that was sent."""
    if not found.rate_due_rps:
        return 1.0
    return (found.rate_sent_rps or 0.0) / found.rate_due_rps
