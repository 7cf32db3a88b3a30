from __future__ import annotations

import numpy as np
import pytest

from harness.analysis.summary_types import RunSummary
from harness.manifest import BackendInfo
from harness.observe import names
from harness.observe.series import Series
from harness.records import RunEvent
from tests.analysis.one_run import cell, codes, one_level, summed
from tests.support.fake_records import cell_of, failure
from tests.support.fake_server import PAGED, STATIC
from tests.support.run_builder import build_run, replace_manifest, replace_series


@pytest.fixture(scope="module")
def healthy() -> RunSummary:
    return summed(build_run())


def test_a_healthy_run_shows_no_finding(healthy: RunSummary) -> None:
    assert healthy.findings == ()
    assert [c.cell.label for c in healthy.cells] == [
        f"{name} 512+128 c{level}" for name in ("paged", "contiguous") for level in (1, 4, 16, 32)
    ]


def test_figures_equal_the_truth_of_the_server(healthy: RunSummary) -> None:
    found = cell(healthy, "paged", 16)
    # TPOT = 0.0055 + 16 x 0.0004; TTFT = 0.024 to 0.024 x 1.2, since nobody waits
    assert found.latency.tpot_s.value(50) == pytest.approx(0.0119)
    assert 0.024 <= (found.latency.ttft_s.value(50) or 0) <= 0.0288
    # each user: 128 tokens per (TTFT 0.0264 on average + 127 x 0.0119 + 0.0006 s between)
    each = 128 / (0.0264 + 127 * 0.0119 + 0.0006)
    assert found.throughput.output_tokens_per_s == pytest.approx(16 * each, rel=0.02)
    assert found.counts.ok >= 100
    assert found.window.full_share == 1.0


def test_knees_and_predictions_of_the_healthy_run(healthy: RunSummary) -> None:
    paged, contiguous = healthy.verdicts
    assert (paged.memory.last_good, paged.memory.first_bad, paged.memory.cause) == (
        16,
        32,
        "kv_memory",
    )
    assert (contiguous.memory.last_good, contiguous.memory.first_bad) == (4, 16)
    # 127 // 5 = 25 and 16 MiB // (2,048 x 1,024 B) = 8
    assert paged.predicted is not None and paged.predicted.requests == 25
    assert contiguous.predicted is not None and contiguous.predicted.requests == 8
    assert paged.prediction_holds and contiguous.prediction_holds


def test_a_run_without_any_record() -> None:
    run = one_level()
    run.records, run.events, run.series = [], [], {}
    summary = summed(run)
    assert summary.cells == ()
    assert summary.verdicts == ()
    assert "memory_unavailable" in codes(summary)


def test_an_end_that_only_the_events_have_is_an_end() -> None:
    """The manifest's last version is a whole file, for which a full disk has no room."""
    run = build_run((PAGED,), (4,), (100,))
    run.manifest = replace_manifest(run.manifest, status="running", t_end_s=None)
    assert any(event.kind == "run_end" for event in run.events)
    assert "never_ended" not in codes(summed(run))
    run.events = [event for event in run.events if event.kind != "run_end"]
    assert "never_ended" in codes(summed(run))


def test_a_killed_process_leaves_an_unjudged_last_level() -> None:
    run = build_run((PAGED,), (4, 16), (100, 100))
    last = cell_of(PAGED, 16)
    run.events = [
        e for e in run.events if (e.cell != last or e.kind == "level_start") and e.kind != "run_end"
    ]
    run.manifest = replace_manifest(run.manifest, status="running", t_end_s=None)
    summary = summed(run)
    assert cell(summary, "paged", 4).unjudged is None
    assert cell(summary, "paged", 16).unjudged == "the run ended before its window closed"
    assert cell(summary, "paged", 16).latency.ttft_s.n > 0
    assert "never_ended" in codes(summary)
    assert summary.verdicts[0].memory.last_good == 4


def test_a_level_that_started_and_recorded_nothing_is_shown() -> None:
    run = one_level(4)
    empty = cell_of(PAGED, 16)
    run.events.append(RunEvent(t_s=1200.0, kind="level_start", cell=empty, detail={"users": 16}))
    summary = summed(run)
    assert cell(summary, "paged", 16).counts.recorded == 0
    assert cell(summary, "paged", 16).unjudged == "its window never opened"
    assert "window_never_opened" in codes(summary)


def test_a_lost_backend_is_a_finding_and_no_verdict() -> None:
    run = one_level()
    lost = cell_of(PAGED, 16)
    cut = 1008.0
    run.records = [r for r in run.records if r.t_end_s <= cut]
    run.records += [failure(lost, 10_000 + i, user=i, t_intended_s=cut, t_sent_s=cut,
                            t_end_s=cut + 0.1, outcome="connect") for i in range(16)]  # fmt: skip
    run.events = [e for e in run.events if e.t_s <= cut]
    run.events.append(RunEvent(t_s=cut, kind="backend_lost", cell=lost))
    run.events.append(
        RunEvent(t_s=cut + 1, kind="level_end", cell=lost, detail={"reason": "backend_lost"})
    )
    run.manifest = replace_manifest(run.manifest, status="failed")
    summary = summed(run)
    found = cell(summary, "paged", 16)
    assert found.window.closed_by == "lost"
    assert dict(found.counts.by_class) == {"connect": 16}
    assert {"backend_lost", "failures"} <= codes(summary)
    assert summary.verdicts[0].capacity.status == "no_verdict"


def test_only_failures() -> None:
    run = one_level(4, 20)
    key = cell_of(PAGED, 4)
    run.records = [
        failure(key, i, user=i % 4, t_intended_s=1001 + i * 0.1, t_sent_s=1001 + i * 0.1,
                t_end_s=1001.05 + i * 0.1)
        for i in range(200)
    ]  # fmt: skip
    summary = summed(run)
    found = cell(summary, "paged", 4)
    assert found.latency.ttft_s.n == 0
    assert found.latency.ttft_adjusted_s.value(50) == float("inf")
    assert found.counts.failure_share == 1.0
    assert found.throughput.slo_attainment == 0.0
    assert summary.verdicts[0].latency.status == "below_first"


def test_b54_the_servers_own_queue_time_stands_beside_ttft() -> None:
    run = one_level()
    gauge = run.series["paged"].values[names.RUNNING]
    n = np.arange(len(gauge), dtype=np.float64)
    run.series["paged"] = replace_series(
        run.series["paged"],
        {
            names.QUEUE_SECONDS_SUM: Series(gauge.t_s, n * 3.0),
            names.QUEUE_SECONDS_COUNT: Series(gauge.t_s, n * 10.0),
        },
    )
    memory = cell(summed(run), "paged", 16).memory
    assert memory is not None
    # 3 s of queueing per 10 requests
    assert memory.queue_mean_s == pytest.approx(0.3)


def test_a_backend_that_the_manifest_does_not_know_is_left_out() -> None:
    run = build_run((PAGED, STATIC), (4,), (20,))
    run.manifest = replace_manifest(run.manifest, backends=(PAGED.info,))
    assert {c.cell.backend for c in summed(run).cells} == {"paged"}


def test_info_without_facts_still_gives_a_summary() -> None:
    info = BackendInfo(name="paged", url="http://127.0.0.1:1", kind="vllm", mode="paged", model="m")
    run = one_level()
    run.manifest = replace_manifest(run.manifest, backends=(info,))
    assert summed(run).verdicts[0].predicted is None
