"""The verdicts of a run that searched for its knees. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.analysis.verdict_types import BackendVerdict, Knee
from harness.plan.search_types import VERIFIED, Found


def searched_verdicts(
    verdicts: Sequence[BackendVerdict], found: Sequence[Found]
) -> tuple[BackendVerdict, ...]:
    """Each capacity knee with the interval that the search has for it.

    What was measured again after a restart is one level and has no knee: its verdict is left
    out, the search's own words say how it went. Without a search nothing changes.
    """
    sure = {item.backend: item for item in found if item.goal == "capacity"}
    return tuple(
        replace(item, capacity=_with_interval(item.capacity, sure.get(item.backend.name)))
        for item in verdicts
        if not (found and item.variant == VERIFIED)
    )


def _with_interval(knee: Knee, found: Found | None) -> Knee:
    """An interval that is open at one end is none, nor is one for another level."""
    if found is None or found.low is None or found.high is None:
        return knee
    if knee.last_good != found.last_good:
        return knee
    return replace(knee, interval=(found.low, found.high))
