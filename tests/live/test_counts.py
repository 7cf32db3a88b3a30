"""One worker's counts: buckets, histograms, latencies, limits."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from harness.analysis.latency import event_gaps_s, request_times
from harness.analysis.table import build_tables
from harness.analysis.throughput import meets_slo
from harness.live import times as live
from harness.live.buckets import E2E_NS, EDGES_NS, ITL_NS, LATENESS_NS, TTFT_NS
from harness.live.histogram import Histogram
from harness.live.snapshot import CellCounts, Snapshot, decode, encode
from harness.live.worker import LiveWorker
from harness.records import FAILURE_CLASSES, CellKey, RequestRecord
from harness.workload import Slo
from tests.live.support import CELL, OTHER, client_sample, level_end, level_start, record

MS = 1_000_000
#: TTFT 500 ms, TPOT 50 ms
SLO = Slo(ttft_s=0.5, tpot_s=0.05)


def worker(slo: Slo = SLO) -> LiveWorker:
    return LiveWorker("r1", "local", slo, wall_offset_s=1000.0)


def only_cell(snapshot: Snapshot) -> CellCounts:
    (cell,) = snapshot.cells
    return cell


def test_edges_are_round_and_hold_the_usual_limits() -> None:
    assert (TTFT_NS[0], TTFT_NS[-1]) == (2 * MS, 100_000 * MS)
    assert (ITL_NS[0], ITL_NS[-1]) == (MS // 2, 2_000 * MS)
    assert (E2E_NS[0], E2E_NS[-1]) == (20 * MS, 700_000 * MS)
    assert (LATENESS_NS[0], LATENESS_NS[-1]) == (10_000, 1_000 * MS)
    assert 500 * MS in TTFT_NS
    assert 50 * MS in ITL_NS
    for name, edges in EDGES_NS.items():
        steps = [b / a for a, b in pairwise(edges)]
        assert min(steps) > 1
        # 3 -> 5 is the widest step of six per decade, 2 -> 5 that of three
        assert max(steps) == pytest.approx(2.5 if name == "send_lateness" else 5 / 3)


def test_a_value_on_an_edge_belongs_to_it() -> None:
    histogram = Histogram((10, 20))
    for number in (10, 11, 20, 21):
        histogram.add(number)
    assert histogram.times().counts == (1, 2, 1)
    assert histogram.times().sum_ns == 10 + 11 + 20 + 21


def test_many_at_once_count_as_one_by_one() -> None:
    values_us = np.random.default_rng(0).integers(0, 3_000_000, 5000).tolist()
    # and all edges
    values_us[: len(ITL_NS)] = [edge // 1000 for edge in ITL_NS]
    single, batch = Histogram(ITL_NS), Histogram(ITL_NS)
    for number in values_us:
        single.add(number * 1000)
    batch.add_many_us(values_us)
    assert batch.times() == single.times()
    assert sum(batch.times().counts) == 5000


def test_the_latencies_of_a_request() -> None:
    # first 200 ms, last 240 ms, 3 tokens: TPOT = 40 / 2 = 20 ms
    found = live.request_times(record())
    assert found == (200 * MS, 240 * MS, 20 * MS)
    assert live.lateness_ns(record()) == MS


@pytest.mark.parametrize(
    "strange",
    [
        record("timeout"),
        record(token_us=()),
        record(token_us=(0, 10)),
        record(token_us=(100, -1)),
        # the last token after the end
        record(t_end_s=1.2),
        # sent before it was intended
        record(t_intended_s=1.1),
    ],
)
def test_requests_without_latencies(strange: RequestRecord) -> None:
    assert live.request_times(strange) is None
    assert not live.meets(None, Slo(ttft_s=9.0))


def test_a_request_that_was_never_sent_has_no_lateness() -> None:
    assert live.lateness_ns(record("connect", t_sent_s=None, token_us=())) is None


def test_every_request_is_judged_as_the_report_judges_it() -> None:
    rng = np.random.default_rng(1)
    records = [varied(rng, number) for number in range(400)]
    table = build_tables(records)[CELL]
    times = request_times(table)
    good = meets_slo(table, times, SLO)
    mine = {r.seq: live.request_times(r) for r in records}
    checked = 0
    for row, item in enumerate(sorted(records, key=lambda r: r.seq)):
        own = mine[item.seq]
        assert (own is None) == math.isnan(times.ttft_s[row])
        assert live.meets(own, SLO) == good[row]
        if own is not None:
            assert own.ttft_ns / 1e9 == pytest.approx(times.ttft_s[row], abs=1e-9)
            assert own.e2e_ns / 1e9 == pytest.approx(times.e2e_s[row], abs=1e-9)
            tpot = times.tpot_s[row]
            assert (own.tpot_ns is None) == math.isnan(tpot)
            checked += own.tpot_ns is not None and own.tpot_ns / 1e9 == pytest.approx(tpot)
    assert checked > 100
    # and the gaps, pooled
    counted = worker()
    for item in records:
        counted.record(item)
    gaps = event_gaps_s(table, table.ok & times.sane)
    itl = only_cell(counted.snapshot(0)).times["itl"]
    assert sum(itl.counts) == gaps.size
    assert itl.sum_ns / 1e9 == pytest.approx(gaps.sum())


def varied(rng: np.random.Generator, number: int) -> RequestRecord:
    """A request with one to six tokens, near the limits on both sides; some are broken."""
    deltas = [int(rng.integers(300_000, 700_000))]
    deltas += rng.integers(10_000, 90_000, rng.integers(0, 6)).tolist()
    if number % 17 == 0:
        deltas[-1] = -5
    outcome = ("ok", "ok", "ok", "timeout", "short_output")[number % 5]
    sent = 1.0 + float(rng.uniform(-0.002, 0.01))
    return record(
        outcome,  # type: ignore[arg-type]
        seq=number,
        t_sent_s=sent,
        t_end_s=sent + sum(deltas) * 1e-6 - (0.01 if number % 23 == 0 else 0.0),
        token_us=tuple(deltas),
        output_tokens=None if number % 7 == 0 else len(deltas),
    )


def test_a_worker_counts_by_level() -> None:
    counted = worker()
    counted.event(level_start(users=16, t_s=10.0))
    counted.record(record())
    counted.record(record("timeout", token_us=(), prompt_tokens=None, output_tokens=None))
    counted.record(record("connect", t_sent_s=None, token_us=()))
    cell = only_cell(counted.snapshot(in_flight=7))
    assert (cell.backend, cell.mode, cell.level) == ("paged", "paged", 16.0)
    assert (cell.users, cell.in_flight) == (16, 7)
    assert {k: v for k, v in cell.outcomes.items() if v} == {"ok": 1, "timeout": 1, "connect": 1}
    assert set(cell.outcomes) == {"ok", *FAILURE_CLASSES}
    # tokens are those of the successes
    assert (cell.good, cell.prompt_tokens, cell.output_tokens) == (1, 512, 3)
    # two of three were sent
    assert {name: sum(t.counts) for name, t in cell.times.items()} == {
        "ttft": 1,
        "e2e": 1,
        "tpot": 1,
        "itl": 2,
        "send_lateness": 2,
    }
    assert cell.times["itl"].sum_ns == 40 * MS


def test_without_limits_nothing_is_good_or_bad() -> None:
    counted = worker(Slo())
    counted.record(record())
    assert only_cell(counted.snapshot(0)).good is None


def test_repeats_of_a_level_share_its_counts() -> None:
    counted = worker()
    for repeat in (0, 1):
        cell = CellKey("paged", "paged", 512, 128, 16.0, repeat)
        counted.event(level_start(cell))
        counted.record(record(cell=cell))
        counted.event(level_end(cell))
    assert only_cell(counted.snapshot(0)).outcomes["ok"] == 2


def test_levels_come_and_go() -> None:
    counted = worker()
    assert counted.snapshot(0).levels == ()
    counted.event(level_start(CELL, 16, t_s=10.0))
    counted.event(level_end(CELL, t_s=20.0))
    counted.event(level_start(OTHER, 4, t_s=21.0))
    snapshot = counted.snapshot(in_flight=3)
    # 1000 s is what wall time lies before monotonic time
    assert [(x.backend, x.level, x.start_wall_s) for x in snapshot.levels] == [
        ("paged", 0.0, 1010.0),
        ("contiguous", 4.0, 1021.0),
    ]
    assert [(x.backend, x.users, x.in_flight) for x in snapshot.cells] == [
        ("paged", 0, 0),
        ("contiguous", 4, 3),
    ]


def test_the_client_is_the_limit_only_when_it_lasts() -> None:
    counted = worker()
    counted.event(level_start())
    verdicts = []
    for cpu in (0.95, 0.95, 0.95, 0.2, 0.2, 0.2, 0.2):
        counted.event(client_sample(cpu_ratio=cpu))
        client = counted.snapshot(0).client
        assert client is not None
        verdicts.append(client.bound)
    # medians of (95 95 95), (20 95 95 95), (20 20 95 95 95), (20 20 20 95 95), (20 20 20 20 95)
    assert verdicts == [None, None, True, True, True, False, False]


def test_lag_counts_against_ttft() -> None:
    counted = worker()
    counted.event(level_start())
    for _ in range(3):
        counted.event(client_sample(lag_s=0.09))
    assert bound(counted) is True  # more than 50 ms
    # TTFT 200 ms: half of it, 100 ms, is allowed
    counted.record(record())
    counted.event(client_sample(lag_s=0.09))
    assert bound(counted) is False


def test_lateness_counts_against_ttft() -> None:
    counted = worker()
    counted.event(level_start())
    # a quarter of 200 ms is 50 ms; these left 60 ms late
    counted.record(record(t_sent_s=1.06, t_end_s=1.4))
    for _ in range(3):
        counted.event(client_sample())
    assert bound(counted) is True
    # another level starts afresh
    counted.event(level_start(OTHER))
    counted.event(client_sample())
    assert bound(counted) is None


def bound(counted: LiveWorker) -> bool | None:
    client = counted.snapshot(0).client
    assert client is not None
    return client.bound


def test_a_snapshot_survives_the_way() -> None:
    counted = worker()
    counted.event(level_start())
    counted.record(record())
    counted.event(client_sample())
    snapshot = counted.snapshot(2)
    line = encode(snapshot)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert decode(line) == snapshot
    assert counted.snapshot(2).seq == snapshot.seq + 1
