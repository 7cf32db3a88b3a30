"""The analysis of an open loop: window, rates, backlog, and what is no finding there."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from harness.analysis.checks_run import prompt_findings
from harness.analysis.open_loop import over_saturated, slot_free_s
from harness.analysis.run import analyse
from harness.analysis.summary_types import RunSummary
from harness.analysis.table import build_tables
from harness.manifest import Manifest
from harness.records import CellKey, RequestRecord, RunEvent, Scalar
from harness.report.html import html_report
from harness.report.markdown import markdown_report
from harness.report.method import method_lines
from harness.report.words import verdict_line
from harness.workload import OpenLoop, TraceSource
from tests.support.fake_records import record
from tests.support.fake_server import PAGED
from tests.support.run_builder import build_run, manifest

CELL = CellKey(PAGED.info.name, PAGED.info.mode, 512, 128, 4.0)
TRACE = TraceSource(
    name="t.jsonl",
    sha256="ab" * 32,
    start_s=0.0,
    end_s=None,
    time_scale=0.5,
    max_prompt_tokens=1000,
    max_output_tokens=None,
    over_length="clip",
    requests=40,
    shortened=3,
    skipped=0,
    shared_prefixes=True,
)


def open_manifest(loop: OpenLoop | None = None, **changes: object) -> Manifest:
    plain = manifest([PAGED], (4.0,), (40,), **changes)  # type: ignore[arg-type]
    work = msgspec.structs.replace(plain.workload, open_loop=loop or OpenLoop())
    return msgspec.structs.replace(plain, workload=work)


def records(late_s: float = 0.001) -> list[RequestRecord]:
    """4/s for 12 s: due at 100.25, 100.5, ..., 112; each ends 0.7 s after it was sent."""
    return [
        record(
            CELL,
            n,
            t_intended_s=100 + 0.25 * (n + 1),
            t_sent_s=100 + 0.25 * (n + 1) + late_s,
            t_end_s=100 + 0.25 * (n + 1) + late_s + 0.7,
        )
        for n in range(48)
    ]


def events(end: dict[str, Scalar], *, close: bool = True) -> list[RunEvent]:
    detail = {"rate_rps": 4.0, "open_s": 2.0, "close_s": 12.0}
    found = [RunEvent(t_s=100.0, kind="level_start", cell=CELL, detail={**detail})]
    if close:
        found.append(
            RunEvent(t_s=112.0, kind="window_close", cell=CELL, detail={"reason": "complete"})
        )
    return [*found, RunEvent(t_s=113.0, kind="level_end", cell=CELL, detail=end)]


COMPLETE: dict[str, Scalar] = {"reason": "complete"}


def run(late_s: float = 0.001) -> RunSummary:
    return analyse(open_manifest(), records(late_s), events(COMPLETE), {})


def codes(summary: RunSummary) -> set[str]:
    return {finding.code for finding in summary.findings} - {"memory_unavailable"}


def test_a_level_and_its_figures() -> None:
    """In [102, 112] 41 requests are due, one every 0.25 s, both ends included.

    Sent 1 ms late: the last at 112.001, so 41 / 10.001 a second. In flight: 0.7 s each at
    4/s, 2.8 on average.
    """
    summary = run()
    (figures,) = summary.cells
    assert (figures.window.span, figures.window.complete) == ((102.0, 112.0), True)
    assert figures.counts.sent == 41
    found = figures.open_loop
    assert found is not None
    assert found.rate_due_rps == pytest.approx(4.1)
    assert found.rate_sent_rps == pytest.approx(41 / 10.001)
    assert found.lateness_s.value(50) == pytest.approx(0.001)
    assert figures.latency.ttft_s.value(50) == pytest.approx(0.5)
    assert figures.latency.ttft_intended_s.value(50) == pytest.approx(0.501)
    assert figures.throughput.mean_in_flight == pytest.approx(2.8, abs=0.01)
    assert figures.throughput.max_in_flight == 3
    assert (found.over_saturated, found.kept_back, found.unsent) == (False, 0, 0)
    # nothing of a closed loop
    assert figures.window.full_share is figures.window.load_share is figures.window.ramp_s is None
    assert codes(summary) == set()


def test_what_left_late_counts_where_it_was_due() -> None:
    """2 s late, all of them: the window holds the same 41 requests."""
    summary = run(late_s=2.0)
    (figures,) = summary.cells
    assert figures.counts.sent == 41
    assert figures.latency.ttft_intended_s.value(50) == pytest.approx(2.5)
    # nobody told the client to wait: it is the limit
    assert figures.client.bound
    assert {"client_bound", "sent_late"} <= codes(summary)
    assert figures.unjudged == "the client was the limit"


def test_a_run_that_was_cut_short() -> None:
    told = events({"reason": "interrupted", "unsent": 5}, close=False)
    summary = analyse(open_manifest(), records(), told, {})
    (figures,) = summary.cells
    assert figures.unjudged == "the run ended before its window closed"
    assert figures.open_loop is not None
    assert (figures.open_loop.unsent, figures.open_loop.due) == (5, 46)
    assert "unsent" in codes(summary)


def test_without_events_the_window_never_opened() -> None:
    summary = analyse(open_manifest(), records(), [], {})
    (figures,) = summary.cells
    assert (figures.window.span, figures.counts.sent) == (None, 0)
    assert figures.unjudged == "its window never opened"


def test_when_a_request_could_go() -> None:
    """At most 2 in flight: the third can go at the first end, the fourth at the second."""
    times = [(0.0, 5.0), (1.0, 3.0), (2.0, 4.0), (2.5, 6.0)]
    made = [
        record(CELL, n, t_intended_s=due, t_sent_s=due, t_end_s=end)
        for n, (due, end) in enumerate(times)
    ]
    table = build_tables(made)[CELL]
    assert slot_free_s(table, 2).tolist() == [-math.inf, -math.inf, 3.0, 4.0]
    assert np.isneginf(slot_free_s(table, None)).all()
    assert np.isneginf(slot_free_s(table, 4)).all()


@pytest.mark.parametrize(
    ("outstanding", "growth", "due", "expected"),
    [
        ((1.0, 5.0, 9.0, 13.0), 31, 100, True),
        # 3 x sqrt(100) = 30 may be chance
        ((1.0, 5.0, 9.0, 13.0), 30, 100, False),
        # a tenth of 1,000 is 100, more than 3 x sqrt(1,000) = 95
        ((1.0, 5.0, 9.0, 13.0), 100, 1000, False),
        ((1.0, 5.0, 9.0, 13.0), 101, 1000, True),
        # it came and went
        ((1.0, 9.0, 8.0, 13.0), 101, 1000, False),
        ((), 0, 0, False),
    ],
)
def test_over_saturation_is_a_rise_beyond_chance(
    outstanding: tuple[float, ...], growth: int, due: int, expected: bool
) -> None:
    assert over_saturated(outstanding, growth, due) is expected


def test_a_replay_says_what_was_cut_and_may_share_prompts() -> None:
    same = [msgspec.structs.replace(r, prompt_hash="same") for r in records()]
    told = events(COMPLETE)
    plain = analyse(open_manifest(), same, told, {})
    assert "prompts_not_unique" in codes(plain)
    assert prompt_findings("a", list(build_tables(same).values()))
    summary = analyse(open_manifest(OpenLoop(burstiness=None, trace=TRACE)), same, told, {})
    assert codes(summary) == {"trace_cut"}
    (cut,) = (f for f in summary.findings if f.code == "trace_cut")
    assert cut.text == (
        "t.jsonl is not replayed as it is: 3 of its 40 requests were made shorter (clip)."
    )
    assert (
        "40 requests of t.jsonl (SHA-256 abababababab) from 0 s to its end"
        in (method_lines(summary)[0])
    )


def test_the_report_speaks_of_rates() -> None:
    closed = build_run([PAGED])
    series = {PAGED.info.name: closed.series[PAGED.info.name]}
    told = [msgspec.structs.replace(e, t_s=e.t_s + 950) for e in events(COMPLETE)]
    moved = [
        msgspec.structs.replace(
            r,
            t_intended_s=r.t_intended_s + 950,
            t_sent_s=(r.t_sent_s or 0) + 950,
            t_end_s=r.t_end_s + 950,
        )
        for r in records()
    ]
    summary = analyse(open_manifest(), moved, told, series)
    (verdict,) = summary.verdicts
    line = verdict_line(verdict, summary.manifest.slo)
    assert "4 requests/s" in line
    assert "predicted" not in line
    html, text = html_report(summary), markdown_report(summary)
    for words in ("requests/s (log scale)", "Speed against request rate", "Open loop"):
        assert words in html
    assert "concurrent requests" not in html
    assert "| rate (/s) | due (/s) | sent (/s) | intended p50 (ms) |" in text
    assert "Poisson arrivals" in text
    assert "c4" not in text
