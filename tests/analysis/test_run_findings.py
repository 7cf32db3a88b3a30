"""What the analysis finds wrong with a run, and what it leaves alone."""

from __future__ import annotations

import itertools

import numpy as np

from harness.analysis.run import analyse
from harness.observe import names
from harness.observe.series import Series
from harness.records import RequestRecord, RunEvent
from tests.analysis.one_run import cell, changed, codes, one_level, summed
from tests.support.fake_records import cell_of
from tests.support.fake_server import PAGED, STATIC, FakeServer, paged_info
from tests.support.run_builder import Run, build_run, replace_series


def test_b52_sent_is_succeeded_and_failed_and_cancelled() -> None:
    outcomes = itertools.cycle(["ok", "ok", "timeout", "cancelled", "rejected"])

    def change(_: int, old: RequestRecord) -> dict[str, object]:
        outcome = next(outcomes)
        return {} if outcome == "ok" else {"outcome": outcome, "token_us": (), "error": "x"}

    summary = summed(changed(one_level(), change))
    counts = cell(summary, "paged", 16).counts
    assert counts.sent == counts.ok + counts.failed + counts.cancelled
    assert dict(counts.by_class).keys() == {"timeout", "rejected", "cancelled"}
    # cancelled requests are ours, not the server's failures
    failures = next(f for f in summary.findings if f.code == "failures")
    assert "cancelled" not in failures.text


def test_b52_twelve_prompts_for_all_requests_are_a_finding() -> None:
    run = changed(one_level(), lambda i, _: {"prompt_hash": f"p{i % 12}"})
    finding = next(f for f in summed(run).findings if f.code == "prompts_not_unique")
    assert "only 12 distinct prompts" in finding.text


def test_the_same_prompts_for_two_backends_are_intended() -> None:
    run = build_run((PAGED, STATIC), (4,), (20,))
    counters = {"paged": itertools.count(), "contiguous": itertools.count()}
    changed(run, lambda _, r: {"prompt_hash": f"p{next(counters[r.cell.backend])}"})
    assert codes(summed(run)) == set()


def test_e113_prefix_hits_of_a_percent_are_a_finding() -> None:
    run = one_level()
    old = run.series["paged"]
    queries = old.values[names.PREFIX_QUERIES_TOTAL]

    def with_hits(share: float) -> set[str]:
        hits = Series(queries.t_s, queries.v * share)
        run.series["paged"] = replace_series(old, {names.PREFIX_HITS_TOTAL: hits})
        return codes(summed(run))

    assert with_hits(0.009) == set()
    assert with_hits(0.011) == {"prefix_cache_hits"}


def test_e114_the_servers_prompt_count_differs() -> None:
    summary = summed(changed(one_level(), lambda *_: {"prompt_tokens": 1606}))
    finding = next(f for f in summary.findings if f.code == "prompt_tokens_differ")
    assert "1606" in finding.text
    # 1606 tokens x requests: rates use the server's count
    found = cell(summary, "paged", 16).throughput
    assert found.counted_prompt_tokens == 1606 * cell(summary, "paged", 16).counts.ok


def test_a24_estimated_token_counts_are_flagged() -> None:
    run = changed(one_level(), lambda *_: {"output_tokens_source": "client_estimated"})
    assert codes(summed(run)) == {"tokens_estimated"}


def test_a25_buffered_streams_are_flagged() -> None:
    summary = summed(changed(one_level(), lambda *_: {"buffered": True}))
    assert codes(summary) == {"buffered_stream"}
    assert "TTFT, TPOT and ITL" in summary.findings[0].text
    found = cell(summary, "paged", 16).latency
    assert not (found.ttft_trusted or found.tpot_trusted or found.itl_trusted)
    # its TTFT and TPOT tell nothing of the server, so neither do they of the SLO
    assert summary.verdicts[0].latency.status == "no_verdict"


def test_coalesced_beyond_one_percent_is_flagged_and_untrusted() -> None:
    # 2 of 128 events are 1.6 %; 1 of 128 is 0.8 %
    assert codes(summed(changed(one_level(), lambda *_: {"coalesced": (5,)}))) == set()
    summary = summed(changed(one_level(), lambda *_: {"coalesced": (5, 6)}))
    assert codes(summary) == {"coalesced"}
    assert not cell(summary, "paged", 16).latency.itl_trusted
    assert cell(summary, "paged", 16).latency.ttft_trusted
    first = summed(changed(one_level(), lambda i, _: {"coalesced": (0,) if i % 20 == 0 else ()}))
    assert not cell(first, "paged", 16).latency.ttft_trusted


def test_b47_a_clock_step_is_flagged() -> None:
    run = changed(one_level(), lambda i, _: {"clock_step_s": -0.5 if i == 40 else None})
    finding = next(f for f in summed(run).findings if f.code == "clock_step")
    assert "0.500 s" in finding.text


def test_d93_d96_no_metrics_gives_absent_memory_and_one_finding() -> None:
    run = one_level()
    run.series["paged"] = replace_series(
        run.series["paged"],
        values=None,
        failed_t_s=np.arange(1001.0, 1015.0),
        failures=("HTTP 500",),
    )
    run.series["paged"].values.clear()  # type: ignore[attr-defined]
    summary = summed(run)
    assert cell(summary, "paged", 16).memory is None
    assert codes(summary) == {"memory_unavailable"}
    assert "HTTP 500" in summary.findings[0].text
    assert summary.verdicts[0].memory.status == "no_verdict"
    # what needs no metrics is still judged
    assert summary.verdicts[0].latency.status == "not_reached"


def test_an_unknown_kind_of_server_gets_a_note_only() -> None:
    info = paged_info(kind="openai", mode="default", num_blocks=None)
    run = one_level(4, 20, FakeServer(info, seats=25))
    run.series = {}
    found = summed(run).findings
    assert [(f.code, f.severity) for f in found] == [("memory_unavailable", "note")]


def test_d93_lost_scrapes_and_gaps_are_findings() -> None:
    run = one_level()
    old = run.series["paged"]
    few = {name: Series(s.t_s[::8], s.v[::8]) for name, s in old.values.items()}
    run.series["paged"] = replace_series(
        old, few, failed_t_s=np.arange(1001.0, 1011.0), failures=("timeout",)
    )
    assert {"scrapes_lost", "scrape_gap"} <= codes(summed(run))


def test_one_lost_scrape_on_a_busy_machine_is_none() -> None:
    run = one_level()
    run.series["paged"] = replace_series(
        run.series["paged"], failed_t_s=np.array([1004.0]), failures=("timeout",)
    )
    assert codes(summed(run)) == set()


def test_missing_metrics_are_named() -> None:
    run = one_level()
    run.series["paged"] = replace_series(run.series["paged"], missing=(names.PREEMPTIONS_TOTAL,))
    finding = next(f for f in summed(run).findings if f.code == "metrics_missing")
    assert names.PREEMPTIONS_TOTAL in finding.text


def test_used_beyond_the_budget_is_invalid() -> None:
    run = one_level()
    used = run.series["paged"].values[names.KV_USED_BYTES]
    run.series["paged"] = replace_series(
        run.series["paged"], {names.KV_USED_BYTES: Series(used.t_s, used.v * 2)}
    )
    assert "kv_over_budget" in codes(summed(run))


def test_a_window_that_is_not_full_and_too_few_requests() -> None:
    run = one_level()
    # one of the users leaves after its first requests
    run.records = [r for r in run.records if r.user != 3 or r.t_sent_s < 1004]  # type: ignore[operator]
    summary = summed(run)
    assert {"window_not_full", "too_few_requests"} <= codes(summary)
    assert "15." in next(f for f in summary.findings if f.code == "window_not_full").text


def test_a8_ignored_events_are_shown_with_their_count() -> None:
    summary = summed(changed(one_level(), lambda i, _: {"ignored_events": 2 if i == 40 else 0}))
    finding = next(f for f in summary.findings if f.code == "ignored_events")
    assert finding.severity == "note"
    assert finding.text.startswith("2 stream events carried no JSON")
    assert codes(summary) == {"ignored_events"}


def with_client(run: Run, lag_s: float, cpu: float) -> Run:
    run.events = [
        e
        if e.kind != "client_sample"
        else RunEvent(t_s=e.t_s, kind=e.kind, detail={"loop_lag_s": lag_s, "cpu_ratio": cpu})
        for e in run.events
    ]
    return run


def test_b46_a_busy_client_is_invalid_and_gives_no_verdict() -> None:
    summary = summed(with_client(one_level(), 0.004, 0.97))
    assert codes(summary) == {"client_bound"}
    assert cell(summary, "paged", 16).unjudged == "the client was the limit"
    assert summary.verdicts[0].capacity.status == "no_verdict"


def test_b46_a_busy_two_core_machine_is_no_client_limit() -> None:
    # lag of 40 ms against a TTFT of 26 ms: arrivals carry kernel stamps
    assert codes(summed(with_client(one_level(), 0.040, 0.6))) == set()
    assert codes(summed(with_client(one_level(), 0.060, 0.6))) == {"client_bound"}
    # without kernel stamps the limit is 20 ms
    plain = changed(with_client(one_level(), 0.040, 0.6), lambda *_: {"clock": "monotonic"})
    assert codes(summed(plain)) == {"client_bound"}


def test_b46_one_hiccup_does_not_shape_a_level() -> None:
    run = one_level()
    first = next(e for e in run.events if e.kind == "client_sample")
    run.events[run.events.index(first)] = RunEvent(
        t_s=first.t_s, kind="client_sample", detail={"loop_lag_s": 2.0, "cpu_ratio": 1.0}
    )
    assert codes(summed(run)) == set()


def test_b45_late_sends_are_a_client_limit() -> None:
    run = changed(one_level(), lambda _, r: {"t_intended_s": r.t_sent_s - 0.030})  # type: ignore[operator]
    assert codes(summed(run)) == {"client_bound"}


def test_interrupted_faults_skipped_and_damaged_lines_are_findings() -> None:
    run = one_level(4, 20)
    skipped = cell_of(PAGED, 16)
    run.events += [
        RunEvent(t_s=1100.0, kind="interrupted"),
        RunEvent(t_s=1100.0, kind="fault", detail={"what": "disk", "text": "no space left"}),
        RunEvent(t_s=1100.0, kind="level_skipped", cell=skipped, detail={"reason": "lost"}),
    ]
    summary = analyse(
        run.manifest, run.records, run.events, run.series, {"records.jsonl": 2, "x": 0}
    )
    assert codes(summary) == {"interrupted", "fault", "level_skipped", "damaged_lines"}
    assert "2 lines of records.jsonl" in next(
        f.text for f in summary.findings if f.code == "damaged_lines"
    )
