"""Throughput knees of fitted curves and the sure brackets, in sentences."""

from __future__ import annotations

from harness.analysis.confidence_types import Agreement, Bracket, CurveKind, CurveKnee
from harness.analysis.verdict_types import BackendVerdict
from harness.kv.units import counted
from harness.report.units import level_text, number, percent_text

NAMES: dict[CurveKind, str] = {
    "usl": "Throughput by the scalability law",
    "piecewise": "Throughput by two lines",
}
RULES: dict[CurveKind, str] = {
    "usl": "where the fitted curve gains less than 10 % per doubling of concurrency",
    "piecewise": "where two straight lines meet, the second gaining less than 10 % per doubling",
}
_AGREEMENTS: dict[Agreement, str] = {
    "agrees": "agrees with the bracket of the levels",
    "disagrees": "disagrees with the bracket of the levels",
    "absent": "",
}
#: Relative misfit from which on a curve is not that of this server.
_POOR = 0.10
_DOUBT = {"latency": "Latency", "throughput": "Throughput"}


def curve_where(curve: CurveKnee) -> str:
    """``at 27.3 (95 % interval 22.1 to 33), agrees with the bracket of the levels``."""
    if curve.status == "absent":
        return "not fitted"
    parts = [_where(curve)]
    if curve.agreement != "absent":
        parts.append(_AGREEMENTS[curve.agreement])
    return ", ".join(parts)


def _where(curve: CurveKnee) -> str:
    if curve.status == "found":
        return f"at {number(curve.knee)} ({_interval(curve)})"
    text = "below all levels" if curve.status == "below_first" else "not reached"
    if curve.low is not None or curve.high is not None:
        text += f" ({_interval(curve)})"
    return text


def _interval(curve: CurveKnee) -> str:
    low = "below all levels" if curve.low is None else number(curve.low)
    high = "beyond all levels" if curve.high is None else number(curve.high)
    if curve.status == "not_reached" and curve.low is None:
        low = "beyond all levels"
    return f"95 % interval {low} to {high}"


def curve_evidence(curve: CurveKnee) -> tuple[str, ...]:
    """What the fit rests on, its terms, how well it fits; or why there is none."""
    if curve.status == "absent":
        return (f"{curve.absent}",)
    lines = [_terms(curve)]
    rms = curve.rms or 0.0
    fit = f"fits {counted(curve.levels, 'level')} to {percent_text(rms)} (rms)"
    if rms >= _POOR:
        fit += ": poorly, so this server does not follow such a curve"
    lines.append(fit)
    return tuple(lines)


def _terms(curve: CurveKnee) -> str:
    first, second, third = curve.terms
    if curve.kind == "usl":
        peak = "no peak within the levels"
        if curve.peak is not None:
            peak = f"peak at {number(curve.peak)}"
        return (
            f"one request alone {number(first)} tokens/s, contention {second:.3g}, "
            f"coherency {third:.3g}; {peak}"
        )
    return (
        f"{number(first)} tokens/s per request up to {number(second)} tokens/s, then "
        f"{number(third)} per request"
    )


def confidence_lines(verdict: BackendVerdict) -> list[str]:
    """One line per curve and per bracket, for Markdown."""
    lines = [
        f"{NAMES[curve.kind]}: {curve_where(curve)} ({'; '.join(curve_evidence(curve))})"
        for curve in verdict.confidence.curves
    ]
    return lines + [f"{_DOUBT[b.knee]}, {sure_text(b)}" for b in verdict.confidence.brackets]


def sure_text(bracket: Bracket) -> str:
    """``beyond doubt (95 %): good up to 16, bad from 64 on``."""
    good = "no level is good" if bracket.low is None else f"good up to {level_text(bracket.low)}"
    bad = "none is bad" if bracket.high is None else f"bad at {level_text(bracket.high)}"
    return f"beyond doubt (95 %): {good}, {bad}"


def brief_curves(verdict: BackendVerdict) -> str:
    """Both knees in one line for a terminal; empty without any."""
    told = [curve for curve in verdict.confidence.curves if curve.status != "absent"]
    parts = [f"{_SHORT[c.kind]} {_where(c)}{_BRIEF[c.agreement]}" for c in told]
    return f"Throughput knee by fitted curves: {'; '.join(parts)}." if parts else ""


_SHORT: dict[CurveKind, str] = {"usl": "scalability law", "piecewise": "two lines"}
_BRIEF: dict[Agreement, str] = {"agrees": ", agrees", "disagrees": ", disagrees", "absent": ""}
