"""Intervals of the knees: Wilson's, the drawn requests', and what is undecided."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from harness.analysis.confidence import (
    gain_interval,
    latency_intervals,
    share_interval,
    sure_bracket,
    throughput_intervals,
)
from harness.analysis.confidence_types import CurveKnee, LevelInterval, RequestSpread
from harness.analysis.fit_types import Interval
from harness.analysis.knee import judge_backend
from harness.analysis.run import analyse
from harness.analysis.summary_types import CellFigures
from harness.analysis.verdict_types import BackendVerdict
from harness.records import CellKey
from harness.workload import Slo
from tests.support.fake_server import PAGED, paged_info
from tests.support.run_builder import build_run

SLO = Slo(ttft_s=0.5)
DOUBLING = (1, 2, 4, 8, 16, 32, 64, 128)


@pytest.fixture(scope="module")
def template() -> CellFigures:
    run = build_run((PAGED,), (4,), (100,))
    return analyse(run.manifest, run.records, run.events, run.series).cells[0]


def cell(
    template: CellFigures, level: float, rate: float, error: float, met: int = 100, repeat: int = 0
) -> CellFigures:
    rates = replace(template.throughput, output_tokens_per_s=rate, slo_attainment=met / 100)
    return replace(
        template,
        cell=CellKey("paged", "paged", 512, 128, float(level), repeat),
        throughput=rates,
        spread=RequestSpread(error, 20, 100, met),
    )


def verdict(
    template: CellFigures, levels: Sequence[float], rates: Sequence[float], error: float = 0.01
) -> BackendVerdict:
    cells = [cell(template, lv, r, error) for lv, r in zip(levels, rates, strict=True)]
    return judge_backend(paged_info(), cells, SLO)


def curves(found: BackendVerdict) -> tuple[CurveKnee, CurveKnee]:
    usl, piecewise = found.confidence.curves
    return usl, piecewise


def test_wilsons_interval() -> None:
    # Newcombe 1998, table I: 81 of 263, 15 of 148, 0 of 20, 1 of 29
    for met, n, low, high in (
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ):
        found = share_interval(met, n)
        assert (found.low, found.high) == (
            pytest.approx(low, abs=1e-4),
            pytest.approx(high, abs=1e-4),
        )
    assert share_interval(20, 20).high == 1.0 and share_interval(0, 20).low == 0.0
    with pytest.raises(ValueError, match="no requests"):
        share_interval(0, 0)


def test_the_gain_of_two_rates_and_its_interval() -> None:
    # 100 to 121 over one doubling is +21 %; 1.96 x sqrt(0.03^2 + 0.04^2) = 9.8 % of the ratio
    found = gain_interval((8, 100.0, 0.03), (16, 121.0, 0.04))
    assert found.value == pytest.approx(0.21)
    assert found.low == pytest.approx(1.21 * math.exp(-0.098) - 1, abs=1e-4)
    # over two doublings it is half of all that in logarithms: 1.1 each
    assert gain_interval((8, 100.0, 0.0), (32, 121.0, 0.0)).value == pytest.approx(0.1)


def test_requests_drawn_again_tell_the_rates_error() -> None:
    run = build_run((PAGED,), (4, 32), (40, 200))
    for item in analyse(run.manifest, run.records, run.events, run.series).cells:
        assert item.spread is not None and item.spread.rate is not None
        assert item.spread.n == item.counts.ok
        assert item.spread.met == round((item.throughput.slo_attainment or 0) * item.counts.ok)
        # requests of the first level differ by the jitter of their prefill alone; of the second
        # some wait and some do not, in turns
        assert 0 < item.spread.rate < (0.001 if item.cell.level == 4 else 0.1)
    again = analyse(run.manifest, run.records, run.events, run.series).cells
    assert [c.spread for c in again] == [
        c.spread for c in analyse(run.manifest, run.records, run.events, run.series).cells
    ]


def test_a_level_whose_interval_holds_the_threshold_is_undecided(template: CellFigures) -> None:
    # of 100: 94 met is 87.5 to 97.2 %, 80 is 71.1 to 86.7 %, 100 is 96.3 to 100 %
    cells = [cell(template, lv, 100.0, 0.01, met) for lv, met in ((4, 100), (8, 94), (16, 80))]
    found = latency_intervals(cells, 0.95)
    assert [item.state for item in found] == ["good", "undecided", "bad"]
    latency = judge_backend(paged_info(), cells, SLO).latency
    # the rule of the knee is what it was: 94 % is below 95 %
    assert (latency.last_good, latency.first_bad) == (4, 8)
    assert "94.0 % of" in latency.evidence[1]
    assert "(95 % interval 87.5 to 97.2 %: undecided)" in latency.evidence[1]
    assert "undecided" not in latency.evidence[0]


def test_a_gain_near_the_limit_is_undecided(template: CellFigures) -> None:
    # +9 %: with 1 % of error each it is 6 to 12 %, with 0.1 % it is 8.7 to 9.3 %
    for error, undecided in ((0.01, True), (0.001, False)):
        found = verdict(template, (8, 16), (100.0, 109.0), error)
        assert (found.throughput.last_good, found.throughput.first_bad) == (8, 16)
        assert ("undecided" in found.throughput.evidence[1]) is undecided
        states = [i.state for i in found.confidence.intervals if i.knee == "throughput"]
        assert states == ["undecided" if undecided else "bad"]


def test_repeats_that_scatter_widen_the_interval(template: CellFigures) -> None:
    alike = [cell(template, 8, 100.0, 0.001), cell(template, 8, 100.0, 0.001, repeat=1)]
    apart = [cell(template, 8, 80.0, 0.001), cell(template, 8, 120.0, 0.001, repeat=1)]
    last = [cell(template, 16, 130.0, 0.001)]
    widths = []
    for first in (alike, apart):
        (gain,) = throughput_intervals([(8.0, first), (16.0, last)], 0.1)
        widths.append(gain.figure.high - gain.figure.low)
    # 80 and 120: 28.3 % of their mean, over sqrt(2) 20 %
    assert widths[0] < 0.01 and widths[1] > 0.8


def test_what_is_beyond_doubt() -> None:
    def level(at: float, state: str) -> LevelInterval:
        figure = Interval(0.9, 0.8, 1.0)
        return LevelInterval("latency", at, figure, 0.95, 10, state)  # type: ignore[arg-type]

    found = sure_bracket([level(1, "undecided"), level(4, "good"), level(8, "undecided"),
                          level(16, "bad"), level(32, "good")])  # fmt: skip
    assert found is not None and (found.low, found.high) == (4, 16)
    found = sure_bracket([level(1, "undecided")])
    assert found is not None and (found.low, found.high) == (None, None)
    assert sure_bracket([]) is None


def test_e108_curves_stand_beside_the_bracket(template: CellFigures) -> None:
    found = verdict(template, DOUBLING, [10, 20, 40, 80, 160, 310, 330, 332])
    assert (found.throughput.last_good, found.throughput.first_bad) == (32, 64)
    usl, piecewise = curves(found)
    assert piecewise.status == "found" and piecewise.agreement == "agrees"
    assert piecewise.knee == pytest.approx(33, abs=2)
    assert usl.status == "found" and usl.agreement == "agrees"
    # one bad step, and a rise of 90 % per doubling behind it: the levels say 4 to 8, and no
    # curve that bends once does
    late = verdict(template, (1, 2, 4, 8, 16, 32, 64), [100, 190, 360, 370, 700, 1340, 2550])
    assert (late.throughput.last_good, late.throughput.first_bad) == (4, 8)
    assert {c.agreement for c in curves(late)} == {"disagrees"}


def test_e108_linear_and_flat_and_few(template: CellFigures) -> None:
    for curve in curves(verdict(template, DOUBLING, [10 * lv for lv in DOUBLING])):
        assert (curve.status, curve.knee, curve.agreement) == ("not_reached", None, "agrees")
    for curve in curves(verdict(template, DOUBLING, [50] * 8)):
        # the first level has none before it, so levels say 1 to 2, and curves below 1
        assert (curve.status, curve.knee, curve.agreement) == ("below_first", None, "agrees")
    for curve in curves(verdict(template, (4, 8), (10, 20))):
        assert (curve.status, curve.agreement) == ("absent", "absent")
        assert curve.absent == "it needs 5 judged levels with output, and there are 2"


def test_e109_the_law_and_the_levels_on_a_curve_past_its_peak(template: CellFigures) -> None:
    # gains per doubling: +100, +90, +5, -2.5 %: the levels say 4 to 8
    found = verdict(template, (1, 2, 4, 8, 16), (10, 20, 38, 40, 39))
    assert (found.throughput.last_good, found.throughput.first_bad) == (4, 8)
    for curve in curves(found):
        assert curve.status == "found" and curve.agreement == "agrees"
        assert curve.knee is not None and 3 < curve.knee < 10


def test_e112_a_collapse_has_its_peak_before_it(template: CellFigures) -> None:
    found = verdict(template, (4, 8, 16, 32, 64), (40, 80, 160, 330, 150))
    usl, _ = curves(found)
    assert usl.peak is not None and 16 < usl.peak < 64
    assert usl.knee is not None and usl.knee < usl.peak


def test_rates_of_an_open_loop_have_no_curves(template: CellFigures) -> None:
    cells = [cell(template, lv, 10.0 * lv, 0.01) for lv in DOUBLING]
    found = judge_backend(paged_info(), cells, SLO, loop="open")
    assert [c.status for c in found.confidence.curves] == ["absent", "absent"]
    assert "rates" in (found.confidence.curves[0].absent or "")
