"""Snapshots of several workers become one page, whatever order they come in."""

from __future__ import annotations

import itertools

import msgspec
from prometheus_client import CollectorRegistry, generate_latest

from harness.live.collector import LiveCollector
from harness.live.snapshot import Message, RunEnd, Snapshot, add_cells, latest_levels
from harness.live.worker import LiveWorker
from harness.workload import Slo
from tests.live.support import (
    CELL,
    OTHER,
    Samples,
    client_sample,
    facts,
    level_end,
    level_start,
    names,
    record,
    samples,
    value,
)

PAGED = {"backend": "paged", "mode": "paged"}
C16 = {**PAGED, "level": "16"}


def page(*messages: Message) -> Samples:
    collector = LiveCollector()
    for message in messages:
        collector.take(message)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return samples(generate_latest(registry).decode())


def worker(name: str, slo: Slo | None = None) -> LiveWorker:
    made = LiveWorker("r1", name, slo or Slo(), wall_offset_s=1000.0)
    made.event(level_start(users=8))
    return made


def snapshots_of_two() -> tuple[list[Snapshot], list[Snapshot]]:
    """Worker a reports after 1, 2 and 3 requests, b after 1 and 3."""
    a, b = worker("a"), worker("b")
    of_a, of_b = [], []
    for _ in range(3):
        a.record(record())
        of_a.append(a.snapshot(in_flight=4))
    b.record(record())
    of_b.append(b.snapshot(in_flight=5))
    b.record(record("timeout"))
    b.record(record())
    of_b.append(b.snapshot(in_flight=5))
    return of_a, of_b


def test_two_workers_add_up() -> None:
    of_a, of_b = snapshots_of_two()
    found = page(facts(), *of_a, *of_b)
    assert value(found, "kvknee_requests_total", **C16, outcome="ok") == 3 + 2
    assert value(found, "kvknee_requests_total", **C16, outcome="timeout") == 1
    assert value(found, "kvknee_users", **C16) == 8 + 8
    assert value(found, "kvknee_requests_in_flight", **C16) == 4 + 5
    assert value(found, "kvknee_output_tokens_total", **C16) == 5 * 3
    assert value(found, "kvknee_ttft_seconds_count", **C16) == 5
    assert value(found, "kvknee_ttft_seconds_sum", **C16) == 5 * 0.2
    # two gaps each, 10 and 30 ms
    assert value(found, "kvknee_itl_seconds_bucket", **C16, le="0.01") == 5
    assert value(found, "kvknee_itl_seconds_bucket", **C16, le="0.03") == 10
    # one and the same level, not twice its number
    assert value(found, "kvknee_current_level", **PAGED) == 16


def test_duplicates_and_disorder_change_nothing() -> None:
    of_a, of_b = snapshots_of_two()
    expected = page(facts(), of_a[-1], of_b[-1])
    for order in itertools.permutations([*of_a, *of_b]):
        assert page(facts(), *order, *order) == expected


def test_a_late_last_report_still_counts() -> None:
    of_a, of_b = snapshots_of_two()
    before = page(facts(), of_a[-1], of_b[0], RunEnd(run="r1"))
    assert value(before, "kvknee_requests_total", **C16, outcome="ok") == 3 + 1
    after = page(facts(), of_a[-1], of_b[0], RunEnd(run="r1"), of_b[-1], of_b[0])
    assert value(after, "kvknee_requests_total", **C16, outcome="ok") == 3 + 2
    assert "kvknee_run_info" not in names(after)


def test_what_belongs_to_another_run_is_dropped() -> None:
    of_a, _ = snapshots_of_two()
    stray = msgspec.structs.replace(of_a[-1], run="r0")
    found = page(facts(), of_a[0], stray, RunEnd(run="r0"))
    assert value(found, "kvknee_requests_total", **C16, outcome="ok") == 1
    assert "kvknee_run_info" in names(found)


def test_a_new_run_starts_at_nothing() -> None:
    of_a, _ = snapshots_of_two()
    found = page(facts(), of_a[-1], facts("r2"))
    assert "kvknee_requests_total" not in names(found)
    # and a late report of the old one does not come back
    assert "kvknee_requests_total" not in names(page(facts(), facts("r2"), of_a[-1]))


def test_before_the_first_run_the_page_is_empty() -> None:
    assert page() == {}
    assert page(snapshots_of_two()[0][0]) == {}


def test_cells_of_one_worker_only_are_kept() -> None:
    a, b = worker("a"), worker("b")
    b.event(level_start(OTHER, users=4))
    added = add_cells([a.snapshot(1), b.snapshot(2)])
    assert [(c.backend, c.users) for c in added] == [("contiguous", 4), ("paged", 16)]


def test_a_level_is_over_when_its_last_worker_is_done() -> None:
    a, b = worker("a"), worker("b")
    a.event(level_end())
    half = latest_levels([a.snapshot(0), b.snapshot(0)])
    assert half[("paged", "paged")].level == 16
    b.event(level_end())
    assert latest_levels([a.snapshot(0), b.snapshot(0)])[("paged", "paged")].level == 0


def test_the_slowest_client_speaks_for_all() -> None:
    a, b = worker("a"), worker("b")
    for _ in range(3):
        a.event(client_sample(lag_s=0.002, cpu_ratio=0.95))
    b.event(client_sample(lag_s=0.004, cpu_ratio=0.5))
    found = page(facts(), a.snapshot(0), b.snapshot(0))
    assert value(found, "kvknee_client_lag_seconds") == 0.004
    assert value(found, "kvknee_client_cpu_ratio") == 0.95
    # b cannot tell yet, a can
    assert value(found, "kvknee_client_bound") == 1


def test_absent_is_absent() -> None:
    found = names(page(facts(), worker("a").snapshot(0)))
    # no limits, no samples of the client
    assert not found & {
        "kvknee_good_requests_total",
        "kvknee_slo_seconds",
        "kvknee_client_bound",
        "kvknee_client_lag_seconds",
    }


def test_what_is_known_of_the_run() -> None:
    slo = Slo(ttft_s=0.5, tpot_s=0.05)
    a = worker("a", slo)
    a.record(record())
    found = page(facts(slo=slo), a.snapshot(0))
    about = {"run": "r1", "scenario": "concurrency", "model": "tiny", "version": "0.1.0"}
    assert value(found, "kvknee_run_info", **about) == 1
    assert value(found, "kvknee_run_start_timestamp_seconds") == 1000
    # started at 10 s of the monotonic clock
    assert value(found, "kvknee_level_start_timestamp_seconds", **PAGED) == 1010
    static = {"backend": "contiguous", "mode": "static"}
    assert value(found, "kvknee_current_level", **static) == 0
    assert value(found, "kvknee_level_start_timestamp_seconds", **static) is None
    assert value(found, "kvknee_slo_seconds", metric="ttft") == 0.5
    assert value(found, "kvknee_slo_seconds", metric="e2e") is None
    assert value(found, "kvknee_good_requests_total", **C16) == 1
    assert value(found, "kvknee_kv_bytes_per_token", **PAGED) == 1024
    assert value(found, "kvknee_kv_bytes_per_token", **static) is None
    # 512 + 128 tokens
    assert value(found, "kvknee_kv_bytes_per_request_predicted", **PAGED) == 640 * 1024


def test_labels_are_bounded_by_what_the_run_asks() -> None:
    a = worker("a")
    for seq in range(50):
        a.record(record(seq=seq, user=seq, error=f"text {seq}"))
    few = page(facts(), a.snapshot(0))
    b = worker("a")
    b.record(record())
    assert set(few) == set(page(facts(), b.snapshot(0)))
    assert CELL.label not in str(few)
