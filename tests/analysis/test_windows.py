from __future__ import annotations

import msgspec
import pytest

from harness.analysis.latency import measure_latency, request_times
from harness.analysis.summary_types import ThroughputFigures, Window
from harness.analysis.table import CellTable, build_tables
from harness.analysis.throughput import measure_throughput
from harness.analysis.windows import (
    LOAD_SHARE,
    LevelMarks,
    counted_mask,
    level_marks,
    measure_window,
)
from harness.records import RequestRecord, RunEvent
from harness.workload import Slo
from tests.support.fake_records import cell_of, failure, record
from tests.support.fake_server import PAGED

CELL = cell_of(PAGED, 2)
MARKS = LevelMarks(users=2, start_s=0.0, close_s=6.0, end_s=11.0, reason="complete")


def one(seq: int, user: int, sent: float, end: float, **changes: object) -> RequestRecord:
    """A request of 10 tokens: the first at a fifth of its time, the last at its end."""
    first = (end - sent) / 5
    gap = round((end - sent - first) / 9 * 1e6)
    facts: dict[str, object] = {
        "user": user,
        "t_intended_s": sent,
        "t_sent_s": sent,
        "t_end_s": end,
        "token_us": (round(first * 1e6), *[gap] * 9),
        "output_tokens": 10,
    }
    return record(CELL, seq, **{**facts, **changes})


#: two users; the first completions are at 2 and 3 s, so the window opens at 3 s
STEADY = [
    one(0, 0, 0.0, 2.0),
    one(1, 1, 0.1, 3.0),
    one(2, 0, 2.0, 4.0),
    one(3, 1, 3.0, 5.0),
    one(4, 0, 4.0, 6.0),
    one(5, 1, 5.0, 8.0),
    one(6, 0, 6.0, 8.0),
    one(7, 1, 8.0, 9.0),
    one(8, 0, 8.0, 11.0),
]


def table_of(records: list[RequestRecord]) -> CellTable:
    return build_tables(records)[CELL]


def measured(
    records: list[RequestRecord], marks: LevelMarks = MARKS, slo: Slo | None = None
) -> tuple[Window, list[int], ThroughputFigures]:
    table = table_of(records)
    window = measure_window(table, marks)
    counted = counted_mask(table, window)
    rates = measure_throughput(table, window, counted, request_times(table), slo or Slo())
    return window, [i for i, flag in enumerate(counted) if flag], rates


def test_b48_the_window_opens_when_every_user_completed_one() -> None:
    window, counted, _ = measured(STEADY)
    assert window.open_s == 3.0
    assert window.close_s == 6.0
    # sent in [3, 6]: requests 3, 4, 5, 6; the cold ones and those after the close are not
    assert counted == [3, 4, 5, 6]


def test_b42_ramp_warmup_followup_and_drain_are_shown_apart() -> None:
    window, _, _ = measured(STEADY)
    # both in flight from 0.1; open at 3.0; last counted token at 8.0; level ends at 11
    assert window.ramp_s == pytest.approx(0.1)
    assert window.warmup_s == pytest.approx(2.9)
    assert window.follow_s == pytest.approx(2.0, abs=1e-4)
    assert window.drain_s == pytest.approx(3.0, abs=1e-4)


def test_b46_full_means_all_users_in_flight() -> None:
    assert measured(STEADY)[0].full_share == pytest.approx(1.0)
    # user 1 rests from 5.0 to 5.5 s of the 5 s from open to the last counted token
    gap = [*STEADY[:5], one(5, 1, 5.5, 8.0), *STEADY[6:]]
    assert measured(gap)[0].full_share == pytest.approx(1 - 0.5 / 5, abs=1e-4)
    # a pause of 4 ms is the start of the next request, no gap; one of 6 ms is
    assert measured([*STEADY[:5], one(5, 1, 5.004, 8.0), *STEADY[6:]])[0].full_share == 1.0
    share = measured([*STEADY[:5], one(5, 1, 5.006, 8.0), *STEADY[6:]])[0].full_share
    assert share is not None and share < 1.0


def test_throughput_counts_what_arrived_inside_the_window() -> None:
    _, _, rates = measured(STEADY)
    # window (3, 6]. Request 2 (2..4 s): tokens at 2.4 + k * 0.17778, those after 3.0 are
    # k = 4..9: 6. Request 3 (3..5): 10. Request 4 (4..6): 10. Request 5 (5..8): tokens at
    # 5.6 + k * 0.26667, up to 6.0: k = 0, 1: 2. Request 6 starts at 6. 28 tokens in 3 s.
    assert rates.output_tokens_per_s == pytest.approx(28 / 3)
    # ended inside: requests 2, 3, 4
    assert rates.requests_per_s == pytest.approx(3 / 3)
    # first tokens inside: request 3 (3.4), 4 (4.4), 5 (5.6): three prompts of 512
    assert rates.prompt_tokens_per_s == pytest.approx(3 * 512 / 3)


def test_b50_in_flight_is_measured_not_assumed() -> None:
    # without user 0 after 4 s only one request is in flight in two of the three seconds
    half = [r for r in STEADY if r.seq not in (4, 6, 8)]
    _, _, rates = measured(half)
    assert rates.mean_in_flight == pytest.approx((1 * 2 + 2 * 1) / 3)
    assert measured(STEADY)[2].mean_in_flight == pytest.approx(2.0)
    assert measured(STEADY)[2].max_in_flight == 2


def test_goodput_a_failure_misses_and_one_token_passes_tpot() -> None:
    slo = Slo(ttft_s=0.5, tpot_s=0.2)
    single = one(4, 0, 4.0, 6.0, token_us=(400_000,), output_tokens=1)
    failed = failure(CELL, 5, user=1, t_intended_s=5.0, t_sent_s=5.0, t_end_s=8.0)
    records = [*STEADY[:4], single, failed, *STEADY[6:]]
    _, counted, rates = measured(records, slo=slo)
    assert counted == [3, 4, 5, 6]
    # 3: TTFT 0.4, TPOT 1.6 / 9 = 0.178: meets; 4: one token; 5 failed; 6: as 3
    assert rates.slo_attainment == pytest.approx(3 / 4)
    # ended inside and good: 2, 3, 4
    assert rates.goodput_rps == pytest.approx(3 / 3)
    assert measured(STEADY)[2].goodput_rps is None


def test_a22_bursts_weigh_by_the_servers_count() -> None:
    # 5 text events stand for 10 tokens, so each weighs 2
    burst = one(3, 1, 3.0, 5.0, token_us=(400_000, *[400_000] * 4), output_tokens=10)
    _, _, rates = measured([*STEADY[:3], burst, *STEADY[4:]])
    assert rates.output_tokens_per_s == pytest.approx(28 / 3)


def test_a10_tokens_of_failed_requests_are_no_throughput() -> None:
    broken = one(3, 1, 3.0, 5.0, outcome="in_band_error", error="x")
    _, _, rates = measured([*STEADY[:3], broken, *STEADY[4:]])
    assert rates.output_tokens_per_s == pytest.approx(18 / 3)


def test_failures_alone_still_open_the_window() -> None:
    records = [
        failure(CELL, i, user=i % 2, t_intended_s=float(i), t_sent_s=None, t_end_s=i + 0.5)
        for i in range(8)
    ]
    window, counted, rates = measured(records)
    assert window.open_s == 1.5
    assert counted == [2, 3, 4, 5, 6]
    assert (rates.output_tokens_per_s, rates.mean_in_flight) == (0.0, 0.0)


def test_a_user_that_never_completes_keeps_the_window_shut() -> None:
    window, counted, rates = measured([r for r in STEADY if r.user == 0])
    assert (window.open_s, window.length_s, window.closed_by) == (None, None, "never")
    assert counted == []
    assert rates.output_tokens_per_s is None


@pytest.mark.parametrize(
    ("marks", "close", "closed_by"),
    [
        (LevelMarks(users=2, start_s=0.0, end_s=7.0), 7.0, "level_end"),
        (LevelMarks(users=2, start_s=0.0, lost_s=5.5, end_s=7.0), 5.5, "lost"),
        (LevelMarks(users=2, start_s=0.0), 11.0, "lost"),
    ],
)
def test_a_run_cut_short_closes_where_it_was_cut(
    marks: LevelMarks, close: float, closed_by: str
) -> None:
    window, _, _ = measured(STEADY, marks)
    assert (window.close_s, window.closed_by, window.complete) == (close, closed_by, False)


def test_no_records_at_all() -> None:
    window = measure_window(build_tables([]).get(CELL) or _empty(), MARKS)
    assert (window.open_s, window.full_share, window.drain_s) == (None, None, None)


def _empty() -> CellTable:
    from harness.analysis.table import TableBuilder

    return TableBuilder(CELL).build()


def test_marks_come_from_the_events_of_a_cell() -> None:
    events = [
        RunEvent(t_s=0.0, kind="run_start"),
        RunEvent(t_s=1.0, kind="level_start", cell=CELL, detail={"users": 2}),
        RunEvent(t_s=4.0, kind="window_close", cell=CELL),
        RunEvent(t_s=9.0, kind="level_end", cell=CELL, detail={"reason": "time_limit"}),
    ]
    marks = level_marks(events)[CELL]
    assert (marks.users, marks.start_s, marks.close_s, marks.end_s) == (2, 1.0, 4.0, 9.0)
    assert marks.reason == "time_limit"
    # killed before the level's end: the window's own reason stands
    events[2] = RunEvent(t_s=4.0, kind="window_close", cell=CELL, detail={"reason": "complete"})
    assert level_marks(events[:3])[CELL].reason == "complete"


@pytest.mark.parametrize(
    ("users", "level", "known"),
    [
        (1e308, 2.0, 2),  # no number of users: the level's
        (-3, 2.0, 2),
        ("many", 2.0, 2),
        (None, 0.5, 1),  # a level below 1 has a user all the same
        (None, 1e308, 10**6),
        (7, 2.0, 7),
    ],
)
def test_users_that_cannot_be_are_not_believed(users: object, level: float, known: int) -> None:
    cell = cell_of(PAGED, level)
    detail = {} if users is None else {"users": users}
    event = RunEvent(t_s=1.0, kind="level_start", cell=cell, detail=detail)  # type: ignore[arg-type]
    assert level_marks([event])[cell].users == known


def test_b48_a_cold_start_is_in_no_figure() -> None:
    """[30.0] + 9 x 0.2 s: the mean is 0.2 s, where all ten would give 31.8 / 10 = 3.18 s."""
    cold = [one(0, 0, 0.0, 30.0)]
    warm = [one(i, 0, 30.0 + 0.2 * (i - 1), 30.0 + 0.2 * i) for i in range(1, 10)]
    table = table_of(cold + warm)
    window = measure_window(table, LevelMarks(users=1, start_s=0.0, close_s=31.8, end_s=31.8))
    counted = counted_mask(table, window)
    assert (window.open_s, int(counted.sum())) == (30.0, 9)
    found = measure_latency(table, counted, request_times(table)).e2e_s
    assert found.mean == pytest.approx(0.2, abs=1e-4)


def test_b46_a_limit_of_100_in_flight_is_seen_under_128_users() -> None:
    """100 requests of 1 s at a time, of 128 users in turn: in flight are 100, not 128."""
    cell = cell_of(PAGED, 128)
    records = [one(i, i % 128, i // 100, i // 100 + 1.0) for i in range(1000)]
    for item in records:
        assert item.outcome == "ok"
    table = build_tables([msgspec.structs.replace(item, cell=cell) for item in records])[cell]
    window = measure_window(table, LevelMarks(users=128, start_s=0.0, close_s=9.0, end_s=10.0))
    assert (window.users, window.full_share) == (128, 0.0)
    # below 0.95: the level gives no verdict
    assert window.load_share == pytest.approx(100 / 128, abs=0.01)
    assert window.load_share is not None and window.load_share < LOAD_SHARE
