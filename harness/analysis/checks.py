"""Findings about one cell: what is off, how much it weakens the figures, and what to do.

A small sample is no finding (the mark stands beside the figure), and neither is a healthy
run on a busy machine: every threshold here was chosen to stay silent on both.
"""

from __future__ import annotations

from harness.analysis.cell_facts import CellFacts
from harness.analysis.checks_bursts import burst_findings
from harness.analysis.checks_client import client_findings
from harness.analysis.checks_memory import memory_findings
from harness.analysis.checks_open import open_findings
from harness.analysis.checks_server import server_findings
from harness.analysis.checks_stamps import stamp_findings
from harness.analysis.checks_steady import steady_findings
from harness.analysis.failing import failed_text
from harness.analysis.summary_types import CellFigures
from harness.analysis.windows import FULL_SHARE, LOAD_SHARE
from harness.kv.units import counted
from harness.manifest import Manifest
from harness.observe.series import BackendSeries
from harness.records import Finding

#: Requests beyond this share must show a defect before it is worth a finding.
DEFECT_SHARE = 0.01
#: Reasons with which a level ends by its own limits.
_OWN_ENDS = frozenset({"complete", "time_limit"})
_RUN_AGAIN = "Run it again to the end."


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
        steady_findings(figures),
        client_findings(figures, manifest),
        server_findings(figures),
        open_findings(figures),
        burst_findings(figures, manifest),
        stamp_findings(figures, facts, manifest),
        _timelines(figures),
        _token_counts(figures, facts),
        _ignored_events(figures, facts),
        memory_findings(figures, series, manifest),
    )
    return [finding for group in checks for finding in group]


def _failures(figures: CellFigures) -> list[Finding]:
    counts = figures.counts
    if not counts.failed:
        return []
    said = next((e for e in counts.errors if e.outcome != "cancelled" and e.text), None)
    quote = f' The first: "{said.text}".' if said is not None else ""
    return [
        Finding(
            code="failures",
            severity="warning",
            text=f"{failed_text(counts)}.{quote}",
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
                text="No request was completed, so nothing could be measured."
                if window.users <= 1
                else f"Not every one of the {window.users} users completed a request, so "
                "nothing could be measured.",
                remedy="Give the level more time (--max-level-seconds) or fewer tokens."
                if _ran_out(figures)
                else _RUN_AGAIN,
                cell=figures.cell,
            )
        ]
    if asked is None or figures.counts.sent >= asked:
        return []
    why = "The time limit closed the window" if window.reason == "time_limit" else "It closed"
    if not _ran_out(figures):
        why = "The run ended"
    return [
        Finding(
            code="too_few_requests",
            severity="warning",
            text=f"{why} after {figures.counts.sent} of {counted(asked, 'counted request')}.",
            remedy="Give the level more time (--max-level-seconds)."
            if _ran_out(figures)
            else _RUN_AGAIN,
            cell=figures.cell,
        )
    ]


def _ran_out(figures: CellFigures) -> bool:
    """Whether a level ended by its own limits; an interruption or a loss needs no more time."""
    reason = figures.window.reason
    if figures.window.closed_by == "event":
        return True
    return reason in _OWN_ENDS


def underloaded(figures: CellFigures) -> bool:
    """Whether far fewer requests were in flight than asked for.

    A user whose request fails pauses before the next one; that is the server's doing, and
    ``load_share`` takes no account of it.
    """
    share = figures.window.load_share
    return share is not None and share < LOAD_SHARE and figures.window.closed_by == "event"


def _fullness(figures: CellFigures) -> list[Finding]:
    share = figures.window.full_share
    if share is None or share >= FULL_SHARE or figures.window.closed_by != "event":
        return []
    users, invalid = figures.window.users, underloaded(figures)
    mean = figures.throughput.mean_in_flight or 0.0
    which = "The one request was" if users == 1 else f"All {users} requests were"
    text = (
        f"{which} in flight for only {share * 100:.1f} % of the window (mean {mean:.2f}); the "
        "level was less loaded than its name says"
    )
    if invalid:
        text += f" (below {LOAD_SHARE * 100:.0f} % of it on average), so it gives no verdict"
    return [
        Finding(
            code="window_not_full",
            severity="invalid" if invalid else "warning",
            text=f"{text}.",
            remedy="Look for failing requests or a client that is too slow to send the next one.",
            cell=figures.cell,
        )
    ]


def _timelines(figures: CellFigures) -> list[Finding]:
    broken = figures.latency.broken_timelines
    if not broken:
        return []
    return [
        Finding(
            code="broken_timelines",
            severity="warning",
            text=f"{counted(broken, 'request')} with times that contradict each other (0 < TTFT "
            "<= E2E fails), left out of the latencies.",
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
                text=f"The server gave no token count for {facts.estimated} of "
                f"{counted(facts.counted, 'request')}; theirs are the client's estimate, and so "
                "are TPOT and tokens/s.",
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
                f"{_asked_prompt(figures)} were asked for; memory uses the server's count.",
                remedy="Send token ids, or calibrate the prompts for the model's chat template.",
                cell=figures.cell,
            )
        )
    return found


def _asked_prompt(figures: CellFigures) -> str:
    found = figures.open_loop
    return "others" if found is not None and found.replayed else str(figures.cell.prompt_tokens)


def _ignored_events(figures: CellFigures, facts: CellFacts) -> list[Finding]:
    if not facts.ignored_events:
        return []
    return [
        Finding(
            code="ignored_events",
            severity="note",
            text=f"{counted(facts.ignored_events, 'stream event')} carried no JSON (keep-alives "
            "wrapped as data, or text that is no UTF-8) and counted neither as a token nor as "
            "an error.",
            remedy="Nothing to do, unless tokens are missing: then look at what the server sends.",
            cell=figures.cell,
        )
    ]
