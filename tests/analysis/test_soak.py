"""A soak of ten stretches whose memory and latency are written by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from harness.analysis.run import analyse
from harness.analysis.soak_types import BackendSoak
from harness.observe import names
from harness.observe.series import BackendSeries, Series
from harness.records import CellKey, RequestRecord, RunEvent
from harness.report.soak import soak_line, soak_rows
from harness.workload import Soak
from tests.support.fake_records import record
from tests.support.fake_server import static_info
from tests.support.run_builder import manifest

#: 10 stretches of 56 s and 4 s of pause: 10 minutes; the first is warm-up
CYCLES, CYCLE_S, REST_S = 10, 56.0, 4.0
SOAK = Soak(cancel_share=0.2, rest_s=REST_S, max_memory_growth_bytes=2**20, max_latency_growth=0.1)
MIB = 2**20


def cell(cycle: int) -> CellKey:
    return CellKey("contiguous", "static", 8, 3, 1.0, cycle)


def begin_s(cycle: int) -> float:
    return 1000.0 + cycle * (CYCLE_S + REST_S)


def events() -> list[RunEvent]:
    found = [RunEvent(t_s=999.0, kind="run_start")]
    for cycle in range(CYCLES):
        start_s = begin_s(cycle)
        found += [
            RunEvent(t_s=start_s, kind="level_start", cell=cell(cycle), detail={"users": 1}),
            RunEvent(t_s=start_s + 55, kind="window_close", cell=cell(cycle)),
            RunEvent(
                t_s=start_s + 56,
                kind="level_end",
                cell=cell(cycle),
                detail={"reason": "complete"},
            ),
        ]
    return [*found, RunEvent(t_s=begin_s(CYCLES), kind="run_end")]


def records(ttft_s: Callable[[int], float]) -> list[RequestRecord]:
    """Per stretch: one of warm-up, three counted of two gaps of 0.1 s, one cancelled."""
    found = []
    for cycle in range(CYCLES):
        for number in range(5):
            sent_s = begin_s(cycle) + 10 * number
            cancelled = number == 4
            found.append(
                record(
                    cell(cycle),
                    5 * cycle + number,
                    user=0,
                    t_intended_s=sent_s,
                    t_sent_s=sent_s,
                    t_end_s=sent_s + 5,
                    outcome="cancelled" if cancelled else "ok",
                    token_us=(round(ttft_s(cycle) * 1e6), 100_000, 100_000),
                )
            )
    return found


def series(memory: Callable[[float], float], kv_at_rest: Callable[[int], float]) -> BackendSeries:
    """Samples once a second: under load 1 MiB of KV, in the pauses what is told."""
    t_s = np.arange(1000.0, begin_s(CYCLES), 1.0)
    kv = []
    for now_s in t_s:
        cycle, since_s = divmod(now_s - 1000.0, CYCLE_S + REST_S)
        kv.append(kv_at_rest(int(cycle)) if since_s > CYCLE_S + 1 else MIB)
    values: Mapping[str, Series] = {
        names.PROCESS_RSS_BYTES: Series(t_s, np.array([memory(x - 1000.0) for x in t_s])),
        names.KV_USED_BYTES: Series(t_s, np.array(kv, dtype=np.float64)),
        names.RUNNING: Series(t_s, np.ones(t_s.size)),
    }
    return BackendSeries(
        backend="contiguous",
        source="scraper",
        values=values,
        pool=None,
        failed_t_s=np.empty(0),
        failures=(),
        missing=(),
    )


def soaked(
    memory: Callable[[float], float] = lambda s: 500.0 * MIB,
    kv_at_rest: Callable[[int], float] = lambda cycle: 0.0,
    ttft_s: Callable[[int], float] = lambda cycle: 0.05,
    observed: bool = True,
    max_latency_growth: float | None = SOAK.max_latency_growth,
) -> BackendSoak:
    work = msgspec.structs.replace(
        manifest().workload,
        levels=(1.0,),
        min_requests=(1,),
        repeats=CYCLES,
        prompt_tokens=8,
        output_tokens=3,
        soak=msgspec.structs.replace(SOAK, max_latency_growth=max_latency_growth),
    )
    kept = manifest(workload=work, backends=(static_info(),))
    found = {"contiguous": series(memory, kv_at_rest)} if observed else {}
    summary = analyse(kept, records(ttft_s), events(), found)
    assert summary.soak is not None
    (backend,) = summary.soak.backends
    assert summary.soak.passed == backend.passed
    # what is said and shown can be made of it
    assert soak_line(backend).startswith("contiguous: ")
    assert len(soak_rows(summary.soak)) == 4
    return backend


def state(soak: BackendSoak, name: str) -> str:
    (drift,) = (d for d in soak.drifts if d.name == name)
    return drift.state


def test_a_steady_server_passes() -> None:
    soak = soaked()
    assert soak.passed
    assert {d.state for d in soak.drifts} == {"steady"}
    assert (soak.kv_bytes_left, soak.cancelled) == (0.0, CYCLES)
    # nine stretches count: from 60 s to 596 s
    assert soak.hours == pytest.approx((596 - 60) / 3600)
    assert "no drift beyond the limits per hour" in soak_line(soak)
    assert "all KV bytes given back at the end" in soak_line(soak)


def test_a_leak_is_found_with_its_size() -> None:
    """1 KiB a second is 3,600 KiB an hour, where 1 MiB is allowed."""
    soak = soaked(memory=lambda s: 500 * MIB + 1024 * s)
    assert not soak.passed
    assert state(soak, "process memory") == "drifts"
    (drift,) = (d for d in soak.drifts if d.name == "process memory")
    assert drift.trend is not None
    assert drift.trend.slope_per_h == pytest.approx(3600 * 1024)
    assert "process memory drifts by +3.52 MiB per hour" in soak_line(soak)


def test_growth_while_warming_up_is_no_leak() -> None:
    soak = soaked(memory=lambda s: (400 if s < 60 else 500) * MIB)
    assert state(soak, "process memory") == "steady"


def test_requests_that_get_slower_are_found() -> None:
    """TTFT 50 ms + 1 ms a minute: 60 ms an hour, where 10 % of some 55 ms are allowed."""
    soak = soaked(ttft_s=lambda cycle: 0.05 + 0.001 * cycle)
    assert state(soak, "TTFT") == "drifts"
    assert state(soak, "TPOT") == "steady"
    assert not soak.passed


def test_kv_bytes_that_stay_are_found() -> None:
    soak = soaked(kv_at_rest=lambda cycle: 4096.0 if cycle == CYCLES - 1 else 0.0)
    assert soak.kv_bytes_left == 4096.0
    assert not soak.passed
    assert "4.00 KiB of KV in use with nothing in flight" in soak_line(soak)
    growing = soaked(kv_at_rest=lambda cycle: 65536.0 * cycle)
    # 64 KiB a minute: 3.75 MiB an hour
    assert state(growing, "KV bytes at rest") == "drifts"


def test_a_server_that_goes_silent_before_the_end_has_not_given_all_back() -> None:
    """It stated its KV bytes in the pauses before; what it holds at the end nobody knows."""
    seen = soaked()
    assert seen.passed
    assert not dataclasses.replace(seen, kv_bytes_left=None).passed


def test_what_was_not_measured_is_said_and_is_no_zero() -> None:
    soak = soaked(observed=False)
    assert state(soak, "process memory") == "not_measured"
    assert soak.kv_bytes_left is None
    # the client's own figures remain
    assert state(soak, "TTFT") == "steady"
    assert soak.passed
    assert "not measured: process memory, KV bytes at rest" in soak_line(soak)
    assert "KV bytes at the end not measured" in soak_line(soak)


def test_latency_without_a_limit_is_shown_and_not_judged() -> None:
    soak = soaked(ttft_s=lambda cycle: 0.05 + 0.001 * cycle, max_latency_growth=None)
    assert state(soak, "TTFT") == "not_judged"
    (drift,) = (d for d in soak.drifts if d.name == "TTFT")
    assert drift.trend is not None
    assert drift.trend.slope_per_h == pytest.approx(0.06)
    assert soak.passed


def test_nothing_measured_is_no_pass() -> None:
    soak = soaked()
    blind = replace(
        soak, drifts=tuple(replace(d, trend=None, state="not_measured") for d in soak.drifts)
    )
    assert not blind.passed
