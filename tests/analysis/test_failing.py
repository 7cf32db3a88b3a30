"""A level whose requests fail is not held, however empty the server's queue is."""

from __future__ import annotations

import errno
import os
from dataclasses import replace

import msgspec
import pytest

from harness.analysis.failing import ALLOWED, failing
from harness.analysis.knee import judge_backend
from harness.analysis.level_verdict import judge_level
from harness.analysis.run import analyse
from harness.analysis.summary_types import CellFigures
from harness.analysis.table import ErrorText
from harness.plan.search_text import level_line
from harness.plan.search_types import LevelVerdict
from harness.workload import Slo
from tests.analysis.test_level_verdict import SLO, cell, counts
from tests.support.fake_server import PAGED, paged_info
from tests.support.run_builder import build_run

NO_PORT = os.strerror(errno.EADDRNOTAVAIL)


@pytest.fixture(scope="module")
def template() -> CellFigures:
    run = build_run((PAGED,), (4,), (100,))
    return analyse(run.manifest, run.records, run.events, run.series).cells[0]


def failed(
    figures: CellFigures, failures: int, kind: str = "timeout", text: str | None = None
) -> CellFigures:
    """Of its 100 requests so many have failed."""
    return replace(
        figures,
        counts=replace(
            figures.counts,
            ok=100 - failures,
            failed=failures,
            by_class=((kind, failures),),
            errors=(ErrorText(kind, None, text, failures),),
        ),
    )


def never_opened(figures: CellFigures, reason: str) -> CellFigures:
    return replace(
        figures,
        window=replace(figures.window, open_s=None, close_s=None, closed_by="never", reason=reason),
        unjudged="its window never opened",
    )


def capacity(figures: CellFigures, max_failure_rate: float = ALLOWED) -> LevelVerdict:
    return judge_level(figures, Slo(), max_failure_rate=max_failure_rate)[0]


def test_a_server_of_which_every_request_times_out_holds_nothing() -> None:
    """Records as they are written: at 8 all time out, and no request waits for a seat."""
    run = build_run((PAGED,), (4, 8), (100, 100))
    records = [
        msgspec.structs.replace(r, outcome="timeout", token_us=(), output_tokens=None)
        if r.cell.level == 8
        else r
        for r in run.records
    ]
    manifest = msgspec.structs.replace(run.manifest, max_failure_rate=0.01)
    summary = analyse(manifest, records, run.events, run.series)
    bad = capacity(summary.cells[1])
    assert (bad.state, bad.cause) == ("bad", "failures")
    assert capacity(summary.cells[0]).cause != "failures"
    n = summary.cells[1].counts.failed
    assert bad.evidence[0] == f"{n} of {n} requests failed: {n} timeout"
    assert bad.strength > 6.635
    line = level_line(summary.cells[1].cell, (bad,), "closed")
    assert "bad, requests kept out in 0 %" in line
    assert line.endswith("(failing requests)")
    # the report's own knee says the same
    knee = summary.verdicts[0].capacity
    assert (knee.last_good, knee.first_bad, knee.cause) == (4, 8, "failures")


def test_one_that_fails_by_chance_is_no_verdict(template: CellFigures) -> None:
    """Of 100, 3 exclude 1 % (from 1.03 % on), 2 do not (0.55 %)."""
    assert capacity(failed(cell(template), 2)).state == "good"
    assert capacity(failed(cell(template), 3)).state == "bad"
    # one in a hundred is the least that a level can tell
    assert capacity(failed(cell(template), 2), max_failure_rate=0.0).state == "good"


def test_what_may_fail_is_what_the_run_allows(template: CellFigures) -> None:
    some = failed(cell(template), 15)
    assert capacity(some).state == "bad"
    # from 9.3 to 23.3 %
    assert capacity(some, max_failure_rate=0.1).state == "good"
    # half of them and more is a collapse: 60 of 100 are more than 50.2 %
    assert capacity(failed(cell(template), 59), max_failure_rate=1.0).state == "good"
    assert capacity(failed(cell(template), 60), max_failure_rate=1.0).state == "bad"


def test_what_keeps_requests_out_stays_the_cause(template: CellFigures) -> None:
    full = counts(starved=50, waits=50)
    found = capacity(failed(cell(template, "kv_memory", full, usage=1.0), 30, "rejected"))
    assert (found.state, found.cause) == ("bad", "kv_memory")
    assert found.evidence[:2] == (
        "30 of 100 requests failed: 30 rejected",
        "requests wait for KV memory in 50 of 60 samples",
    )


def test_a_server_without_metrics_fails_too(template: CellFigures) -> None:
    blind = cell(template)
    blind = replace(blind, admission=replace(blind.admission, state="unknown", counts=None))
    found = capacity(failed(blind, 100, "rejected"))
    assert (found.state, found.cause, found.share) == ("bad", "failures", None)
    assert found.evidence == ("100 of 100 requests failed: 100 rejected",)
    line = level_line(blind.cell, (found,), "closed")
    assert line.endswith(": bad (failing requests)")


def test_too_few_ports_are_the_clients_limit(template: CellFigures) -> None:
    figures = failed(cell(template), 40, "connect", NO_PORT)
    for found in judge_level(figures, SLO):
        assert (found.state, found.cause) == ("undecided", "client")
        assert found.ceiling
    # a server that refuses connections is not
    refused = failed(cell(template), 40, "connect", os.strerror(errno.ECONNREFUSED))
    assert capacity(refused).cause == "failures"


def emptied(figures: CellFigures, mean_in_flight: float) -> CellFigures:
    """Users that pause after a failure leave the level emptier than its name says."""
    return replace(
        figures,
        window=replace(figures.window, load_share=mean_in_flight / figures.cell.level),
        unjudged="far fewer requests were in flight than asked for",
    )


def test_a_level_that_failures_empty_is_bad(template: CellFigures) -> None:
    """A proxy that lets 8 in answers 429 to the other users: half of them is in flight."""
    rejected = emptied(failed(cell(template), 60, "rejected"), 2.0)
    for found in judge_level(rejected, SLO):
        assert (found.state, found.cause) == ("bad", "failures")
        assert found.evidence == ("60 of 100 requests failed: 60 rejected",)
    # without failures it stays unknown what kept it empty
    for found in judge_level(emptied(cell(template), 2.0), SLO):
        assert (found.state, found.cause) == ("undecided", "unknown")
    bound = emptied(failed(cell(template), 60, "rejected"), 2.0)
    bound = replace(bound, client=replace(bound.client, bound_by=("one core is full",)))
    assert capacity(bound).cause == "client"


def test_the_slo_is_missed_by_what_fails(template: CellFigures) -> None:
    def missed(failures: int, attained: float) -> LevelVerdict:
        figures = failed(cell(template, slo_attainment=attained), failures)
        return judge_level(figures, SLO)[1]

    found = missed(60, 0.3)
    assert (found.state, found.cause) == ("bad", "failures")
    assert found.evidence == (
        "30.0 % of 100 requests meet the SLO",
        "60 of 100 requests failed: 60 timeout",
    )
    # of 70 that miss it 20 failed: the others were slow
    assert missed(20, 0.3).cause == "compute"


def test_before_the_window_opened(template: CellFigures) -> None:
    """A level that ends in its warm-up has no counted request; what has failed is there."""
    nothing = failed(never_opened(cell(template), "collapse"), 12, text="no answer")
    nothing = replace(nothing, counts=replace(nothing.counts, ok=0, failed=0, by_class=()))
    for found in judge_level(nothing, SLO):
        assert (found.state, found.cause, found.too_slow) == ("bad", "failures", False)
        assert found.evidence == ("no request succeeded before the window opened: 12 timeout",)
    slow = never_opened(cell(template), "time_limit")
    for found in judge_level(slow, SLO):
        assert (found.state, found.cause, found.too_slow) == ("undecided", "unknown", True)
        assert found.ceiling
    # one that was cut short says nothing
    for found in judge_level(never_opened(cell(template), "interrupted"), SLO):
        assert (found.state, found.ceiling) == ("undecided", False)
    assert failing(slow) is None


def test_the_reports_knee_sees_the_same(template: CellFigures) -> None:
    nothing = failed(never_opened(cell(template, level=8), "collapse"), 12)
    good, bad = cell(template), failed(cell(template, level=8), 100)
    for worse in (nothing, bad):
        knee = judge_backend(paged_info(), [good, worse], Slo()).capacity
        assert (knee.last_good, knee.first_bad, knee.cause) == (4, 8, "failures")
    port = failed(cell(template, level=8), 40, "connect", NO_PORT)
    knee = judge_backend(paged_info(), [good, port], Slo()).capacity
    assert (knee.status, knee.last_good) == ("not_reached", 4)
    some = failed(cell(template, level=8), 15)
    assert judge_backend(paged_info(), [some], Slo()).capacity.first_bad == 8
    allowed = judge_backend(paged_info(), [some], Slo(), max_failure_rate=0.1)
    assert allowed.capacity.first_bad is None
    late = judge_backend(paged_info(), [failed(cell(template, slo_attainment=0.0), 100)], SLO)
    assert late.latency.cause == "failures"
