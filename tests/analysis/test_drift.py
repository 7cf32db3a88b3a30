"""Slopes with intervals: exact on lines, honest on noise, deaf to single wild points."""

from __future__ import annotations

import numpy as np
import pytest

from harness.analysis.drift import LEAST_POINTS, MOST_POINTS, judge, student, trend

HOUR = 3600.0


def test_a_line_has_its_own_slope_and_no_doubt() -> None:
    """3 per hour, over 2 hours in 20 points."""
    t_s = np.linspace(0, 2 * HOUR, 20)
    found = trend(t_s, 100 + 3 * t_s / HOUR)
    assert found is not None
    assert (found.slope_per_h, found.low_per_h, found.high_per_h) == pytest.approx((3, 3, 3))
    # the middle of 100..106
    assert (found.typical, found.n) == (pytest.approx(103), 20)


def test_wild_points_move_nothing() -> None:
    t_s = np.arange(21) * 60.0
    values = np.full(21, 50.0)
    values[[3, 11, 17]] = 5000.0
    found = trend(t_s, values)
    assert found is not None
    assert found.slope_per_h == 0.0
    assert judge(found, 1.0) == "steady"


@pytest.mark.parametrize("alike", [0.0, 0.5])
def test_the_interval_holds_the_truth_about_as_often_as_it_says(alike: float) -> None:
    """100 lines of slope 2 with noise that resembles its neighbour: some 90 intervals of 95 %
    hold it, and three standard deviations fewer would be 81."""
    draw = np.random.default_rng(7)
    t_s = np.arange(40) * 300.0
    inside = 0
    for _ in range(100):
        noise = draw.normal(size=40)
        for place in range(1, 40):
            noise[place] += alike * noise[place - 1]
        found = trend(t_s, 2 * t_s / HOUR + noise)
        assert found is not None
        inside += found.low_per_h <= 2 <= found.high_per_h
    assert inside >= 80


def teststudents_t() -> None:
    """Tables: 2.776 for 4 degrees of freedom, 2.228 for 10, 1.984 for 100."""
    assert student(4) == pytest.approx(2.776, abs=0.03)
    assert student(10) == pytest.approx(2.228, abs=0.005)
    assert student(100) == pytest.approx(1.984, abs=0.001)


def test_the_same_points_give_the_same_interval() -> None:
    draw = np.random.default_rng(1)
    t_s = np.arange(30) * 60.0
    values = draw.normal(size=30)
    assert trend(t_s, values) == trend(t_s, values)


def test_few_points_and_absent_values_give_none() -> None:
    t_s = np.arange(10) * 60.0
    values = np.full(10, np.nan)
    assert trend(t_s, values) is None
    values[: LEAST_POINTS - 1] = 1.0
    assert trend(t_s, values) is None
    values[LEAST_POINTS - 1] = 1.0
    assert trend(t_s, values) is not None
    # all at one time: no slope
    assert trend(np.zeros(10), np.ones(10)) is None
    assert judge(None, 1.0) == "not_measured"


def test_many_points_are_thinned_to_medians() -> None:
    t_s = np.arange(10_000) * 10.0
    found = trend(t_s, t_s / HOUR)
    assert found is not None
    assert (found.n, found.slope_per_h) == (MOST_POINTS, pytest.approx(1.0))


@pytest.mark.parametrize(("limit", "state"), [(3.5, "steady"), (0.5, "drifts"), (2.0, "unclear")])
def test_the_limit_is_held_against_the_whole_interval(limit: float, state: str) -> None:
    """Slope 2 with noise of some 1 over 2.4 hours: an interval within 0.5 to 3.5."""
    draw = np.random.default_rng(4)
    t_s = np.arange(30) * 300.0
    found = trend(t_s, 2 * t_s / HOUR + draw.normal(size=30))
    assert found is not None
    assert 0.5 < found.low_per_h < 2.0 < found.high_per_h < 3.5
    assert judge(found, limit) == state


def test_shrinking_is_no_drift() -> None:
    t_s = np.arange(20) * 60.0
    assert judge(trend(t_s, -100 * t_s), 1.0) == "steady"
