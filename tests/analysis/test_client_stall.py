"""A client that stood still: no median shows it, yet the level's figures are not the server's."""

from __future__ import annotations

import pytest

from harness.analysis.client_samples import ClientSamples, client_samples, stood_still_s
from harness.analysis.run import analyse
from harness.analysis.summary_types import RunSummary, Window
from harness.records import Finding, RunEvent
from tests.support.fake_server import PAGED
from tests.support.run_builder import Run, build_run


def one_level() -> tuple[Run, Window]:
    run = build_run((PAGED,), (16,), (200,))
    return run, summed(run).cells[0].window


def summed(run: Run) -> RunSummary:
    return analyse(run.manifest, iter(run.records), run.events, run.series)


def with_lag(run: Run, t_s: float, lag_s: float) -> Run:
    detail = {"loop_lag_s": lag_s, "cpu_ratio": 0.2}
    run.events.append(RunEvent(t_s=t_s, kind="client_sample", detail=detail))
    return run


def stalls(*pairs: tuple[float, float]) -> ClientSamples:
    return client_samples(
        RunEvent(t_s=t_s, kind="client_sample", detail={"loop_lag_s": lag_s})
        for t_s, lag_s in pairs
    )


def window(open_s: float, close_s: float, last_s: float | None = None) -> Window:
    return Window(
        users=4, start_s=None, open_s=open_s, close_s=close_s, last_counted_s=last_s, end_s=None,
        closed_by="event", reason=None, full_share=None, ramp_s=None, warmup_s=None,
        follow_s=None, drain_s=None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("pairs", "stood"),
    [
        ([(12.0, 0.05), (13.0, 0.1)], 0.0),  # a busy machine
        ([(14.0, 3.0), (16.0, 0.5), (17.0, 0.02)], 3.5),
        ([(11.0, 4.0)], 1.0),  # 7 to 11: it opened at 10
        ([(23.0, 4.0)], 3.0),  # 19 to 23: the last counted token came at 22
        ([(9.0, 4.0), (30.0, 4.0)], 0.0),
        ([(14.0, float("nan"))], 0.0),
    ],
)
def test_standstills_add_up_within_the_measured_time(
    pairs: list[tuple[float, float]], stood: float
) -> None:
    assert stood_still_s(window(10.0, 20.0, 22.0), stalls(*pairs)) == pytest.approx(stood)


def stood(summary: RunSummary) -> Finding | None:
    return next((f for f in summary.findings if f.code == "client_stood_still"), None)


def test_a_stopped_client_gives_no_verdict_and_says_for_how_long() -> None:
    run, measured = one_level()
    assert measured.open_s is not None
    summary = summed(with_lag(run, measured.open_s + 5.0, 4.03))
    finding = stood(summary)
    assert finding is not None and finding.severity == "invalid"
    assert "stood still for 4.03 s" in finding.text
    assert "TTFT, ITL and throughput are not trusted" in finding.text
    cell = summary.cells[0]
    assert cell.client.stood_still_s == pytest.approx(4.03)
    assert cell.unjudged == "the client stood still for too much of its window"
    assert {k.status for k in (summary.verdicts[0].capacity, summary.verdicts[0].throughput)} == {
        "no_verdict"
    }


def test_a_short_standstill_weakens_the_level_but_leaves_its_verdict() -> None:
    run, measured = one_level()
    length = measured.length_s
    assert measured.open_s is not None and length is not None
    # 3 % of the window lies between 1 % (worth a finding) and 5 % (no verdict)
    summary = summed(with_lag(run, measured.open_s + 5.0, 0.03 * length))
    finding = stood(summary)
    assert finding is not None and finding.severity == "warning"
    assert "3.0 % of the window" in finding.text
    assert summary.cells[0].unjudged is None


@pytest.mark.parametrize("lag_s", [0.04, 0.06, 0.1])
def test_a_busy_two_core_machine_is_no_standstill(lag_s: float) -> None:
    run, measured = one_level()
    assert measured.open_s is not None
    assert summed(with_lag(run, measured.open_s + 5.0, lag_s)).findings == ()


def test_a_standstill_is_named_as_the_cause_of_what_it_makes_look_buffered() -> None:
    run, measured = one_level()
    assert measured.open_s is not None
    run.records = [
        type(r)(**{n: getattr(r, n) for n in r.__struct_fields__} | {"buffered": True})
        for r in run.records
    ]
    words = next(f.text for f in summed(run).findings if f.code == "buffered_stream")
    assert "something between buffers them" in words
    found = summed(with_lag(run, measured.open_s + 5.0, 4.0)).findings
    words = next(f.text for f in found if f.code == "buffered_stream")
    assert "the load generator, which stood still" in words
