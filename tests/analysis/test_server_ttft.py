"""The client's TTFT against the server's own histogram (B54)."""

from __future__ import annotations

import numpy as np
import pytest

from harness.analysis.run import analyse
from harness.analysis.summary_types import CellFigures, RunSummary
from harness.observe import names
from harness.observe.series import BackendSeries, Series
from harness.report.markdown import markdown_report
from harness.report.server_rows import server_columns
from harness.report.summary_json import cell_object
from tests.support.fake_server import PAGED
from tests.support.run_builder import Run, build_run, replace_series

#: what a request waits for its turn, by the server's own count
QUEUE_S = 0.010


def with_histogram(
    run: Run, ahead_s: float, foreign: int = 0, foreign_s: float = 0.0, restart_s: float = np.inf
) -> Run:
    """The server saw each TTFT ``ahead_s`` shorter; ``foreign`` requests a second are others'."""
    old = run.series["paged"]
    at = np.array(sorted(r.t_sent_s + r.token_us[0] * 1e-6 for r in run.records if r.t_sent_s))
    ttft = np.array(
        [r.token_us[0] * 1e-6 - ahead_s for r in sorted(run.records, key=_first_s) if r.t_sent_s]
    )
    clock = old.values[names.RUNNING].t_s
    n = np.searchsorted(at, clock, side="right")
    others = foreign * (clock - clock[0])
    counts = n + others
    sums = np.concatenate([[0.0], np.cumsum(ttft)])[n] + others * foreign_s
    after = clock > restart_s
    for values in (counts, sums):
        values[after] -= values[after][0] if after.any() else 0.0
    run.series["paged"] = replace_series(
        old,
        {
            names.TTFT_SECONDS_SUM: Series(clock, sums),
            names.TTFT_SECONDS_COUNT: Series(clock, counts),
            names.QUEUE_SECONDS_SUM: Series(clock, counts * QUEUE_S),
            names.QUEUE_SECONDS_COUNT: Series(clock, counts),
        },
    )
    return run


def _first_s(record: object) -> float:
    return record.t_sent_s + record.token_us[0] * 1e-6  # type: ignore[attr-defined, no-any-return]


def level(ahead_s: float, **changes: float) -> tuple[RunSummary, CellFigures]:
    run = with_histogram(build_run((PAGED,), (4,), (40,)), ahead_s, **changes)  # type: ignore[arg-type]
    summary = analyse(run.manifest, run.records, run.events, run.series)
    return summary, summary.cells[0]


def test_both_sides_are_told_over_the_same_requests() -> None:
    _, cell = level(0.005)
    both = cell.server_ttft
    assert both is not None
    # the same requests on both sides, each 5 ms longer here
    assert both.server_n == both.client_n > 40
    assert both.difference_s == pytest.approx(0.005)
    assert both.client_mean_s == pytest.approx(both.server_mean_s + 0.005)
    assert both.queue_mean_s == pytest.approx(QUEUE_S)


def test_the_scrapes_lie_around_the_window_inside_the_level() -> None:
    _, cell = level(0.0)
    both, window = cell.server_ttft, cell.window
    assert both is not None and window.span is not None
    assert (window.start_s or 0) <= both.start_s <= window.span[0] < both.start_s + 1.0
    assert both.end_s <= (window.end_s or 0)


def test_a_small_difference_is_shown_and_is_no_finding() -> None:
    summary, cell = level(0.005)
    assert summary.findings == ()
    table = markdown_report(summary)
    assert "TTFT of the server (mean ms)" in table
    assert cell_object(cell)["server_ttft"]["difference_s"] == pytest.approx(0.005)


def test_b54_time_outside_the_servers_clock_is_a_finding_with_its_queue_beside_it() -> None:
    # the server's own TTFT of 26 ms on average is 80 ms here: 54 ms are more than 50 ms, and
    # more than a quarter of the server's
    run = build_run((PAGED,), (4,), (40,))
    for index, record in enumerate(run.records):
        facts = {name: getattr(record, name) for name in record.__struct_fields__}
        longer = (record.token_us[0] + 54_000, *record.token_us[1:])
        run.records[index] = type(record)(
            **{**facts, "token_us": longer, "t_end_s": record.t_end_s + 0.054}
        )
    with_histogram(run, 0.054)
    summary = analyse(run.manifest, run.records, run.events, run.series)
    both = summary.cells[0].server_ttft
    assert both is not None and both.difference_s == pytest.approx(0.054)
    (finding,) = (f for f in summary.findings if f.code == "ttft_beyond_server")
    assert finding.severity == "note"
    assert "54 ms lie outside its clock (of its own 10 ms were queueing)" in finding.text


@pytest.mark.parametrize("ahead_s", [0.0, -0.010])
def test_a_server_that_claims_more_than_the_client_saw_is_no_finding(ahead_s: float) -> None:
    summary, cell = level(ahead_s)
    assert cell.server_ttft is not None
    assert cell.server_ttft.difference_s == pytest.approx(ahead_s)
    assert summary.findings == ()


def test_other_clients_requests_are_told_and_forbid_the_comparison() -> None:
    # two more requests a second, answered in 0: half as many again, so the means differ
    summary, cell = level(0.0, foreign=2, foreign_s=0.0)
    both = cell.server_ttft
    assert both is not None and both.server_n > 1.1 * both.client_n
    assert "ttft_beyond_server" not in {f.code for f in summary.findings}
    assert f"{both.client_n:,} / {both.server_n:,}" in server_columns([cell])[-1].text(cell)


@pytest.mark.parametrize("others", [0.0, 0.9, 1.1])
def test_a_server_with_more_requests_than_ours_is_loaded_by_others(others: float) -> None:
    # 4 of ours at each sample; one more on average is the margin
    run = build_run((PAGED,), (4,), (40,))
    old = run.series["paged"]
    running = old.values[names.RUNNING]
    run.series["paged"] = replace_series(
        old, {names.RUNNING: Series(running.t_s, running.v + others)}
    )
    summary = analyse(run.manifest, run.records, run.events, run.series)
    found = [f for f in summary.findings if f.code == "other_load"]
    assert [f.severity for f in found] == (["warning"] if others > 1.0 else [])
    if found:
        assert "5.1 requests on average while 4.0 of this load" in found[0].text


def test_a_server_that_was_lost_keeps_a_count_that_says_nothing_of_others() -> None:
    run = build_run((PAGED,), (4,), (40,))
    old = run.series["paged"]
    running = old.values[names.RUNNING]
    run.series["paged"] = replace_series(old, {names.RUNNING: Series(running.t_s, running.v + 3)})
    # the window was never closed as planned
    run.events[:] = [event for event in run.events if event.kind != "window_close"]
    summary = analyse(run.manifest, run.records, run.events, run.series)
    assert "other_load" not in {f.code for f in summary.findings}


def test_a_restart_between_the_scrapes_makes_the_figure_absent() -> None:
    _, whole = level(0.0)
    assert whole.server_ttft is not None
    middle = (whole.server_ttft.start_s + whole.server_ttft.end_s) / 2
    _, cell = level(0.0, restart_s=middle)
    assert cell.server_ttft is None


def test_a_server_without_the_histogram_has_no_figure_and_no_table() -> None:
    run = build_run((PAGED,), (4,), (40,))
    summary = analyse(run.manifest, run.records, run.events, run.series)
    assert summary.cells[0].server_ttft is None
    assert "TTFT of the server" not in markdown_report(summary)
    assert cell_object(summary.cells[0])["server_ttft"] is None


def test_one_scrape_tells_nothing() -> None:
    run = with_histogram(build_run((PAGED,), (4,), (40,)), 0.0)
    series: BackendSeries = run.series["paged"]
    cut = {name: Series(item.t_s[3:4], item.v[3:4]) for name, item in series.values.items()}
    run.series["paged"] = replace_series(series, cut)
    assert analyse(run.manifest, run.records, run.events, run.series).cells[0].server_ttft is None
