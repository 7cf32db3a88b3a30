"""Fitted laws in sentences, with their intervals and what theory expects."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.fit_types import Fit, FitKind, Interval
from harness.analysis.fits import METHOD
from harness.report.units import number

_LAWS: dict[FitKind, str] = {
    "kv_bytes": "KV bytes in use",
    "ttft": "TTFT against prompt length",
    "tpot": "TPOT against context length",
    "cache_off": "time per token without a cache, against context length",
}


def fit_lines(fits: Sequence[Fit]) -> list[str]:
    """One line per law that could be fitted, then the reasons of the others, then the method."""
    lines = [_line(fit) for fit in fits if fit.absent is None]
    if lines:
        lines.append(f"Intervals: {METHOD}.")
    return lines + [
        f"{_who(fit)}: {_LAWS[fit.kind]}: not fitted, {fit.absent}."
        for fit in fits
        if fit.absent is not None
    ]


def _who(fit: Fit) -> str:
    return f"{fit.backend} ({fit.mode})"


def _line(fit: Fit) -> str:
    low, high = fit.lengths or (0.0, 0.0)
    over = f"n = {fit.n:,}, {low:,.0f} to {high:,.0f} tokens"
    terms = _kv_terms(fit) if fit.kind == "kv_bytes" else _latency_terms(fit)
    return f"{_who(fit)}: {_LAWS[fit.kind]}: {terms} ({over})."


def _kv_terms(fit: Fit) -> str:
    constant, slope = fit.terms[0], fit.terms[1]
    parts = []
    if slope is not None:
        text = f"{_interval(slope, 1.0, 'B')} per token"
        if fit.expected_slope is not None and fit.slope_error is not None:
            text += f", theory {fit.expected_slope:,.0f} B ({_percent(fit.slope_error)})"
        parts.append(text)
    if constant is None:
        parts.append("no constant per request can be told apart: each has as many places")
    else:
        text = f"{_interval(constant, 1.0, 'B')} per request"
        if fit.expected_constant is not None:
            text += f", theory {fit.expected_constant:,.0f} B"
        parts.append(text)
    return "; ".join(parts)


def _latency_terms(fit: Fit) -> str:
    units = (("a", "ms", 1e3), ("b", "us per token", 1e6), ("c", "ns per token^2", 1e9))
    law = "a + b n + c n^2" if len(fit.terms) > 2 else "a + b n"
    terms = ", ".join(
        f"{name} = {_interval(term, scale, unit)}"
        for term, (name, unit, scale) in zip(fit.terms, units, strict=False)
        if term is not None
    )
    return f"{law}, {terms}"


def _interval(term: Interval, scale: float, unit: str) -> str:
    value, low, high = (_number(item * scale) for item in (term.value, term.low, term.high))
    return f"{value} {unit} [{low}, {high}]"


def _percent(ratio: float) -> str:
    """``+0.12 %``; what rounds to nothing has no minus."""
    return f"{round(ratio * 100, 2) + 0.0:+.2f} %"


def _number(value: float) -> str:
    """Three digits, those of hundreds and more in full; what is 0 but for rounding is 0."""
    if abs(value) < 5e-4:
        return "0"
    return f"{value:,.1f}" if abs(value) >= 1000 else number(value)
