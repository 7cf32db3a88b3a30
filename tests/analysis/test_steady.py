"""The steady stretch: its false-alarm rate by simulation, what it finds, what it says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from harness.analysis.checks_steady import steady_findings
from harness.analysis.run import analyse
from harness.analysis.slopes import slope
from harness.analysis.steady import LEAST_BINS, MOST_BINS, Figures, longest
from harness.analysis.steady_types import Steady
from harness.analysis.table import Floats
from harness.observe import names
from harness.observe.series import Series
from tests.support.fake_server import PAGED, STATIC
from tests.support.run_builder import build_run, replace_series

NAMES = ("throughput", "TTFT", "KV usage")


def noise(rng: np.random.Generator, n: int, r: float, skewed: bool = False) -> Floats:
    """n points around 1 whose neighbours correlate by r."""
    steps = rng.standard_normal(n + 50) * np.sqrt(1 - r * r)
    made = np.zeros(n + 50)
    for i in range(1, n + 50):
        made[i] = r * made[i - 1] + steps[i]
    return np.exp(0.6 * made[50:]) if skewed else 1.0 + 0.1 * made[50:]


def level(*values: Floats, load: Floats | None = None) -> Figures:
    """A window of as many seconds as the first figure has points."""
    bins = values[0].size
    return Figures(
        edges_s=np.linspace(0.0, bins, bins + 1),
        load=np.ones(bins) if load is None else load,
        points={
            name: ((np.arange(v.size) + 0.5) * bins / v.size, v)
            for name, v in zip(NAMES, values, strict=False)
        },
    )


@pytest.mark.parametrize("bins", [12, 20, 40])
@pytest.mark.parametrize("r", [0.0, 0.5])
@pytest.mark.parametrize("skewed", [False, True])
def test_a_steady_window_is_said_to_trend_in_at_most_5_of_100_cases(
    bins: int, r: float, skewed: bool
) -> None:
    rng = np.random.default_rng(bins)
    runs = 300
    alarms = sum(
        longest(level(*(noise(rng, bins, r, skewed) for _ in NAMES))).state != "whole"
        for _ in range(runs)
    )
    # 5 % of 300 are 15; two standard deviations of a binomial are 7.5 more
    assert alarms <= 22


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_figure_that_rises_by_half_leaves_no_steady_half(which: int) -> None:
    rng = np.random.default_rng(1)
    found = []
    for _ in range(40):
        values = [1.0 + 0.02 * rng.standard_normal(40) for _ in NAMES]
        values[which] = values[which] * np.linspace(1.0, 1.5, 40)
        found.append(longest(level(*values)))
    # half of the rise in half of the window is 22 % of its median: ten times the noise
    assert sum(s.state == "none" for s in found) >= 39
    # 1 to 1.5 is 40 % of the median, 1.25
    assert found[0].moves[0].name == NAMES[which]
    assert found[0].moves[0].change == pytest.approx(0.4, abs=0.05)


def test_a_slow_start_is_left_out() -> None:
    rng = np.random.default_rng(2)
    start = np.where(np.arange(40) < 12, 0.3, 1.0)
    found = longest(level(*(start * (1 + 0.02 * rng.standard_normal(40)) for _ in NAMES)))
    assert found.state == "part"
    assert found.start_s == pytest.approx(12.0, abs=1.5)
    assert found.share == pytest.approx(28 / 40, abs=0.05)


def test_a_change_of_less_than_a_twentieth_is_no_trend() -> None:
    # without any noise 4 % are as significant as can be
    assert longest(level(np.linspace(1.0, 1.04, 40))).state == "whole"
    assert longest(level(np.linspace(1.0, 1.2, 40))).state == "none"


def test_only_full_load_is_steady() -> None:
    flat = np.ones(40)
    gap = flat.copy()
    gap[10:12] = 0.5
    found = longest(level(flat, load=gap))
    # the longer part is the one behind the gap: bins 12 to 40
    assert (found.state, found.start_s, found.length_s) == ("part", 12.0, 28.0)
    assert found.full_bins == pytest.approx(38 / 40)
    gap[20] = gap[30] = 0.5
    # 0 to 10 has as many bins as none of the others: 12 to 20, 21 to 30, 31 to 40
    found = longest(level(flat, load=gap))
    assert (found.state, found.share) == ("none", 10 / 40)
    # one user short for a moment is no gap: 19 of 20 bins full, that one to 92 %
    short = flat.copy()
    short[7] = 0.92
    assert longest(level(flat, load=short)).state == "whole"


def test_too_few_points_tell_nothing() -> None:
    found = longest(level(np.ones(7)))
    assert found.state == "too_short" and not found.unsteady


def test_slope_of_a_line() -> None:
    t = np.arange(20.0)
    # from 10 to 10 + 19 x 0.5 over a median of 14.75
    found = slope(t, 10 + 0.5 * t, 1.96)
    assert found is not None and found.change == pytest.approx(9.5 / 14.75)
    assert found.half == pytest.approx(0.0, abs=1e-9)
    assert slope(t, np.zeros(20), 1.96) is None
    assert slope(t[:7], t[:7], 1.96) is None


def test_users_in_step_are_steady() -> None:
    # 32 and 64 users on 25 seats send in bursts: throughput and TTFT go up and down with them
    run = build_run((PAGED, STATIC), (1, 4, 32, 64), (20,) * 4)
    summary = analyse(run.manifest, run.records, run.events, run.series)
    for item in summary.cells:
        assert item.steady is not None and item.steady.state == "whole", item.cell
        assert item.steady.length_s == pytest.approx(item.window.length_s)
    assert "not_steady" not in {finding.code for finding in summary.findings}


def test_memory_that_fills_up_is_flagged_beside_the_level_and_in_what_the_knees_say() -> None:
    run = build_run((PAGED,), (4, 16), (100, 100))
    usage = run.series["paged"].values[names.KV_USAGE_RATIO]
    ends = [e.t_s for e in run.events if e.kind == "level_end"]
    # in the second level the usage grows by 2 % of the pool a second
    grown = np.where(usage.t_s > ends[0], 0.1 + 0.02 * (usage.t_s - ends[0]), usage.v)
    run.series["paged"] = replace_series(
        run.series["paged"], {names.KV_USAGE_RATIO: Series(usage.t_s, grown)}
    )
    summary = analyse(run.manifest, run.records, run.events, run.series)
    first, second = summary.cells
    assert first.steady is not None and first.steady.state == "whole"
    assert second.steady is not None and second.steady.unsteady
    finding = next(f for f in summary.findings if f.code == "not_steady")
    assert finding.cell == second.cell and finding.severity == "warning"
    assert "KV usage by +" in finding.text and "whole window" in finding.text
    evidence = summary.verdicts[0].memory.evidence
    assert "16: " in evidence[0] and evidence[0].endswith("its window was not steady")
    # the figures are those of the whole window all the same
    plain = build_run((PAGED,), (4, 16), (100, 100))
    same = analyse(plain.manifest, plain.records, plain.events, plain.series).cells[1]
    assert (second.latency, second.throughput) == (same.latency, same.throughput)
    # a level without a verdict needs no second reason
    assert len(steady_findings(second)) == 1
    assert steady_findings(replace(second, unjudged="the client was the limit")) == []


def test_bins_are_as_long_as_a_request_where_that_leaves_enough() -> None:
    assert (LEAST_BINS, MOST_BINS) == (12, 40)
    assert Steady("none").unsteady and not Steady("part").unsteady
