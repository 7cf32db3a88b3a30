"""Prediction against measurement, and what would move a memory knee, in words."""

from __future__ import annotations

from harness.analysis.forecast_types import Forecast, Mover
from harness.analysis.verdict_types import BackendVerdict
from harness.report.words import prediction_text

NAMES = {"worst": "worst case", "steady": "steady state"}
MOVERS = "What would move it"


def forecast_lines(verdict: BackendVerdict) -> list[str]:
    """The comparison in one sentence, which prediction was taken and why, the difference."""
    found, first = verdict.forecast, prediction_text(verdict)
    lines = [first] if first else []
    if found is not None:
        lines += [_both(found), *map(_sentence, found.difference)]
    return lines


def brief_lines(verdict: BackendVerdict) -> list[str]:
    """As ``forecast_lines`` where there is little room: what differs, and nothing else."""
    found, first = verdict.forecast, prediction_text(verdict)
    lines = [first] if first else []
    if found is None:
        return lines
    if found.worst.requests != found.steady.requests:
        lines.append(_both(found))
    if verdict.prediction_holds is False:
        lines += map(_sentence, found.difference)
    return lines


def derivations(verdict: BackendVerdict) -> tuple[str, ...]:
    """The working of what is predicted: of both, where they differ."""
    found = verdict.forecast
    if found is None:
        return verdict.predicted.derivation if verdict.predicted else ()
    if found.worst.requests == found.steady.requests:
        return found.fitting.derivation
    return (
        *(f"worst case: {step}" for step in found.worst.derivation),
        *(f"steady state: {step}" for step in found.steady.derivation),
    )


def mover_lines(verdict: BackendVerdict) -> list[str]:
    """``KV cache in fp8: 25 -> 51 (8 of 16 bits: ...)``, one for each change."""
    return [f"{mover.change}: {moved(mover)} ({mover.working})" for mover in verdict.movers]


def moved(mover: Mover) -> str:
    """``25 -> 51``, or that it is not known."""
    if mover.new is None:
        return "no figure"
    return f"{mover.old:,} -> {mover.new:,}"


def _both(found: Forecast) -> str:
    other = "steady" if found.fits == "worst" else "worst"
    return _sentence(
        f"worst case (all at full length at once) {found.worst.requests:,}, steady state (out of "
        f"step) {found.steady.requests:,}; the {NAMES[found.fits]} is taken, not the "
        f"{NAMES[other]}: {found.why}"
    )


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
