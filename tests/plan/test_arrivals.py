from __future__ import annotations

import itertools
import math
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.plan.arrivals import (
    ListSchedule,
    RateSchedule,
    Share,
    ramp_requests,
    ramp_time_s,
    unit_gaps,
)
from harness.plan.traces import TraceRow
from harness.workload import Ramp


def rates(burstiness: float | None, seed: str = "0", **changes: object) -> RateSchedule:
    facts: dict[str, object] = {"warmup_s": 2.0, "min_requests": 50, "min_s": 1.0, "max_s": 100.0}
    return RateSchedule(10.0, burstiness, seed, **{**facts, **changes})  # type: ignore[arg-type]


def times(schedule: RateSchedule, n: int) -> list[float]:
    return [arrival.at_s for arrival in itertools.islice(schedule.arrivals(), n)]


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_are_gamma(burstiness: float) -> None:
    """Shape b and scale 1/b: mean 1, standard deviation 1/sqrt(b).

    Of 20,000 gaps the mean strays by 1/sqrt(20,000 b), 0.014 at b = 0.25; five of that.
    """
    gaps = list(itertools.islice(unit_gaps(burstiness, "seed"), 20_000))
    assert fmean(gaps) == pytest.approx(1.0, abs=5 / math.sqrt(20_000 * burstiness))
    assert pstdev(gaps) == pytest.approx(1 / math.sqrt(burstiness), rel=0.1)


def test_without_burstiness_gaps_are_equal() -> None:
    assert times(rates(None), 4) == pytest.approx([0.1, 0.2, 0.3, 0.4])


def test_a_schedule_is_its_seed() -> None:
    assert times(rates(1.0, "a"), 100) == times(rates(1.0, "a"), 100)
    assert times(rates(1.0, "a"), 100) != times(rates(1.0, "b"), 100)


def test_the_window_closes_with_its_last_request() -> None:
    """At 10/s from 0.1 s on, numbers 20 (2.0 s) to 69 (6.9 s) are 50 requests."""
    schedule = rates(None)
    assert (schedule.open_s, schedule.reason) == (2.0, "complete")
    assert schedule.close_s == pytest.approx(6.9)
    counted = [a for a in itertools.islice(schedule.arrivals(), 100) if schedule.counts(a)]
    assert len(counted) == 50


def test_the_window_lasts_its_shortest_time_and_ends_at_its_longest() -> None:
    assert rates(None, min_s=9.0).close_s == pytest.approx(11.0)
    short = rates(None, max_s=4.0)
    assert (short.close_s, short.reason) == (4.0, "time_limit")


@given(st.integers(1, 7), st.integers(1, 60))
def test_workers_share_a_schedule(workers: int, n: int) -> None:
    """Each arrival is one worker's."""
    rows = tuple(TraceRow(float(i), 1, 1) for i in range(n))
    schedule = ListSchedule(rows, warmup_s=0.0, length_s=float(n))
    parts = [list(schedule.shared_by(Share(i, workers))) for i in range(workers)]
    assert sorted(a for part in parts for a in part) == list(schedule.arrivals())
    assert max(len(part) for part in parts) - min(len(part) for part in parts) <= 1


@given(st.integers(1, 7), st.integers(7, 60))
def test_workers_share_a_limit(workers: int, limit: int) -> None:
    assert sum(Share(i, workers).part_of(limit) for i in range(workers)) == limit


def test_a_share_is_one_of_its_number() -> None:
    with pytest.raises(ValueError, match="worker 2 of 2"):
        Share(2, 2)


def ramp(strategy: str, start: float = 1.0, end: float = 9.0) -> Ramp:
    return Ramp(strategy=strategy, start_rps=start, end_rps=end, seconds=20.0)  # type: ignore[arg-type]


def test_a_linear_ramp() -> None:
    """1 + 0.4 t requests/s: t + 0.2 t^2 requests until t.

    10 s: 10 + 20 = 30; 20 s: 20 + 80 = 100. Behind it 9/s: the 109th 1 s later.
    """
    asked = ramp("linear")
    assert ramp_requests(asked) == 100.0
    assert [ramp_time_s(asked, n) for n in (30.0, 100.0, 109.0)] == pytest.approx([10, 20, 21])


def test_an_exponential_ramp() -> None:
    """9^(t / 20) requests/s: 20 / ln 9 x (9^(t / 20) - 1) requests until t.

    At 10 s 9^0.5 = 3: 20 / ln 9 x 2 = 18.205; at 20 s 20 / ln 9 x 8 = 72.819.
    """
    asked = ramp("exponential")
    assert ramp_requests(asked) == pytest.approx(72.819, abs=1e-3)
    assert ramp_time_s(asked, 40 / math.log(9)) == pytest.approx(10.0)
    assert ramp_time_s(asked, ramp_requests(asked) + 9) == pytest.approx(21.0)


@pytest.mark.parametrize("strategy", ["linear", "exponential"])
@pytest.mark.parametrize("ends", [(1.0, 9.0), (9.0, 1.0), (4.0, 4.0)])
def test_a_ramp_rises_falls_or_stays(strategy: str, ends: tuple[float, float]) -> None:
    asked = ramp(strategy, *ends)
    n = int(ramp_requests(asked))
    found = [ramp_time_s(asked, float(i)) for i in range(n + 20)]
    gaps = [b - a for a, b in itertools.pairwise(found)]
    assert gaps[0] == pytest.approx(1 / ends[0], rel=0.2)
    assert gaps[-1] == pytest.approx(1 / ends[1])
    assert min(gaps) > 0


def test_a_ramp_is_the_window() -> None:
    schedule = rates(None, warmup_s=5.0, ramp=ramp("linear"))
    assert (schedule.open_s, schedule.close_s) == (5.0, 20.0)
