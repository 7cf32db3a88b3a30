"""A knee search's answer in every report: the headline, why, what speaks against it, what to do."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence

import pytest
from rich.console import Console

from harness.analysis.run import analyse
from harness.analysis.summary_types import RunSummary
from harness.plan.search_events import found_detail, verdict_detail
from harness.plan.search_types import Found, LevelVerdict
from harness.records import EventKind, RunEvent, Scalar
from harness.report.html import html_report
from harness.report.markdown import markdown_report
from harness.report.search_lines import search_answers, search_lines
from harness.report.summary_json import summary_object
from harness.report.terminal import print_summary
from tests.support.fake_records import cell_of
from tests.support.fake_server import PAGED, FakeServer, paged_info
from tests.support.run_builder import build_run

FULL = LevelVerdict(32.0, "capacity", "bad", 0.9, 0.7, 0.97, 0.1, 20, "kv_memory", ("a <b>",))
CAPACITY = Found(
    "paged", "capacity", "found", 25.0, 26.0, 24.0, 25.0, "kv_memory",
    ("requests wait for KV memory in 9 of 17 samples", "the pool is up to 98 % <b>full</b>"),
)  # fmt: skip
SLOW = Found(
    "paged", "slo", "found", 16.0, 17.0, 15.0, None, "compute",
    ("85.6 % of 201 requests meet the SLO",), ("requests wait in 2 of 37 samples", "|pipes|"),
)  # fmt: skip


def searched(*found: Found, server: FakeServer = PAGED) -> RunSummary:
    """A run of two levels that found this."""
    run = build_run((server,), (16, 32), (100, 100))
    at = run.events[-1].t_s

    def event(kind: EventKind, detail: dict[str, Scalar], level: int | None = None) -> RunEvent:
        cell = None if level is None else cell_of(server, level)
        return RunEvent(t_s=at, kind=kind, cell=cell, detail=detail)

    run.events[-1:-1] = [
        event("level_verdict", verdict_detail(FULL), 32),
        *(event("search_found", found_detail(item, ())) for item in found),
    ]
    return analyse(run.manifest, run.records, run.events, run.series)


@pytest.fixture(scope="module")
def summary() -> RunSummary:
    return searched(CAPACITY, SLOW)


def printed(summary: RunSummary) -> list[str]:
    out = io.StringIO()
    print_summary(summary, Console(file=out, width=100, color_system=None))
    return out.getvalue().splitlines()


def follows(lines: Sequence[str], wanted: Sequence[str]) -> bool:
    at = lines.index(wanted[0])
    return list(lines[at : at + len(wanted)]) == list(wanted)


LINE = (
    "holds 25 at 512+128 tokens (95 % interval 24-25 by the knee search), KV-bound, predicted 25; "
    "meets TTFT p95 500 ms and TPOT p95 50 ms up to 16 (95 % interval 15 or more by the knee "
    "search)"
)


def test_one_answer_in_every_headline(summary: RunSummary) -> None:
    assert markdown_report(summary).split("##")[0].count(f"**paged: {LINE}**") == 1
    page = html_report(summary)
    assert LINE in page and '<span class="big">25</span>' in page
    assert "<li>how sure <b>95 % interval 24-25 by the knee search</b></li>" in page
    assert "between 25 and 26, KV memory (95 % interval 24-25 by the knee search)" in page
    assert " ".join(printed(summary)).replace("  ", " ").count("holds 25") == 2
    verdict = summary_object(summary)["verdicts"][0]
    assert verdict["text"] == f"paged: {LINE}"
    assert verdict["capacity"]["searched"] == "found"
    assert verdict["latency"]["interval"] == [15.0, None]
    assert json.dumps(verdict)


def test_both_sides_of_each_cause_in_the_terminal(summary: RunSummary) -> None:
    assert follows(
        printed(summary),
        [
            "paged holds 25 requests at once (95 % interval 24-25), limited by KV memory",
            "  for: requests wait for KV memory in 9 of 17 samples",
            "  for: the pool is up to 98 % <b>full</b>",
            "  against: (nothing speaks against it)",
            "paged: start it with --max-num-seqs 25",
            "paged meets the SLO up to 16 requests at once (95 % interval 15 or more), limited by "
            "compute",
            "  for: 85.6 % of 201 requests meet the SLO",
            "  against: requests wait in 2 of 37 samples",
            "  against: |pipes|",
        ],
    )


def test_both_sides_of_each_cause_in_markdown(summary: RunSummary) -> None:
    section = markdown_report(summary).split("## Knee search")[1].split("\n## ")[0]
    # under the table
    _, _, below = section.partition("Why, and what speaks against it:")
    assert "|" in section and below
    assert below.strip().split("\n") == [
        "- paged, capacity, 26 at once: KV memory",
        "  - for: requests wait for KV memory in 9 of 17 samples",
        "  - for: the pool is up to 98 % &lt;b&gt;full&lt;/b&gt;",
        "  - against: (nothing speaks against it)",
        "- paged, SLO, 17 at once: compute",
        "  - for: 85.6 % of 201 requests meet the SLO",
        "  - against: requests wait in 2 of 37 samples",
        "  - against: \\|pipes\\|",
    ]


def test_both_sides_of_each_cause_on_the_page(summary: RunSummary) -> None:
    page = html_report(summary)
    below = page.split("<h3>Why, and what speaks against it</h3>")[1].split("<h2>")[0]
    assert '<div class="where">paged, capacity, 26 at once: KV memory</div>' in below
    assert "<li>for: the pool is up to 98 % &lt;b&gt;full&lt;/b&gt;</li>" in below
    assert "<li>against: (nothing speaks against it)</li>" in below
    assert "<li>against: |pipes|</li>" in below
    # and in the backend's own rows of knees
    assert "<li>against KV memory: (nothing speaks against it)</li>" in page
    assert "<li>against compute: requests wait in 2 of 37 samples</li>" in page


def test_without_a_cause_no_side_is_taken() -> None:
    none = Found("paged", "capacity", "not_reached", 32.0, None, 32.0, None, None, ("free",))
    summary = searched(none)
    assert "what speaks against it" not in markdown_report(summary) + html_report(summary)
    (answer,) = search_answers(summary)
    assert answer.reasons is None
    assert answer.advice == "paged: no limit is needed up to 32 requests at once"


def test_a_server_of_no_known_kind_is_told_in_words() -> None:
    other = FakeServer(paged_info(kind="openai", mode="default"), seats=25)
    summary = searched(CAPACITY, server=other)
    wanted = (
        "paged: let in at most 25 requests at once: set your server's own limit, or a proxy's "
        "before it"
    )
    assert search_lines(summary)[-1] == wanted
    assert wanted in printed(summary)
