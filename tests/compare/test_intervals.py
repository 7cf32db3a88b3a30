"""The intervals: their arithmetic by hand, and how often they hold the truth."""

from __future__ import annotations

import numpy as np
import pytest

from harness.analysis.table import Floats
from harness.compare.metrics import METRICS
from harness.compare.resample import DRAWS, draws_of
from harness.compare.shares import share_difference
from harness.compare.types import Metric, Sample
from harness.records import Loop

P50 = next(metric for metric in METRICS if metric.name == "ttft_p50_s")
RATE = next(metric for metric in METRICS if metric.name == "output_tokens_per_s")
KV = next(metric for metric in METRICS if metric.name == "kv_bytes_per_token")


def sample(
    ttft: Floats, users: int = 1, tokens: Floats | None = None, loop: Loop = "closed"
) -> Sample:
    return Sample(
        ok=~np.isnan(ttft),
        latency={"ttft_s": ttft, "tpot_s": ttft, "e2e_s": ttft},
        tokens=np.full(ttft.size, 10.0) if tokens is None else tokens,
        taken_s=ttft,
        used_bytes=np.arange(1.0, 41.0) * 1024,
        token_places=np.arange(1.0, 41.0),
        users=users,
        loop=loop,
    )


def drawn(metric: Metric, of: Sample, seed: int = 0) -> Floats:
    found = draws_of(metric, of, (seed, 1))
    assert found is not None
    assert found.size == DRAWS
    return found


def test_newcombes_own_example() -> None:
    # Newcombe 1998, table II (a): 56/70 - 48/80 = 0.2, method 10: 0.0524 to 0.3339
    found = share_difference(48, 80, 56, 70)
    assert found.value == pytest.approx(0.2)
    assert found.low == pytest.approx(0.0524, abs=1e-4)
    assert found.high == pytest.approx(0.3339, abs=1e-4)


def test_no_failures_on_either_side_still_have_an_interval() -> None:
    found = share_difference(0, 100, 0, 100)
    assert found.value == 0.0
    assert found.low < 0 < found.high


def test_a_percentile_is_drawn_from_its_values() -> None:
    ttft = np.arange(1.0, 102.0)
    found = drawn(P50, sample(ttft))
    assert set(found) <= set(ttft)
    assert np.median(found) == pytest.approx(51, abs=2)
    # standard error of a median of a uniform sample: range / (2 sqrt(n + 2)) = 4.9
    assert found.std() == pytest.approx(4.9, rel=0.2)


def test_failed_requests_have_no_latency() -> None:
    ttft = np.where(np.arange(100) % 2 == 0, np.nan, 5.0)
    assert set(drawn(P50, sample(ttft))) == {5.0}


def test_neighbours_are_drawn_together() -> None:
    # rounds of 10 alike requests: ten blocks, so a median can only be one of ten values
    rounds = np.repeat(np.arange(1.0, 11.0), 10)
    alike = drawn(P50, sample(rounds, users=10))
    apart = drawn(P50, sample(rounds, users=1))
    assert alike.std() > 2 * apart.std()


def test_a_rate_is_users_times_tokens_over_time() -> None:
    same = drawn(RATE, sample(np.full(100, 2.0)))
    assert np.allclose(same, 1.0)
    uneven = drawn(RATE, sample(np.linspace(1.0, 3.0, 100)))
    # of the mean time: 0.577 / 2 / sqrt(100)
    assert uneven.mean() == pytest.approx(1.0, abs=0.01)
    assert uneven.std() == pytest.approx(0.0289, rel=0.15)


def test_of_an_open_loop_the_tokens_make_the_rate() -> None:
    found = drawn(RATE, sample(np.linspace(1.0, 3.0, 100), loop="open"))
    assert np.allclose(found, 1.0)


def test_bytes_per_token_of_equal_moments() -> None:
    assert np.allclose(drawn(KV, sample(np.ones(10))), 1024.0)


@pytest.mark.parametrize("metric", [P50, RATE], ids=lambda metric: metric.name)
def test_one_request_has_no_interval(metric: Metric) -> None:
    assert draws_of(metric, sample(np.ones(1)), (0,)) is None


def test_shares_are_not_drawn() -> None:
    failed = next(metric for metric in METRICS if metric.name == "failure_share")
    assert draws_of(failed, sample(np.ones(10)), (0,)) is None


def test_many_requests_are_drawn_in_parts() -> None:
    found = drawn(P50, sample(np.random.default_rng(2).random(20_000)))
    assert found.mean() == pytest.approx(0.5, abs=0.01)


def test_intervals_of_equal_runs_hold_no_change_as_often_as_they_say() -> None:
    """400 pairs of samples of one exponential distribution: 95 % of the intervals hold 1."""
    rng = np.random.default_rng(7)
    held = 0
    for seed in range(400):
        a, b = (sample(rng.exponential(1.0, 120)) for _ in range(2))
        one, other = draws_of(P50, a, (seed, 0)), draws_of(P50, b, (seed, 1))
        assert one is not None
        assert other is not None
        low, high = np.percentile(other / one, [2.5, 97.5])
        held += low <= 1.0 <= high
    # percentile intervals of 120 values are a little wide: 0.97 was seen from three seeds
    assert 0.93 <= held / 400 <= 0.99
