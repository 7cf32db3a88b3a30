"""Which clients of a soak leave in mid-stream."""

from __future__ import annotations

import pytest

from harness.plan.leaving import leave_after


def test_the_share_leaves_evenly_between_the_second_read_and_the_last_but_one() -> None:
    drawn = [leave_after(0.25, 9, f"0 local {seq}") for seq in range(4000)]
    left = [place for place in drawn if place is not None]
    # 1,000 expected, standard deviation sqrt(4000 x 0.25 x 0.75) = 27.4: within four of them
    assert len(left) == pytest.approx(1000, abs=110)
    assert set(left) == set(range(2, 9))


def test_a_seed_gives_the_same_again_and_the_ends_are_exact() -> None:
    assert leave_after(0.5, 20, "7 w 1") == leave_after(0.5, 20, "7 w 1")
    assert all(leave_after(0.0, 20, f"{n}") is None for n in range(100))
    assert all(leave_after(1.0, 20, f"{n}") is not None for n in range(100))
    # an answer of two tokens has no middle
    assert leave_after(1.0, 2, "0") is None
    assert leave_after(1.0, 3, "0") == 2
