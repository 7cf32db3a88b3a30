from __future__ import annotations

import math

import numpy as np
import pytest

from harness.analysis.percentiles import distribution, failure_adjusted, samples_needed
from harness.report.summary_json import plain


def values(*found: float) -> np.ndarray:
    return np.array(found, dtype=np.float64)


def test_b36_percentiles_are_linear_between_ranks() -> None:
    # positions 0..3: p50 at 1.5 -> (20 + 30) / 2; p95 at 2.85 -> 30 + 0.85 * 10
    found = distribution(values(10, 20, 30, 40))
    assert found.value(50) == pytest.approx(25)
    assert found.value(95) == pytest.approx(38.5)
    # 1..100: position of p is 0.99 p: 1 + 49.5, 1 + 94.05, 1 + 98.01
    hundred = distribution(values(*range(1, 101)))
    assert hundred.value(50) == pytest.approx(50.5)
    assert hundred.value(95) == pytest.approx(95.05)
    assert hundred.value(99) == pytest.approx(99.01)


def test_b43_few_samples_give_a_value_and_the_mark_insufficient() -> None:
    # position 0.99 * 2 = 1.98 -> 20 + 0.98 * 10
    found = distribution(values(10, 20, 30))
    assert found.value(99) == pytest.approx(29.8)
    assert found.at(99).insufficient
    assert found.earned(99) is None
    assert found.n == 3


def test_samples_needed_are_five_beyond_the_percentile() -> None:
    # 5 / (1 - p): 5 / 0.5, 5 / 0.05, 5 / 0.01; below the median the other tail counts
    assert [samples_needed(p) for p in (50, 95, 99, 5, 25)] == [10, 100, 500, 100, 20]
    assert distribution(np.ones(99)).at(95).insufficient
    assert not distribution(np.ones(100)).at(95).insufficient
    assert distribution(np.ones(499)).at(99).insufficient
    assert not distribution(np.ones(500)).at(99).insufficient


def test_b38_failures_count_as_infinite_and_become_null() -> None:
    # 100 requests, 5 failed: rank ceil(0.95 * 100) = 95 is the last success
    found = failure_adjusted(np.ones(95), 5)
    assert found.value(95) == 1.0
    assert found.value(99) == math.inf
    assert found.n == 100
    assert plain(found)["p99"] is None
    assert plain(found)["p95"] == 1.0


def test_b39_merging_samples_is_not_averaging_percentiles() -> None:
    first = np.concatenate([np.full(90, 10.0), np.full(10, 20.0)])
    second = np.full(10, 2000.0)
    assert (distribution(first).value(95), distribution(second).value(95)) == (20, 2000)
    # 110 samples: position 0.95 * 109 = 103.55, where 90 + 10 lie below 2000
    assert distribution(np.concatenate([first, second])).value(95) == 2000
    # 1010 samples: position 958.55 lies among the thousand tens; a mean would say 1005
    assert distribution(np.concatenate([np.full(1000, 10.0), second])).value(95) == 10


def test_nothing_gives_none_never_zero() -> None:
    empty = distribution(values())
    assert (empty.n, empty.mean, empty.value(50), empty.value(99)) == (0, None, None, None)
    assert failure_adjusted(values(), 0).value(95) is None
    # all failed: every percentile is infinite
    assert failure_adjusted(values(), 3).value(50) == math.inf
