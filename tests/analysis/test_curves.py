"""The scalability law and the two lines: exact on their own curves, sound on all others."""

from __future__ import annotations

import math

import numpy as np
import pytest

from harness.analysis.piecewise import TwoLines, fit_two_lines
from harness.analysis.table import Floats
from harness.analysis.usl import Usl, fit_usl

GAIN = 0.10
DOUBLING = np.array([1, 2, 4, 8, 16, 32, 64, 128], dtype=np.float64)


def law(n: Floats, alone: float, sigma: float, kappa: float) -> Floats:
    return np.asarray(alone * n / (1 + sigma * (n - 1) + kappa * n * (n - 1)), dtype=np.float64)


def usl(levels: Floats, rates: Floats, error: float = 0.0) -> Usl:
    found = fit_usl(levels, np.asarray(rates, np.float64), np.full(levels.size, error), GAIN)
    assert found is not None
    return found


def lines(levels: Floats, rates: Floats, error: float = 0.0) -> TwoLines:
    found = fit_two_lines(levels, np.asarray(rates, np.float64), np.full(levels.size, error), GAIN)
    assert found is not None
    return found


def test_the_law_finds_its_own_terms() -> None:
    found = usl(DOUBLING, law(DOUBLING, 100.0, 0.05, 0.0005))
    assert found.law == pytest.approx((100.0, 0.05, 0.0005), rel=1e-6)
    # the peak: sqrt((1 - sigma) / kappa) = sqrt(0.95 / 0.0005)
    assert found.peak == pytest.approx(math.sqrt(1900.0))
    # the knee: a slope of log2(1.1) between logarithms, by differences
    n = np.array([found.knee * 0.9999, found.knee * 1.0001])
    rates = law(n, 100.0, 0.05, 0.0005)
    slope = math.log(rates[1] / rates[0]) / math.log(n[1] / n[0])
    assert slope == pytest.approx(math.log2(1.1), abs=1e-4)
    assert found.low == pytest.approx(found.knee) and found.rms == pytest.approx(0.0, abs=1e-9)


def test_two_lines_find_their_break() -> None:
    levels = np.arange(4.0, 44.0, 4.0)
    rates = np.minimum(10.0 * levels, 200.0 + 0.5 * (levels - 20.0))
    found = lines(levels, rates)
    assert found.knee == pytest.approx(20.0)
    assert found.corners[1] == (pytest.approx(20.0), pytest.approx(200.0))
    assert (found.low, found.high) == (pytest.approx(20.0), pytest.approx(20.0))


# E108: linear, flat, plateau, noise, collapse, falling
CURVES: dict[str, tuple[Floats, tuple[float, float], tuple[float, float]]] = {
    # rates; where the law's knee lies; where the break lies
    "linear": (10 * DOUBLING, (math.inf, math.inf), (math.inf, math.inf)),
    "flat": (50 + 0 * DOUBLING, (0, 0), (0, 0)),
    # 10 a request up to 32, 330 from there: no such law, so its knee is late
    "plateau": (np.array([10, 20, 40, 80, 160, 310, 330, 332.0]), (32, 128), (31, 35)),
    "noisy": (np.array([10, 20, 40, 80, 160, 300, 290, 305.0]), (32, 128), (27, 33)),
    "collapse": (np.array([10, 20, 40, 80, 160, 330, 150, 120.0]), (16, 64), (16, 40)),
    "falling": (100 / DOUBLING, (0, 0), (0, 0)),
}


@pytest.mark.parametrize("name", CURVES)
def test_e108_every_curve_has_its_knee_or_none(name: str) -> None:
    rates, by_law, by_lines = CURVES[name]
    assert by_law[0] <= usl(DOUBLING, rates).knee <= by_law[1]
    assert by_lines[0] <= lines(DOUBLING, rates).knee <= by_lines[1]


@pytest.mark.parametrize("name", CURVES)
def test_e108_order_and_scale_change_nothing(name: str) -> None:
    rates = CURVES[name][0]
    order = np.random.default_rng(3).permutation(DOUBLING.size)
    for fit in (usl, lines):
        plain = fit(DOUBLING, rates, 0.02)
        mixed = fit(DOUBLING[order], rates[order], 0.02)
        assert (mixed.knee, mixed.low, mixed.high) == (plain.knee, plain.low, plain.high)
        scaled = fit(3.0 * DOUBLING, 7.5 * rates, 0.02)
        for ours, theirs in zip(
            (scaled.knee, scaled.low, scaled.high), (plain.knee, plain.low, plain.high), strict=True
        ):
            assert ours == pytest.approx(3.0 * theirs, rel=1e-6)


@pytest.mark.parametrize("n", [0, 1, 2, 4])
def test_e108_too_few_levels_have_no_fit(n: int) -> None:
    some = DOUBLING[:n]
    assert fit_usl(some, some, np.zeros(n), GAIN) is None
    assert fit_two_lines(some, some, np.zeros(n), GAIN) is None


def test_noise_on_a_line_makes_no_knee() -> None:
    rng = np.random.default_rng(4)
    for _ in range(40):
        rates = 10 * DOUBLING * np.exp(0.03 * rng.standard_normal(DOUBLING.size))
        # gains of 100 % per doubling: the law's knee stays beyond all levels, and so does the break
        assert usl(DOUBLING, rates, 0.03).knee > 128
        assert lines(DOUBLING, rates, 0.03).knee == math.inf


def test_the_laws_interval_holds_the_truth() -> None:
    rng = np.random.default_rng(5)
    true = usl(DOUBLING, law(DOUBLING, 100.0, 0.03, 0.0004)).knee
    held = 0
    for _ in range(100):
        rates = law(DOUBLING, 100.0, 0.03, 0.0004) * np.exp(0.04 * rng.standard_normal(8))
        found = usl(DOUBLING, rates, 0.04)
        held += found.low <= true <= found.high
    assert held >= 90


def test_the_breaks_interval_holds_the_truth() -> None:
    rng = np.random.default_rng(6)
    levels = np.arange(4.0, 52.0, 4.0)
    held = 0
    for _ in range(60):
        rates = np.minimum(10.0 * levels, 220.0) * np.exp(0.04 * rng.standard_normal(12))
        found = lines(levels, rates, 0.04)
        held += found.low <= 22.0 <= found.high
    assert held >= 54


def test_many_levels_are_fitted_as_well() -> None:
    levels = np.arange(1.0, 121.0)
    rates = np.minimum(10.0 * levels, 400.0)
    assert lines(levels, rates, 0.01).knee == pytest.approx(40.0, abs=1.0)
    assert math.isfinite(usl(levels, rates, 0.01).knee)
