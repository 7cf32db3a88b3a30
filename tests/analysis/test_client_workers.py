"""A load of several processes is as good as its worst one; limits beside the CPU (B46)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
import pytest

from harness.analysis.client_samples import client_samples, stood_still_s
from harness.analysis.run import analyse
from harness.analysis.summary_types import RunSummary
from harness.records import Finding, RunEvent, Scalar
from tests.analysis.one_run import cell, changed, codes, one_level, summed
from tests.analysis.test_client_stall import window
from tests.support.fake_server import PAGED
from tests.support.run_builder import Run, build_run, replace_manifest


def sampled_by(run: Run, workers: Mapping[str, Mapping[str, Scalar]]) -> Run:
    """The run with each second's sample taken by every one of the workers instead."""
    others = [event for event in run.events if event.kind != "client_sample"]
    seconds = [event.t_s for event in run.events if event.kind == "client_sample"]
    run.events = sorted(
        others
        + [
            RunEvent(t_s=t_s, kind="client_sample", detail={**detail, "worker": name})
            for t_s in seconds
            for name, detail in workers.items()
        ],
        key=lambda event: event.t_s,
    )
    return run


def the(summary: RunSummary, code: str) -> Finding:
    return next(finding for finding in summary.findings if finding.code == code)


CALM: Mapping[str, Scalar] = {"cpu_ratio": 0.1, "loop_lag_s": 0.004}


def test_b46_one_worker_at_its_core_bounds_the_level_though_the_mean_is_low() -> None:
    # (0.95 + 0.1) / 2 = 0.53 of a core on average, yet half of the requests are late
    busy = {"cpu_ratio": 0.95, "loop_lag_s": 0.004}
    summary = summed(sampled_by(one_level(), {"host-1": CALM, "host-2": busy}))
    found = cell(summary, "paged", 16)
    assert (found.client.workers, found.client.cpu_median) == (2, 0.95)
    assert found.unjudged == "the client was the limit"
    finding = the(summary, "client_bound")
    assert "its process host-2 used 95 % of a core (limit 90 %)" in finding.text
    assert "--processes N" in finding.remedy
    assert summary.verdicts[0].capacity.status == "no_verdict"


def test_b46_the_only_process_needs_no_name() -> None:
    summary = summed(sampled_by(one_level(), {"w": {"cpu_ratio": 0.93, "loop_lag_s": 0.0}}))
    assert "its process used 93 % of a core" in the(summary, "client_bound").text


def test_b46_a_limit_on_requests_in_flight_below_the_level_gives_no_verdict() -> None:
    # 128 users behind a limit of 100: 28 of them never get their turn, so that not every
    # user has completed a request and nothing may be read off the level
    run = build_run((PAGED,), (128,), (300,))
    run.records = [record for record in run.records if record.user < 100]
    summary = analyse(run.manifest, run.records, run.events, run.series)
    assert summary.cells[0].unjudged == "its window never opened"
    assert the(summary, "window_never_opened").severity == "invalid"
    assert summary.verdicts[0].capacity.status == "no_verdict"


def test_the_lag_of_one_worker_is_named() -> None:
    # the limit is half of a TTFT of 26 ms, but at least 50 ms
    late = {"cpu_ratio": 0.1, "loop_lag_s": 0.09}
    summary = summed(sampled_by(one_level(), {"a": late, "b": CALM, "c": CALM}))
    assert "the event loop of a was late by 0.090 s" in the(summary, "client_bound").text


def test_several_calm_workers_are_no_finding() -> None:
    assert codes(summed(sampled_by(one_level(), {"a": CALM, "b": CALM}))) == set()


def test_workers_stand_still_each_by_itself() -> None:
    # 2 s of one and 3 s of the other, at the same time: not 5 s
    samples = client_samples(
        RunEvent(t_s=t_s, kind="client_sample", detail={"loop_lag_s": lag_s, "worker": worker})
        for t_s, lag_s, worker in ((14.0, 2.0, "a"), (14.5, 3.0, "b"), (15.0, 0.01, "a"))
    )
    assert stood_still_s(window(10.0, 20.0), samples) == pytest.approx(3.0)


def test_200_ms_of_standstill_never_pass_in_silence() -> None:
    # a window of some 12 s: 0.2 / 12 = 1.7 % is beyond the 1 % that a p99 can bear
    run = one_level()
    measured = summed(run).cells[0].window
    assert measured.open_s is not None and measured.length_s is not None
    assert 10 < measured.length_s < 20
    at_s = measured.open_s + 5.0
    run.events.append(
        RunEvent(t_s=at_s, kind="client_sample", detail={"loop_lag_s": 0.2, "cpu_ratio": 0.1})
    )
    finding = the(summed(run), "client_stood_still")
    assert finding.severity == "warning"
    assert "TTFT, ITL and throughput are not trusted" in finding.text
    # ten times as long a window: 0.17 % moves no p99, and is said all the same
    long = build_run((PAGED,), (16,), (1200,))
    opened = summed(long).cells[0].window.open_s
    assert opened is not None
    long.events.append(RunEvent(t_s=opened + 5.0, kind="client_sample", detail={"loop_lag_s": 0.2}))
    finding = the(summed(long), "client_stood_still")
    assert finding.severity == "note"
    assert "the largest TTFT and ITL may be its own" in finding.text


def test_tokens_held_back_by_a_stopped_client_are_no_silent_itl() -> None:
    # A client stopped for 200 ms finds 16 tokens of each stream (one in 11.9 ms) in one read:
    # the first of them seems 190 ms late and the 15 others follow at once. They are marked,
    # and 16 of the 128 events of a request are far beyond 1 %.
    def stopped(index: int, old: object) -> dict[str, object]:
        gaps = list(old.token_us)  # type: ignore[attr-defined]
        gaps[40], gaps[41:56] = sum(gaps[40:56]), [0] * 15
        return {"token_us": tuple(gaps), "coalesced": tuple(range(40, 55))}

    summary = summed(changed(one_level(), stopped))
    latency = summary.cells[0].latency
    assert (latency.coalesced_share or 0) == pytest.approx(15 / 128)
    assert not latency.itl_trusted
    finding = the(summary, "coalesced")
    assert "ITL is an upper bound" in finding.text and "not trusted" in finding.text


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        ("http://127.0.0.1:8000", "Give the client a free core."),
        ("http://localhost:8000", "Give the client a free core."),
        ("http://[::1]:8000", "Give the client a free core."),
        ("http://10.0.0.7:8000", "Take proxies out of the way and give the client a free core."),
        ("https://llm.example", "Take proxies out of the way and give the client a free core."),
    ],
)
def test_no_proxy_is_sought_before_a_server_of_this_machine(url: str, remedy: str) -> None:
    run = changed(one_level(), lambda index, old: {"coalesced": tuple(range(40, 55))})
    info = msgspec.structs.replace(run.manifest.backends[0], url=url)
    run.manifest = replace_manifest(run.manifest, backends=(info,))
    assert the(summed(run), "coalesced").remedy == remedy


def test_up_to_one_per_cent_of_shared_reads_the_itl_p99_is_that_of_the_server() -> None:
    # One request in twelve meets the standstill: 15 / (12 x 128) = 0.98 % of the events share
    # a read, of the gaps 1 / (12 x 127) = 0.07 % are stretched: no p99 moves.
    def stopped(index: int, old: object) -> dict[str, object]:
        if index % 12:
            return {}
        gaps = list(old.token_us)  # type: ignore[attr-defined]
        gaps[40], gaps[41:56] = sum(gaps[40:56]), [0] * 15
        return {"token_us": tuple(gaps), "coalesced": tuple(range(40, 55))}

    summary = summed(changed(one_level(), stopped))
    latency = summary.cells[0].latency
    assert (latency.coalesced_share or 0) < 0.01
    assert latency.itl_s.value(99) == pytest.approx(0.0119)


def with_ports(run: Run, held: list[float], ports: int | None) -> Run:
    """The run whose samples count closed connections, one figure per sample."""
    samples = iter(np.interp(np.linspace(0, 1, 400), np.linspace(0, 1, len(held)), held))
    run.events = [
        RunEvent(t_s=e.t_s, kind=e.kind, detail={**e.detail, "time_wait": round(next(samples))})
        if e.kind == "client_sample"
        else e
        for e in run.events
    ]
    facts: dict[str, Scalar] = {**run.manifest.environment, "ephemeral_ports": ports}
    run.manifest = replace_manifest(run.manifest, environment=facts)
    return run


def test_closed_connections_that_hold_most_ports_are_a_warning() -> None:
    # 25,000 of 28,232 are beyond 80 %
    summary = summed(with_ports(one_level(), [25_000, 25_000], 28_232))
    finding = the(summary, "ports_run_out")
    assert finding.severity == "warning"
    assert "25,000 closed connections held a port each, of 28,232" in finding.text


def test_a_rate_that_will_use_the_ports_up_is_a_note() -> None:
    # 200,000 over 399 samples, one a second: 501 a second, and as a port is kept for 60 s
    # that comes to 30,075 of 28,232, though 7,018 are held at the level's end
    summary = summed(with_ports(one_level(), [0, 200_000], 28_232))
    client = summary.cells[0].client
    assert client.time_wait_expected == pytest.approx(200_000 / 399 * 60, rel=0.001)
    finding = the(summary, "ports_run_out")
    assert finding.severity == "note"
    assert "at this rate it will be 30,0" in finding.text


@pytest.mark.parametrize(("held", "ports"), [([12, 30], 28_232), ([90_000, 90_000], None)])
def test_kept_connections_and_unknown_ports_are_no_finding(
    held: list[float], ports: int | None
) -> None:
    assert codes(summed(with_ports(one_level(), held, ports))) == set()


def calibrated(run: Run, rate: float | None, **more: Scalar) -> Run:
    facts = {"calibrated_at": "2026-01-01 00:00 UTC", "calibrated_tokens_per_s": rate, **more}
    environment: dict[str, Scalar] = {**run.manifest.environment, **facts}
    run.manifest = replace_manifest(run.manifest, environment=environment)
    return run


def test_a_level_beyond_the_calibrated_rate_says_so_with_both_figures() -> None:
    # 16 users x 128 tokens / 1.5385 s = 1,331 tokens/s (see test_run)
    summary = summed(calibrated(one_level(), 1000.0))
    rate = summary.cells[0].throughput.output_tokens_per_s
    assert rate is not None and 1300 < rate < 1360
    finding = the(summary, "beyond_calibration")
    assert finding.severity == "warning"
    assert f"{rate:,.0f} token events/s are more than the 1,000" in finding.text
    assert summary.cells[0].unjudged is None


@pytest.mark.parametrize("rate", [1400.0, None])
def test_a_level_below_it_or_an_unknown_rate_is_no_finding(rate: float | None) -> None:
    assert codes(summed(calibrated(one_level(), rate))) == set()


def test_two_processes_may_bring_twice_the_rate_of_one() -> None:
    # 1,331 / 2 = 666 in each
    run = sampled_by(one_level(), {"a": CALM, "b": CALM})
    assert codes(summed(calibrated(run, 700.0))) == set()
    run = sampled_by(one_level(), {"a": CALM, "b": CALM})
    assert "in each process" in the(summed(calibrated(run, 600.0)), "beyond_calibration").text


def test_a_burst_of_tokens_is_one_event_for_the_client() -> None:
    # four tokens in each of 32 events: a quarter of the token rate, 333 events/s
    def bursts(_: int, old: object) -> dict[str, object]:
        times = np.cumsum(old.token_us)[::4]  # type: ignore[attr-defined]
        gaps = np.diff(np.concatenate([[0], times]))
        return {"token_us": tuple(int(g) for g in gaps), "token_n": (4,) * 32}

    run = changed(one_level(), bursts)
    assert codes(summed(calibrated(run, 400.0))) == set()
    run = changed(one_level(), bursts)
    assert "beyond_calibration" in codes(summed(calibrated(run, 300.0)))
