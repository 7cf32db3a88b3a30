from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.observe.series import KvPool, Series


def series(*values: float) -> Series:
    return Series.of((float(t), v) for t, v in enumerate(values))


def test_window_has_both_ends() -> None:
    window = series(10, 11, 12, 13, 14).window(1.0, 3.0)
    assert window.t_s.tolist() == [1.0, 2.0, 3.0]
    assert window.v.tolist() == [11.0, 12.0, 13.0]


def test_of_sorts_and_drops_what_is_not_finite() -> None:
    made = Series.of([(2.0, 5.0), (1.0, math.nan), (0.0, 3.0), (3.0, math.inf)])
    assert made.t_s.tolist() == [0.0, 2.0]
    assert made.v.tolist() == [3.0, 5.0]


def test_d92_counter_reset_adds_what_came_after_it() -> None:
    assert series(1000, 200).increase(0, 9) == 200
    # 50 + restart, then 20 + 40
    assert series(100, 150, 20, 60).increase(0, 9) == 50 + 20 + 40
    assert series(100, 150, 20, 60).resets(0, 9) == 1


def test_increase_is_that_of_the_window_only() -> None:
    assert series(0, 10, 30, 60, 100).increase(1, 3) == 50


@pytest.mark.parametrize("values", [(), (7.0,)])
def test_d95_fewer_than_two_samples_tell_no_increase(values: tuple[float, ...]) -> None:
    assert series(*values).increase(0, 9) is None


def test_empty_window_is_none_and_not_zero() -> None:
    late = series(1, 2, 3)
    assert late.maximum(10, 20) is None
    assert late.minimum(10, 20) is None
    assert late.mean(10, 20) is None
    assert late.last(10, 20) is None


def test_statistics_of_a_window() -> None:
    # of 4, 9, 2: sum 15
    part = series(100, 4, 9, 2, 100).window(1, 3)
    assert (part.maximum(0, 9), part.minimum(0, 9)) == (9, 2)
    assert (part.mean(0, 9), part.last(0, 9)) == (5, 2)


def test_times_must_rise_and_pair_up() -> None:
    with pytest.raises(ValueError, match="times fall"):
        Series(t_s=np.array([2.0, 1.0]), v=np.array([0.0, 0.0]))
    with pytest.raises(ValueError, match="do not pair up"):
        Series(t_s=np.array([1.0]), v=np.array([0.0, 0.0]))


@given(st.lists(st.integers(0, 10**9), min_size=2, max_size=30))
def test_increase_of_a_counter_that_never_falls_is_last_minus_first(steps: list[int]) -> None:
    values = np.cumsum(steps).tolist()
    assert series(*values).increase(0, len(values)) == values[-1] - values[0]


@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=30))
def test_increase_is_never_negative(values: list[int]) -> None:
    increase = series(*values).increase(0, len(values))
    assert increase is not None
    assert increase >= 0


def test_pool_keeps_one_null_block_per_engine() -> None:
    # 16 MiB in 128 blocks are 131,072 B each, of which 127 can be used
    pool = KvPool(total_bytes=16 * 2**20, num_blocks=128, block_size=128)
    assert pool.usable_blocks == 127
    assert pool.block_bytes == 131072
    assert KvPool(num_blocks=256, engines=2).usable_blocks == 254
    assert KvPool(num_blocks=128).block_bytes is None
    assert KvPool(total_bytes=1).usable_blocks is None
