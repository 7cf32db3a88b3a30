"""How it was measured, in sentences: window, definitions, where memory figures come from."""

from __future__ import annotations

from harness.analysis.knee import GAIN_PER_DOUBLING, SLO_SHARE
from harness.analysis.summary_types import RunSummary
from harness.analysis.windows import FULL_SHARE, RESPAWN_GAP_S
from harness.report.units import duration_text, number, percent_text
from harness.report.words import slo_text

_SOURCES = {"scraper": "the embedded scraper", "prometheus": "a Prometheus server"}


def method_lines(summary: RunSummary) -> list[str]:
    """One sentence or two per matter."""
    work, slo = summary.manifest.workload, summary.manifest.slo
    lines = [
        f"Load: closed loop, users = level, {work.prompt_tokens} prompt and "
        f"{work.output_tokens} output tokens a request, {work.endpoint}, seed {work.seed}; the "
        "backends alternate level by level.",
        "Window: opens when every user has completed a request; counted are the requests sent "
        "until it closes, followed to their end while the users keep sending. Ramp, warm-up and "
        "drain are left out. Full: all users in flight for "
        f"{percent_text(FULL_SHARE)} of the time, pauses up to {duration_text(RESPAWN_GAP_S)} "
        "ignored.",
        "TTFT: first token's arrival - sent (just before the first byte was written). E2E: last "
        "token's arrival - sent. TPOT: (E2E - TTFT) / (N - 1) per request, N as the server "
        "counted. ITL: gaps between token events, pooled over requests.",
        "Percentiles: linear interpolation over successes; failures are shown apart and in the "
        "adjusted view as infinite. Rates: what arrived inside the window / its length.",
        f"Knees: capacity and memory from the server's own gauges; latency good = at least "
        f"{percent_text(SLO_SHARE)} of the requests meet the SLO"
        + (f" ({slo_text(slo)})" if slo_text(slo) else " (none was asked for)")
        + f"; throughput good = at least {percent_text(GAIN_PER_DOUBLING)} more output tokens/s "
        "per doubling of concurrency.",
        _clock_line(summary),
    ]
    return lines + _memory_lines(summary)


def _clock_line(summary: RunSummary) -> str:
    shares = [
        cell.latency.kernel_clock_share
        for cell in summary.cells
        if cell.latency.kernel_clock_share is not None
    ]
    if not shares:
        return "Clock: no token arrived."
    return (
        f"Clock: kernel receive time stamps on every read of {percent_text(min(shares))} or more "
        "of each level's requests, the monotonic clock for the rest."
    )


def _memory_lines(summary: RunSummary) -> list[str]:
    lines: list[str] = []
    for info in summary.manifest.backends:
        found = [c.memory for c in summary.cells_of(info.name) if c.memory is not None]
        if not found:
            lines.append(f"Memory of {info.name}: not available.")
            continue
        samples = sum(item.samples for item in found)
        text = (
            f"Memory of {info.name}: from {_SOURCES.get(found[0].source, found[0].source)}, one "
            f"sample every {number(summary.manifest.scrape_interval_s)} s, {samples} inside the "
            "windows."
        )
        each = found[0].pool_bytes_per_token
        if each is not None:
            text += f" Its pool gives {number(each)} B per token."
        if found[0].device_preallocated:
            text += (
                " Its pool is allocated before the load, so device memory is flat and says "
                "nothing about the knee (pre-allocated, not informative); the share of the pool "
                "in use does."
            )
        lines.append(text)
    return lines
