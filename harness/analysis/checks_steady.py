"""Findings about a level whose window is not steady."""

from __future__ import annotations

from harness.analysis.steady import LEAST_SHARE
from harness.analysis.steady_types import Steady
from harness.analysis.summary_types import CellFigures
from harness.records import Finding


def steady_findings(figures: CellFigures) -> list[Finding]:
    """Whether half of the window is steady; nothing is said of a window too short to tell."""
    steady = figures.steady
    if steady is None or not steady.unsteady or _known_otherwise(figures):
        return []
    return [
        Finding(
            code="not_steady",
            severity="warning",
            text=f"{_stretch(steady)}{_why(steady)}. The figures are those of the whole window.",
            remedy="Give the level more time (--min-level-seconds), or look for what changes in "
            "it: memory that fills up, a machine that slows down, other clients.",
            cell=figures.cell,
        )
    ]


def _known_otherwise(figures: CellFigures) -> bool:
    """Whether it is said already, or asked for: no verdict, over-saturation, a trace's bursts."""
    found = figures.open_loop
    if figures.unjudged is not None:
        return True
    return found is not None and (found.over_saturated or found.replayed)


def _stretch(steady: Steady) -> str:
    if steady.share is None:
        return "No stretch of the window is steady"
    return (
        f"The longest steady stretch of the window is {steady.share * 100:.0f} % of it "
        f"({LEAST_SHARE * 100:.0f} % should be)"
    )


def _why(steady: Steady) -> str:
    parts = []
    if steady.moves:
        moved = ", ".join(f"{m.name} by {m.change * 100:+.0f} %" for m in steady.moves)
        parts.append(f"over all of it {moved}")
    if steady.full_bins is not None and steady.full_bins < 1.0:
        parts.append(f"all users are in flight in {steady.full_bins * 100:.0f} % of it")
    return f": {'; '.join(parts)}" if parts else ""
