"""Why a knee lies where it was found: what speaks for its cause and what against it, in words."""

from __future__ import annotations

from dataclasses import dataclass

from harness.plan.search_text import CAUSE_WORDS
from harness.plan.search_types import Cause, Found, SearchGoal
from harness.records import Loop

#: causes for which it is looked up what speaks against them, too
ATTRIBUTED: frozenset[Cause] = frozenset({"kv_memory", "scheduler_limit", "compute"})
NOTHING_AGAINST = "(nothing speaks against it)"
_GOALS: dict[SearchGoal, str] = {"capacity": "capacity", "slo": "SLO"}


@dataclass(frozen=True)
class Reasons:
    """Of one backend and goal: what is explained, and each line with the side that it is on."""

    #: ``paged, capacity, 26 requests at once: KV memory``
    head: str
    #: ``for: ...``, ``against: ...``
    lines: tuple[str, ...]


def reasons_of(found: Found, loop: Loop) -> Reasons | None:
    """Both sides of the cause that was found; None where there is no cause to speak of."""
    if found.cause is None or not found.evidence:
        return None
    both_sides = found.cause in ATTRIBUTED
    label = "for" if both_sides else "because"
    lines = [f"{label}: {line}" for line in found.evidence]
    lines += [f"against: {line}" for line in found.against]
    if both_sides and not found.against:
        lines.append(f"against: {NOTHING_AGAINST}")
    return Reasons(_head(found, found.cause, loop), tuple(lines))


def _head(found: Found, cause: Cause, loop: Loop) -> str:
    where = f"{found.backend}, {_GOALS[found.goal]}"
    if found.first_bad is not None:
        unit = "at once" if loop == "closed" else "requests/s"
        where += f", {found.first_bad:g} {unit}"
    return f"{where}: {CAUSE_WORDS[cause]}"
