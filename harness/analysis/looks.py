"""How many independent samples of a level there are: what happens at one time shares one state."""

from __future__ import annotations

from harness.analysis.summary_types import CellFigures
from harness.plan.proportions import LOOKS_PER_ROUND


def rounds(figures: CellFigures) -> float | None:
    """Requests of each user in the window: its length over a request's time (Little's law)."""
    in_flight = figures.throughput.mean_in_flight
    if not in_flight:
        return None
    return (figures.counts.ok + figures.counts.failed) / in_flight


def at_most_looks(figures: CellFigures, n: float) -> float:
    """No more than the state of the engine is new: all that happens at a time shares it."""
    turns = rounds(figures)
    return n if turns is None else min(n, LOOKS_PER_ROUND * turns)
