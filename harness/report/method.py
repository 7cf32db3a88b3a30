"""How it was measured, in sentences: window, definitions, where memory figures come from."""

from __future__ import annotations

from statistics import median

from harness.analysis.knee import GAIN_PER_DOUBLING
from harness.analysis.open_loop import GROWTH_SHARE, GROWTH_SIGMAS
from harness.analysis.slo_evidence import wanted_share
from harness.analysis.summary_types import MemoryFigures, RunSummary
from harness.analysis.windows import FULL_SHARE, LOAD_SHARE, RESPAWN_GAP_S
from harness.kv.units import counted
from harness.report.asked import ask_lines, lengths_text
from harness.report.units import duration_text, number, percent_text
from harness.report.words import AXES, slo_text
from harness.workload import OpenLoop, Workload

_SOURCES = {"scraper": "the embedded scraper", "prometheus": "a Prometheus server"}


def method_lines(summary: RunSummary) -> list[str]:
    """One sentence or two per matter."""
    work, slo = summary.manifest.workload, summary.manifest.slo
    lines = [
        *(_closed_lines(work) if work.open_loop is None else _open_lines(work, work.open_loop)),
        "TTFT: first token's arrival - sent (just before the first byte was written). E2E: last "
        "token's arrival - sent. TPOT: (E2E - TTFT) / (N - 1) per request, N as the server "
        "counted. ITL: gaps between token events, pooled over requests.",
        "Percentiles: linear interpolation over successes; failures are shown apart and in the "
        "adjusted view as infinite. Rates: what arrived inside the window / its length.",
        f"Knees: capacity and memory from the server's own gauges; latency good = at least "
        f"{percent_text(wanted_share(work))} of the requests meet the SLO"
        + (f" ({slo_text(slo)})" if slo_text(slo) else " (none was asked for)")
        + f"; throughput good = at least {percent_text(GAIN_PER_DOUBLING)} more output tokens/s "
        f"per doubling of {AXES[work.loop]}.",
        *_sure_lines(work),
        _clock_line(summary),
        calibration_line(summary),
    ]
    return lines + _memory_lines(summary)


def _sure_lines(work: Workload) -> list[str]:
    """How steady stretches and intervals are found."""
    lines = [
        "Steady: the longest stretch of a window with full load in which neither throughput nor "
        "TTFT nor KV usage trends by more than 5 % (a steady window is said to trend in at most 5 "
        "of 100 cases). The figures stay those of the whole window.",
        "Intervals of 95 %: Wilson's for shares; for rates, blocks of neighbouring requests drawn "
        "again within their level.",
    ]
    if work.open_loop is not None:
        lines[1] = "Intervals of 95 %: Wilson's for shares."
    return lines


def calibration_line(summary: RunSummary) -> str:
    """What is known of this client's own error on its machine."""
    facts = summary.manifest.environment
    when, rate = facts.get("calibrated_at"), facts.get("calibrated_tokens_per_s")
    if when is None:
        return "Client: not calibrated on its machine; kvknee calibrate tells its own error."
    if "calibration_unused" in facts:
        return (
            f"Client: its calibration of {when} is not used, for since then changed: "
            f"{facts['calibration_unused']}."
        )
    if not isinstance(rate, int | float):
        return f"Client: at no rate found right to 1 ms on its machine (kvknee calibrate, {when})."
    return (
        f"Client: its p99 errors of TTFT and ITL stay within 1 ms up to {number(rate)} token "
        f"events/s in one process of its machine (kvknee calibrate, {when})."
    )


def _closed_lines(work: Workload) -> list[str]:
    return [
        f"Load: closed loop, users = level, {lengths_text(work)} a request, {work.endpoint}, "
        f"seed {work.seed}; the backends alternate level by level.{_soak_text(work)}",
        *ask_lines(work),
        "Window: opens when every user has completed a request; counted are the requests sent "
        "until it closes, followed to their end while the users keep sending. Ramp, warm-up and "
        "drain are left out. Full: all users in flight for "
        f"{percent_text(FULL_SHARE)} of the time, pauses up to {duration_text(RESPAWN_GAP_S)} "
        f"ignored. A level with fewer than {percent_text(LOAD_SHARE)} of its users in flight on "
        "average gives no verdict; pauses after failed requests do not count against it.",
    ]


def _soak_text(work: Workload) -> str:
    if work.soak is None:
        return ""
    return (
        f" {counted(work.repeats, 'stretch', 'stretches')} with pauses of "
        f"{duration_text(work.soak.rest_s)}; the client closes "
        f"{percent_text(work.soak.cancel_share)} of the streams before their end."
    )


def _open_lines(work: Workload, asked: OpenLoop) -> list[str]:
    limit = asked.max_concurrency
    text = f"Load: open loop, {_arrivals(work, asked)}, {work.endpoint}, seed {work.seed}"
    if limit is not None:
        text += f"; at most {limit} in flight, what is due beyond it waits in order"
    return [
        f"{text}; every backend gets the same requests at the same times.",
        f"Window: opens {duration_text(asked.warmup_s)} after the level's start and closes when "
        "the schedule says so; counted are the requests due in it, however late they left, "
        "followed to their end while others go on being sent. Lateness: sent - due. TTFT from "
        "intended: first token's arrival - due. Over-saturated: what is due and not ended grows "
        f"from quarter to quarter of the window, by more than {percent_text(GROWTH_SHARE)} of "
        f"what came due and {GROWTH_SIGMAS:g} times its square root.",
    ]


def _arrivals(work: Workload, asked: OpenLoop) -> str:
    if asked.trace is not None:
        trace = asked.trace
        end = "its end" if trace.end_s is None else f"{trace.end_s:g} s"
        shared = "with its shared prefixes" if trace.shared_prefixes else "without shared prefixes"
        return (
            f"{counted(trace.requests, 'request')} of {trace.name} (SHA-256 {trace.sha256[:12]}) "
            f"from {trace.start_s:g} s to {end}, time scale {trace.time_scale:g}, {shared}"
        )
    gaps = "equal gaps" if asked.burstiness is None else f"burstiness {asked.burstiness:g}"
    if asked.burstiness == 1.0:
        gaps = "Poisson arrivals"
    rate = "level = requests/s"
    if asked.ramp is not None:
        ramp = asked.ramp
        rate = (
            f"{ramp.strategy} ramp from {ramp.start_rps:g} to {ramp.end_rps:g} requests/s in "
            f"{ramp.seconds:g} s"
        )
    return f"{rate}, {gaps}, {work.prompt_tokens} prompt and {work.output_tokens} output tokens"


def _clock_line(summary: RunSummary) -> str:
    shares = [
        cell.latency.kernel_clock_share
        for cell in summary.cells
        if cell.latency.kernel_clock_share is not None
    ]
    if not shares:
        return "Clock: no token arrived."
    if min(shares) == 1.0:
        return "Clock: kernel receive time stamps on every read of every request."
    if max(shares) == 0.0:
        return "Clock: the monotonic clock; no request had kernel receive time stamps throughout."
    return (
        f"Clock: kernel receive time stamps on every read of at least {percent_text(min(shares))} "
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
            f"Memory of {info.name}: from {_SOURCES.get(found[0].source, found[0].source)}, "
            f"{counted(samples, 'sample')} inside the windows{_interval(found)}."
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


def _interval(found: list[MemoryFigures]) -> str:
    """How far apart the samples really lie: a Prometheus server keeps its own interval."""
    gaps = [item.interval_s for item in found if item.interval_s is not None]
    return f", one every {number(median(gaps))} s (median gap)" if gaps else ""
