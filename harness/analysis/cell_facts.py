"""What the checks need of a cell beyond its figures."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CellFacts:
    """Counted requests by defect."""

    counted: int
    ignored_events: int
    estimated: int
    buffered: int
    clock_steps: int
    largest_step_s: float
    prompt_mismatches: int
    prompt_counts: tuple[float, float] | None
