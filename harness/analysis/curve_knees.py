"""Throughput knees of fitted curves, held beside the bracket of the levels. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from harness.analysis.confidence import (
    latency_intervals,
    rate_of,
    sure_bracket,
    throughput_intervals,
)
from harness.analysis.confidence_types import (
    Agreement,
    Confidence,
    CurveKind,
    CurveKnee,
    CurveStatus,
)
from harness.analysis.piecewise import LEAST_LEVELS as PIECEWISE_LEVELS
from harness.analysis.piecewise import fit_two_lines
from harness.analysis.summary_types import CellFigures
from harness.analysis.table import Floats
from harness.analysis.usl import LEAST_LEVELS as USL_LEVELS
from harness.analysis.usl import fit_usl
from harness.analysis.verdict_types import Knee
from harness.records import Loop

#: A curve's knee this near to the bracket is the same one: levels are steps, curves are not.
NEAR = 1.25
#: Points of a curve that is drawn.
_POINTS = 60
_NO_RATES = "levels are rates, and the curves are over requests in flight"

Groups = Sequence[tuple[float, Sequence[CellFigures]]]


@dataclass(frozen=True)
class _Drawn:
    """A fitted curve: its knee with both ends of the interval, and how it is drawn."""

    knee: tuple[float, float, float]
    peak: float | None
    rms: float
    terms: tuple[float, ...]
    curve: tuple[tuple[float, float], ...]


def knee_confidence(
    groups: Groups, throughput: Knee, loop: Loop, *, slo_share: float, gain: float
) -> Confidence:
    """How sure the knees of one backend are; ``groups`` are its cells by rising level."""
    cells = [cell for _, own in groups for cell in own]
    latency = latency_intervals(cells, slo_share)
    rates = throughput_intervals(groups, gain)
    brackets = (sure_bracket(latency), sure_bracket(rates))
    return Confidence(
        intervals=(*latency, *rates),
        brackets=tuple(item for item in brackets if item is not None),
        curves=curve_knees(groups, throughput, loop, gain),
    )


def curve_knees(groups: Groups, bracket: Knee, loop: Loop, gain: float) -> tuple[CurveKnee, ...]:
    """The knees by the scalability law and by two lines, each beside ``bracket``."""
    found = [(level, rate) for level, cells in groups if (rate := rate_of(cells)) is not None]
    levels = np.array([level for level, _ in found], dtype=np.float64)
    rates = np.array([rate[0] for _, rate in found], dtype=np.float64)
    errors = np.array([rate[1] or 0.0 for _, rate in found], dtype=np.float64)
    made = []
    for kind, least, make in _KINDS:
        drawn = make(levels, rates, errors, gain) if loop == "closed" else None
        if drawn is None:
            few = f"it needs {least} judged levels with output, and there {_are(levels.size)}"
            why = _NO_RATES if loop == "open" else few
            made.append(CurveKnee(kind, "absent", int(levels.size), absent=why))
        else:
            made.append(_beside(kind, drawn, bracket, levels))
    return tuple(made)


def _are(n: int) -> str:
    return f"{'is' if n == 1 else 'are'} {n}"


def _usl(levels: Floats, rates: Floats, errors: Floats, gain: float) -> _Drawn | None:
    fitted = fit_usl(levels, rates, errors, gain)
    if fitted is None:
        return None
    along = np.geomspace(levels.min(), levels.max(), _POINTS)
    return _Drawn(
        (fitted.knee, fitted.low, fitted.high),
        fitted.peak if levels.min() <= fitted.peak <= levels.max() else None,
        fitted.rms,
        fitted.law,
        _points(along, fitted.rate(along)),
    )


def _piecewise(levels: Floats, rates: Floats, errors: Floats, gain: float) -> _Drawn | None:
    fitted = fit_two_lines(levels, rates, errors, gain)
    if fitted is None:
        return None
    (n0, y0), (n1, y1), (n2, y2) = fitted.corners
    terms = ((y1 - y0) / (n1 - n0), y1, (y2 - y1) / (n2 - n1))
    return _Drawn((fitted.knee, fitted.low, fitted.high), None, fitted.rms, terms, fitted.corners)


def _beside(kind: CurveKind, drawn: _Drawn, bracket: Knee, levels: Floats) -> CurveKnee:
    """The knee held beside the bracket; what lies beyond the levels measured is not told."""
    first, last = float(levels.min()), float(levels.max())
    knee, low, high = drawn.knee
    status: CurveStatus = "found"
    if knee <= first:
        status = "below_first"
    elif knee >= last:
        status = "not_reached"
    return CurveKnee(
        kind,
        status,
        levels=int(levels.size),
        knee=knee if status == "found" else None,
        low=low if first < low < last else None,
        high=high if first < high < last else None,
        peak=drawn.peak,
        rms=drawn.rms,
        terms=drawn.terms,
        curve=drawn.curve,
        agreement=_agreement(drawn.knee, bracket, first, last),
    )


def _agreement(
    knee: tuple[float, float, float], bracket: Knee, first: float, last: float
) -> Agreement:
    """Whether the curve's interval comes within a quarter of the bracket of the levels."""
    if bracket.status == "no_verdict":
        return "absent"
    low = min(max(knee[1], first), last)
    # an interval that leaves the levels may end anywhere
    high = math.inf if knee[2] >= last else max(knee[2], first)
    good = first if bracket.last_good is None else bracket.last_good
    bad = math.inf if bracket.first_bad is None else bracket.first_bad
    near = low <= bad * NEAR and high >= good / NEAR
    return "agrees" if near else "disagrees"


def _points(levels: Floats, rates: Floats) -> tuple[tuple[float, float], ...]:
    return tuple((float(n), float(x)) for n, x in zip(levels, rates, strict=True))


_Make = Callable[[Floats, Floats, Floats, float], _Drawn | None]
_KINDS: tuple[tuple[CurveKind, int, _Make], ...] = (
    ("usl", USL_LEVELS, _usl),
    ("piecewise", PIECEWISE_LEVELS, _piecewise),
)
