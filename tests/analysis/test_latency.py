from __future__ import annotations

import numpy as np
import pytest

from harness.analysis.latency import event_gaps_s, measure_latency, request_times
from harness.analysis.latency_types import LatencyFigures
from harness.analysis.table import CellTable, build_tables
from harness.records import RequestRecord
from tests.support.fake_records import cell_of, failure, record
from tests.support.fake_server import PAGED

CELL = cell_of(PAGED, 1)


def table_of(*records: RequestRecord) -> CellTable:
    return build_tables(records)[CELL]


def latency_of(*records: RequestRecord) -> LatencyFigures:
    table = table_of(*records)
    return measure_latency(table, np.ones(table.n, dtype=np.bool_), request_times(table))


def test_ttft_e2e_and_tpot_of_three_tokens() -> None:
    # tokens at 0.5, 0.6, 0.7 s: TPOT = (0.7 - 0.5) / (3 - 1)
    found = latency_of(record(CELL))
    assert found.ttft_s.value(50) == pytest.approx(0.5)
    assert found.e2e_s.value(50) == pytest.approx(0.7)
    assert found.tpot_s.value(50) == pytest.approx(0.1)


def test_a17_usage_frame_does_not_extend_the_request() -> None:
    # tokens at 1.0, 1.1, 1.2; the client was done at 2.0: TPOT = 0.2 / 2
    found = latency_of(record(CELL, t_end_s=12.0, token_us=(1_000_000, 100_000, 100_000)))
    assert found.e2e_s.value(50) == pytest.approx(1.2)
    assert found.tpot_s.value(50) == pytest.approx(0.1)


def test_a22_tpot_divides_by_tokens_not_by_events() -> None:
    # 1 + 3 + 4 + 2 = 10 tokens in 4 events at 1.0 .. 1.3 s: 0.3 / 9
    burst = record(
        CELL,
        t_end_s=11.5,
        token_us=(1_000_000, 100_000, 100_000, 100_000),
        token_n=(1, 3, 4, 2),
        output_tokens=10,
    )
    found = latency_of(burst)
    assert found.tpot_s.value(50) == pytest.approx(0.3 / 9)
    assert found.itl_s.n == 3
    assert found.tokens_per_event == pytest.approx(2.5)


def test_a27_an_answer_without_stream_has_no_ttft() -> None:
    found = latency_of(record(CELL, token_us=(), output_tokens=3))
    assert (found.ttft_s.n, found.ttft_s.value(50), found.e2e_s.value(50)) == (0, None, None)


def test_a20_time_to_first_content_is_apart() -> None:
    # reasoning from 28.64 s, content from 34.69 s
    thinking = record(
        CELL, t_end_s=50.0, token_us=(28_640_000, 6_050_000), first_content_us=34_690_000
    )
    found = latency_of(thinking)
    assert found.ttft_s.value(50) == pytest.approx(28.64)
    assert found.first_content_s.value(50) == pytest.approx(34.69)


def test_b30_ttft_is_no_gap_between_tokens() -> None:
    one = record(CELL, t_end_s=11.1, token_us=(1_000_000, 20_000, 20_000))
    gaps = event_gaps_s(table_of(one), np.array([True]))
    assert gaps.tolist() == pytest.approx([0.02, 0.02])


def test_b31_mean_tpot_weighs_requests_and_pooled_itl_weighs_gaps() -> None:
    # request 1: 1 gap of 0.1 s; request 2: 9 gaps of 0.02 s
    short = record(CELL, 0, token_us=(500_000, 100_000), output_tokens=2)
    long = record(CELL, 1, token_us=(500_000, *[20_000] * 9), output_tokens=10)
    found = latency_of(short, long)
    assert found.tpot_s.mean == pytest.approx((0.1 + 0.02) / 2)
    assert found.itl_s.mean == pytest.approx((1 * 0.1 + 9 * 0.02) / 10)
    assert found.itl_s.n == 10


def test_b32_tpot_divides_by_the_real_length() -> None:
    # TTFT 0.5, end 1.5, 11 tokens of 101 asked: 1.0 / 10, not 1.0 / 100
    found = latency_of(
        record(
            CELL,
            t_end_s=11.6,
            token_us=(500_000, *[100_000] * 10),
            output_tokens=11,
            asked_output_tokens=101,
        )
    )
    assert found.tpot_s.value(50) == pytest.approx(0.1)


def test_b34_an_empty_answer_is_a_failure_and_divides_nothing() -> None:
    good = [record(CELL, i, token_us=(1000, *[1000] * 127), output_tokens=128) for i in (0, 2)]
    found = latency_of(good[0], failure(CELL, 1, outcome="short_output"), good[1])
    assert (found.tpot_s.n, found.ttft_adjusted_s.n_failed) == (2, 1)
    # a single token has no TPOT
    assert latency_of(record(CELL, token_us=(500_000,), output_tokens=1)).tpot_s.n == 0


def test_b37_failures_do_not_enter_the_times() -> None:
    # 100 answers of 1 s and 20 refusals after 5 ms: a common mean would be 834.2 ms
    good = [
        record(CELL, i, t_end_s=11.0, token_us=(500_000, 500_000), output_tokens=2)
        for i in range(100)
    ]
    bad = [failure(CELL, 100 + i, outcome="rejected", t_end_s=10.005) for i in range(20)]
    found = latency_of(*good, *bad)
    assert found.e2e_s.mean == pytest.approx(1.0)
    assert (found.e2e_s.n, found.e2e_adjusted_s.n_failed) == (100, 20)


def test_b45_ttft_from_intended_shows_the_wait_before_sending() -> None:
    found = latency_of(record(CELL, t_intended_s=8.0))
    assert found.ttft_s.value(50) == pytest.approx(0.5)
    assert found.ttft_intended_s.value(50) == pytest.approx(2.5)


def test_b53_headers_are_no_first_token() -> None:
    found = latency_of(record(CELL, headers_s=0.005, token_us=(400_000,), output_tokens=1))
    assert found.ttft_s.value(50) == pytest.approx(0.4)


@pytest.mark.parametrize(
    "broken",
    [
        {"token_us": (0, 100_000, 100_000)},  # TTFT = 0
        {"token_us": (-5, 100_000, 100_000)},
        {"token_us": (500_000, -100_000, 100_000)},  # time runs back
        {"t_end_s": 10.6},  # last token after the end
        {"t_intended_s": 10.5},  # sent before it was intended
    ],
)
def test_b55_contradicting_times_are_left_out_and_counted(broken: dict[str, object]) -> None:
    found = latency_of(record(CELL, 0), record(CELL, 1, **broken))
    assert found.broken_timelines == 1
    assert found.ttft_s.n == 1
    assert found.itl_s.n == 2


def test_b55_gaps_add_up_to_e2e_minus_ttft() -> None:
    rng = np.random.default_rng(1)
    gaps = tuple(int(v) for v in rng.integers(1, 90_000, 200))
    table = table_of(record(CELL, t_end_s=100.0, token_us=gaps, output_tokens=200))
    times = request_times(table)
    total = event_gaps_s(table, np.array([True])).sum()
    assert total == pytest.approx(float(times.e2e_s[0] - times.ttft_s[0]))


def test_b40_a_record_reported_twice_counts_once() -> None:
    # two workers, three records each, the second worker's last report came twice
    one = [record(CELL, i, worker="w1", token_us=(1000 * (i + 1),)) for i in range(3)]
    two = [record(CELL, i, worker="w2", token_us=(9000, 1, 1)) for i in range(3)]
    table = table_of(*one, *two, *two[1:])
    assert (table.n, table.duplicates) == (6, 2)
    assert table.events.tolist() == [1, 1, 1, 3, 3, 3]
    assert table.token_us.tolist() == [1000, 2000, 3000] + [9000, 1, 1] * 3


def test_coalesced_stamps_are_shares_of_events_and_of_first_tokens() -> None:
    found = latency_of(record(CELL, 0, coalesced=(0,)), record(CELL, 1))
    assert found.coalesced_share == pytest.approx(1 / 6)
    assert found.first_coalesced_share == pytest.approx(1 / 2)
    assert not found.itl_trusted
    assert not found.ttft_trusted


def test_error_texts_are_bounded() -> None:
    table = table_of(*(failure(CELL, i, error=f"e{i}") for i in range(100)))
    assert sum(e.count for e in table.errors) == 100
    assert len(table.errors) == 21


def test_b45_coordinated_omission_shows_only_against_the_schedule() -> None:
    # 10 a second, 100 of them, 10 ms each, one sender; request 50 stalls for 2 s and holds
    # up those behind it: the j-th after it ends 2 - 0.09 j s after it should have begun
    made: list[RequestRecord] = []
    free_s = 0.0
    for i in range(100):
        due_s = i * 0.1
        sent_s = max(due_s, free_s)
        service_s = 2.0 if i == 50 else 0.010
        free_s = sent_s + service_s
        made.append(
            record(CELL, i, user=0, t_intended_s=due_s, t_sent_s=sent_s, t_end_s=free_s,
                   token_us=(round(service_s * 1e6),), output_tokens=1)
        )  # fmt: skip
    found = latency_of(*made)
    # from sent: 99 of 0.010 and one of 2; p99 at rank 98.01 = 0.010 + 0.01 x 1.990 = 0.0299
    assert found.ttft_s.value(95) == pytest.approx(0.010)
    assert found.ttft_s.value(99) == pytest.approx(0.0299)
    # from the schedule: 2, 1.91, 1.82, 1.73, 1.64, 1.55 ...; p95 at rank 94.05 =
    # 1.55 + 0.05 x 0.09 = 1.5545, p99 at rank 98.01 = 1.91 + 0.01 x 0.09 = 1.9109
    assert found.ttft_intended_s.value(95) == pytest.approx(1.5545)
    assert found.ttft_intended_s.value(99) == pytest.approx(1.9109)
