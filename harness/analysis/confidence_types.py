"""How sure the figures are that decide a knee."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.analysis.fit_types import Interval

LevelState = Literal["good", "bad", "undecided"]
#: ``beside`` the bracket: ``agrees`` its interval meets it; ``absent``: no knee to compare
Agreement = Literal["agrees", "disagrees", "absent"]
CurveKind = Literal["usl", "piecewise"]
CurveStatus = Literal["found", "below_first", "not_reached", "absent"]


@dataclass(frozen=True)
class RequestSpread:
    """What drawing a cell's requests again says of it."""

    #: error of the output rate over the rate, of which 1.96 are half of the interval; None in an
    #: open loop, where the arrivals make the rate
    rate: float | None
    #: blocks of neighbouring requests that were drawn
    blocks: int
    #: counted requests that ended, and those that met the SLO; None without one
    n: int
    met: int | None


@dataclass(frozen=True)
class LevelInterval:
    """One level's deciding figure with its interval of 95 %, held against the threshold."""

    knee: Literal["latency", "throughput"]
    level: float
    figure: Interval
    threshold: float
    #: of the requests (latency); of the levels' blocks of requests (throughput)
    n: int
    state: LevelState


@dataclass(frozen=True)
class Bracket:
    """The bracket of one knee that the intervals leave no doubt of."""

    knee: Literal["latency", "throughput"]
    #: the highest level that is good beyond doubt, with none below it that is bad
    low: float | None
    #: the lowest level that is bad beyond doubt
    high: float | None


@dataclass(frozen=True)
class CurveKnee:
    """The throughput knee of a fitted curve, or why there is none."""

    kind: CurveKind
    status: CurveStatus
    #: levels that the fit rests on
    levels: int
    #: where the gain falls below the limit, in levels; ends beyond the levels are None
    knee: float | None = None
    low: float | None = None
    high: float | None = None
    #: where the curve is highest, if it has a peak within the levels
    peak: float | None = None
    #: root of the mean squared relative residual
    rms: float | None = None
    #: of the fit, in tokens/s: USL's (lambda, sigma, kappa); piecewise' (first slope, rate at
    #: the break, second slope)
    terms: tuple[float, ...] = ()
    #: points (level, tokens/s) of the curve, to draw it
    curve: tuple[tuple[float, float], ...] = ()
    agreement: Agreement = "absent"
    absent: str | None = None


@dataclass(frozen=True)
class Confidence:
    """All of it for one verdict."""

    intervals: tuple[LevelInterval, ...] = ()
    brackets: tuple[Bracket, ...] = ()
    curves: tuple[CurveKnee, ...] = ()
