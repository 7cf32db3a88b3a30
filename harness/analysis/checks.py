"""Findings about one cell: what is off, how much it weakens the figures, and what to do.

A small sample is no finding (the mark stands beside the figure), and neither is a healthy
run on a busy machine: every threshold here was chosen to stay silent on both.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.analysis.checks_memory import memory_findings
from harness.analysis.summary_types import COALESCED_LIMIT, CellFigures
from harness.analysis.windows import FULL_SHARE
from harness.observe.series import BackendSeries
from harness.records import Finding, Manifest

#: Requests beyond this share must show a defect before it is worth a finding.
DEFECT_SHARE = 0.01


@dataclass(frozen=True)
class CellFacts:
    """What the checks need of a cell beyond its figures: counted requests by defect."""

    counted: int
    estimated: int
    buffered: int
    clock_steps: int
    largest_step_s: float
    prompt_mismatches: int
    prompt_counts: tuple[float, float] | None


def cell_findings(
    figures: CellFigures,
    facts: CellFacts,
    series: BackendSeries | None,
    manifest: Manifest,
) -> list[Finding]:
    """Findings about one cell."""
    checks = (
        _failures(figures),
        _window(figures),
        _fullness(figures),
        _client(figures),
        _stamps(figures, facts),
        _timelines(figures),
        _token_counts(figures, facts),
        memory_findings(figures, series, manifest),
    )
    return [finding for group in checks for finding in group]


def _failures(figures: CellFigures) -> list[Finding]:
    counts = figures.counts
    if not counts.failed:
        return []
    kinds = ", ".join(f"{n} {name}" for name, n in counts.by_class if name != "cancelled")
    said = next((e for e in counts.errors if e.outcome != "cancelled" and e.text), None)
    quote = f' The server or system said: "{said.text}".' if said is not None else ""
    return [
        Finding(
            code="failures",
            severity="warning",
            text=f"{counts.failed} of {counts.ok + counts.failed} requests failed: {kinds}.{quote}",
            remedy="Latencies are those of the successes; the failure-adjusted percentiles "
            "count the rest. Find the cause in the server's log.",
            cell=figures.cell,
        )
    ]


def _window(figures: CellFigures) -> list[Finding]:
    window, asked = figures.window, figures.min_requests
    if window.span is None:
        return [
            Finding(
                code="window_never_opened",
                severity="invalid",
                text=f"Not every one of the {window.users} users completed a request, so "
                "nothing could be measured.",
                remedy="Give the level more time (--max-level-seconds) or fewer tokens.",
                cell=figures.cell,
            )
        ]
    if asked is None or figures.counts.sent >= asked:
        return []
    why = "The time limit closed the window" if window.reason == "time_limit" else "It closed"
    if window.closed_by != "event":
        why = "The run ended"
    return [
        Finding(
            code="too_few_requests",
            severity="warning",
            text=f"{why} after {figures.counts.sent} of {asked} counted requests.",
            remedy="Give the level more time (--max-level-seconds).",
            cell=figures.cell,
        )
    ]


def _fullness(figures: CellFigures) -> list[Finding]:
    share = figures.window.full_share
    if share is None or share >= FULL_SHARE or figures.window.closed_by != "event":
        return []
    mean = figures.throughput.mean_in_flight or 0.0
    return [
        Finding(
            code="window_not_full",
            severity="warning",
            text=f"All {figures.window.users} requests were in flight for only "
            f"{share * 100:.1f} % of the window (mean {mean:.2f}); the level was "
            "less loaded than its name says.",
            remedy="Look for failing requests or a client that is too slow to send the next one.",
            cell=figures.cell,
        )
    ]


def _client(figures: CellFigures) -> list[Finding]:
    if not figures.client.bound:
        return []
    return [
        Finding(
            code="client_bound",
            severity="invalid",
            text=f"The load generator was the limit: {'; '.join(figures.client.bound_by)}.",
            remedy="Give it a core of its own or another machine; this level gives no verdict.",
            cell=figures.cell,
        )
    ]


def _stamps(figures: CellFigures, facts: CellFacts) -> list[Finding]:
    found: list[Finding] = []
    latency = figures.latency
    for trusted, share, what in (
        (latency.itl_trusted, latency.coalesced_share, "token events share a read: ITL"),
        (latency.ttft_trusted, latency.first_coalesced_share, "first tokens share a read: TTFT"),
    ):
        if not trusted:
            found.append(
                Finding(
                    code="coalesced",
                    severity="warning",
                    text=f"{(share or 0) * 100:.1f} % of the {what} is an upper bound and not "
                    f"trusted (limit {COALESCED_LIMIT * 100:.0f} %).",
                    remedy="Take proxies out of the way and give the client a free core.",
                    cell=figures.cell,
                )
            )
    if facts.clock_steps:
        found.append(
            Finding(
                code="clock_step",
                severity="warning",
                text=f"The wall clock stepped during {facts.clock_steps} requests (by up to "
                f"{facts.largest_step_s:.3f} s); their kernel time stamps are doubtful.",
                remedy="Let the clock settle (NTP slewing, no manual change) and repeat the level.",
                cell=figures.cell,
            )
        )
    if facts.counted and facts.buffered / facts.counted > DEFECT_SHARE:
        found.append(
            Finding(
                code="buffered_stream",
                severity="warning",
                text=f"{facts.buffered} of {facts.counted} streams arrived nearly all at once at "
                "their end: something between buffers them, so TTFT and ITL are its figures.",
                remedy="Switch off buffering and compression in proxies, or ask the server itself.",
                cell=figures.cell,
            )
        )
    return found


def _timelines(figures: CellFigures) -> list[Finding]:
    broken = figures.latency.broken_timelines
    if not broken:
        return []
    return [
        Finding(
            code="broken_timelines",
            severity="warning",
            text=f"{broken} requests have times that contradict each other (0 < TTFT <= E2E "
            "fails) and are left out of the latencies.",
            remedy="Check the clocks of the client's machine; if it happens again, report it.",
            cell=figures.cell,
        )
    ]


def _token_counts(figures: CellFigures, facts: CellFacts) -> list[Finding]:
    found: list[Finding] = []
    if facts.estimated:
        found.append(
            Finding(
                code="tokens_estimated",
                severity="warning",
                text=f"The server gave no token count for {facts.estimated} of {facts.counted} "
                "requests; theirs are the client's estimate, and so are TPOT and tokens/s.",
                remedy="Use a server that answers stream_options.include_usage.",
                cell=figures.cell,
            )
        )
    if facts.counted and facts.prompt_mismatches / facts.counted > DEFECT_SHARE:
        low, high = facts.prompt_counts or (0, 0)
        found.append(
            Finding(
                code="prompt_tokens_differ",
                severity="warning",
                text=f"The server counted {low:g} to {high:g} prompt tokens where "
                f"{figures.cell.prompt_tokens} were asked for; memory uses the server's count.",
                remedy="Send token ids, or calibrate the prompts for the model's chat template.",
                cell=figures.cell,
            )
        )
    return found
