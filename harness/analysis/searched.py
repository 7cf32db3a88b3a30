"""The verdicts of a run that searched for its knees: what the search found is the answer. Pure.

The search puts a level's repeats together and decides by intervals; level by level one bad
repeat makes a level bad. So that a report has one answer, the search's takes the place of:

capacity   always
memory     where the cause is KV memory; else a knee at a level that the search calls good is
           none
latency    where it searched for the SLO's knee

Where the search found neither a good nor a bad level there is no verdict: that every level judged
looks good by its few samples is no answer that it would give.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.analysis.foresee import is_of
from harness.analysis.knee import with_knees
from harness.analysis.summary_types import CellFigures
from harness.analysis.verdict_types import BackendVerdict, Knee, KneeKind, KneeStatus
from harness.plan.search_reasons import ATTRIBUTED
from harness.plan.search_types import VERIFIED, Found


def searched_verdicts(
    verdicts: Sequence[BackendVerdict], found: Sequence[Found], cells: Sequence[CellFigures]
) -> tuple[BackendVerdict, ...]:
    """Each verdict with the knees that the search found, and what follows from them.

    What was measured again after a restart is one level and has no knee: its verdict is left
    out, the search's own words say how it went. Without a search nothing changes.
    """
    return tuple(
        _searched(item, found, [cell for cell in cells if is_of(cell, item)])
        for item in verdicts
        if not (found and item.variant == VERIFIED)
    )


def _searched(
    verdict: BackendVerdict, found: Sequence[Found], cells: Sequence[CellFigures]
) -> BackendVerdict:
    if verdict.variant:
        return verdict
    own = {item.goal: item for item in found if item.backend == verdict.backend.name}
    capacity, slo = own.get("capacity"), own.get("slo")
    knees: dict[str, Knee] = {}
    if capacity is not None:
        knees["capacity"] = _knee("capacity", capacity)
        knees["memory"] = _memory(verdict.memory, capacity)
    if slo is not None:
        knees["latency"] = _knee("latency", slo)
        # it has an interval of the search, which knows that neighbours are alike
        sure = tuple(b for b in verdict.confidence.brackets if b.knee != "latency")
        verdict = replace(verdict, confidence=replace(verdict.confidence, brackets=sure))
    return with_knees(verdict, cells, **knees) if knees else verdict


def _undecided(kind: KneeKind, found: Found) -> Knee:
    how = "was cut short before any level was" if found.status == "budget" else "found no level"
    levels = (f"{item.level:g}: {'; '.join(item.evidence)}" for item in found.levels)
    evidence = (f"the knee search {how} surely good or bad", *levels)
    return Knee(kind, "no_verdict", None, None, None, evidence, searched=found.status)


def _knee(kind: KneeKind, found: Found) -> Knee:
    if found.last_good is None and found.first_bad is None:
        return _undecided(kind, found)
    status: KneeStatus = "bracketed"
    if found.first_bad is None:
        status = "not_reached"
    elif found.last_good is None:
        status = "below_first"
    at = f"{found.first_bad:g}: " if found.first_bad is not None else ""
    open_ended = found.low is None and found.high is None
    return Knee(
        kind=kind,
        status=status,
        last_good=found.last_good,
        first_bad=found.first_bad,
        cause=found.cause,
        evidence=tuple(f"{at}{line}" for line in found.evidence),
        interval=None if open_ended else (found.low, found.high),
        against=found.against if found.cause in ATTRIBUTED else None,
        searched=found.status,
    )


def _memory(by_levels: Knee, found: Found) -> Knee:
    """What keeps requests out at the search's knee may be something else than memory."""
    nothing = found.last_good is None and found.first_bad is None
    if found.status == "not_reached" or nothing or (found.first_bad and found.cause == "kv_memory"):
        return _knee("memory", found)
    bad, good = by_levels.first_bad, found.last_good
    if bad is None or good is None or bad > good:
        return by_levels
    text = f"the knee search calls {good:g} good, all repeats of a level put together"
    return Knee("memory", "not_reached", good, None, None, (text,), searched=found.status)
