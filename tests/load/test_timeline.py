from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.load.answer import read_answer
from harness.load.reads import NO_STAMP, Reads
from harness.load.sse import parse_events
from harness.load.timeline import Arrivals, arrivals, build_timeline
from tests.load.stream_builder import chat_delta, stamp_of, timeline_of, usage_frame
from tests.support.scripted_server import DONE, text_chunk

WALL = 1_700_000_000.0


def test_a17_a_usage_frame_does_not_extend_the_request() -> None:
    frames = [*[text_chunk("x")] * 3, usage_frame(3), DONE]
    answer, timeline = timeline_of([1.0, 1.1, 1.2, 1.9, 2.0], *frames)
    ttft, e2e = timeline.token_us[0], sum(timeline.token_us)
    assert (ttft, e2e) == (1_000_000, 1_200_000)
    # TPOT = (1.2 - 1.0) / (3 - 1) = 0.1 s
    assert answer.output_tokens == 3
    assert (e2e - ttft) / (answer.output_tokens - 1) == pytest.approx(100_000)


def test_a18_a_role_frame_is_no_first_token() -> None:
    frames = [chat_delta(role="assistant"), *[chat_delta(content="x")] * 3]
    _, timeline = timeline_of([0.9, 2.2, 2.22, 2.24], *frames)
    assert timeline.token_us == (2_200_000, 20_000, 20_000)


def test_a22_bursts_keep_their_token_counts() -> None:
    counts = [1, 4, 8, 10]  # cumulative: 1, 3, 4 and 2 tokens
    frames = [text_chunk("x", usage={"completion_tokens": n}) for n in counts]
    answer, timeline = timeline_of([1.0, 1.1, 1.2, 1.3], *frames, usage_frame(10))
    assert timeline.token_n == (1, 3, 4, 2)
    assert len(timeline.token_us) - 1 == 3
    assert answer.output_tokens == 10
    # TPOT = 0.3 s / 9 = 0.0333 s
    tpot_us = (sum(timeline.token_us) - timeline.token_us[0]) / (answer.output_tokens - 1)
    assert tpot_us == pytest.approx(33_333, abs=1)


def test_b30_the_first_gap_is_no_ttft() -> None:
    _, timeline = timeline_of([1.0, 1.02, 1.04], *[text_chunk("x")] * 3)
    assert timeline.token_us == (1_000_000, 20_000, 20_000)
    assert timeline.token_n is None


def test_b32_tpot_uses_the_real_length() -> None:
    frames = [text_chunk("x")] * 11
    times = [0.5 + 0.1 * i for i in range(11)]
    answer, timeline = timeline_of(times, *frames, usage_frame(11))
    # (1.5 - 0.5) / (11 - 1) = 0.1 s, whatever was asked
    assert answer.output_tokens == 11
    assert (sum(timeline.token_us) - timeline.token_us[0]) / 10 == pytest.approx(100_000)


def test_of_several_token_events_in_one_read_all_but_the_last_are_upper_bounds() -> None:
    x = text_chunk("x")
    pieces = [(0, x), (1, x + x + x), (2, x + usage_frame(5) + DONE)]
    answer = read_answer(parse_events(pieces))
    timeline = build_timeline(answer, Arrivals((0.1, 0.2, 0.3), (True,) * 3), 0.0)
    assert timeline.token_us == (100_000, 100_000, 0, 0, 100_000)
    assert timeline.coalesced == (1, 2)


def test_delta_coding_does_not_drift() -> None:
    # 3,000 gaps of 333.4 us: rounding each gap would lose 1.2 ms
    times = [0.01 + i * 333.4e-6 for i in range(3001)]
    _, timeline = timeline_of(times, *[text_chunk("x")] * 3001)
    assert sum(timeline.token_us) == round(times[-1] * 1e6)


def test_a25_a_stream_that_comes_at_once_at_the_end_is_flagged() -> None:
    x = text_chunk("x")
    answer = read_answer(parse_events([(0, x * 20)]))
    timeline = build_timeline(answer, Arrivals((1.0,), (True,)), 0.0)
    assert timeline.buffered
    # a long prefill and a few quick tokens, each with its own read, is no buffer:
    # TTFT / latency = 1.0 / 1.02 > 0.95
    _, timeline = timeline_of([1.0 + 0.001 * i for i in range(20)], *[x] * 20)
    assert not timeline.buffered
    # nor is a short answer in one read
    answer = read_answer(parse_events([(0, x * 3)]))
    assert not build_timeline(answer, Arrivals((1.0,), (True,)), 0.0).buffered


def read(t_s: float, stamp_s: float | None) -> tuple[float, bytes]:
    return t_s, NO_STAMP if stamp_s is None else stamp_of(WALL + stamp_s)


def test_stamps_are_mapped_to_the_monotonic_clock() -> None:
    # wall = monotonic + WALL; the client read 40 ms after the packets came
    arrived = arrivals(Reads([read(1.14, 1.1), read(1.24, 1.2)]), 1.0, WALL, trust_stamps=True)
    assert arrived.times_s == pytest.approx((1.1, 1.2), abs=1e-6)
    assert arrived.stamped == (True, True)


def test_a_read_without_a_stamp_uses_the_clients_own_time() -> None:
    arrived = arrivals(Reads([read(1.14, None), read(1.24, 1.2)]), 1.0, WALL, trust_stamps=True)
    assert arrived.times_s == pytest.approx((1.14, 1.2), abs=1e-6)
    assert arrived.stamped == (False, True)


def test_after_a_clock_step_no_stamp_is_used() -> None:
    arrived = arrivals(Reads([read(1.14, 1.1), read(1.24, 0.7)]), 1.0, WALL, trust_stamps=False)
    assert arrived.times_s == (1.14, 1.24)
    assert arrived.stamped == (False, False)


@pytest.mark.parametrize("impossible", [0.5, 3.0])
def test_a_stamp_before_the_request_or_after_its_read_is_not_believed(impossible: float) -> None:
    arrived = arrivals(Reads([read(1.14, impossible)]), 1.0, WALL, trust_stamps=True)
    assert arrived == Arrivals((1.14,), (False,))


def test_a_stamp_early_by_the_offsets_error_does_not_run_backwards() -> None:
    # 0.2 ms before the request was sent: sampling error, clamped to the sending
    arrived = arrivals(Reads([read(1.0005, 0.9998)]), 1.0, WALL, trust_stamps=True)
    assert arrived == Arrivals((1.0,), (True,))


def test_the_clock_of_a_timeline_is_that_of_its_token_reads() -> None:
    x = text_chunk("x")
    answer = read_answer(parse_events([(1, x), (2, x)]))
    times = (0.1, 0.2, 0.3)
    for stamped, clock in [
        ((False, True, True), "kernel"),  # the first read held headers only
        ((True, True, False), "mixed"),
        ((True, False, False), "monotonic"),
    ]:
        assert build_timeline(answer, Arrivals(times, stamped), 0.0).clock == clock


@given(
    st.lists(st.tuples(st.floats(0, 10), st.none() | st.floats(-5, 15)), min_size=1),
    st.booleans(),
)
def test_arrivals_never_fall_and_never_precede_the_request(
    raw: list[tuple[float, float | None]], trust: bool
) -> None:
    # reads are made in order of time
    ordered = sorted(t for t, _ in raw)
    reads = [read(1.0 + t, s) for t, (_, s) in zip(ordered, raw, strict=True)]
    arrived = arrivals(Reads(reads), 1.0, WALL, trust_stamps=trust).times_s
    assert list(arrived) == sorted(arrived)
    assert arrived[0] >= 1.0
    # never later than the client saw it, but for the limit of belief
    assert all(a <= own + 1e-9 for a, (own, _) in zip(arrived, reads, strict=True))
