"""The last good and the first bad of levels that were judged in any order. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.analysis.verdict_types import Knee, KneeKind
from harness.plan.search_types import Cause


@dataclass(frozen=True)
class Judged:
    """One level's say about one knee; ``bad`` None means that it cannot be said."""

    level: float
    bad: bool | None
    cause: Cause | None
    evidence: str


def bracket(kind: KneeKind, levels: Sequence[Judged], nothing: str) -> Knee:
    """The bracket of levels in any order; ``nothing`` says why there may be no verdict."""
    ranked = sorted(levels, key=lambda item: item.level)
    known = [item for item in ranked if item.bad is not None]
    unknown = tuple(
        f"{item.level:g}: not judged, {item.evidence}" for item in ranked if item.bad is None
    )
    if not known:
        return Knee(kind, "no_verdict", None, None, None, unknown or (nothing,))
    first = next((item for item in known if item.bad), None)
    if first is None:
        last = known[-1]
        return Knee(
            kind,
            "not_reached",
            last.level,
            None,
            last.cause,
            (f"{last.level:g}: {last.evidence}", *unknown),
        )
    good = [item for item in known if item.level < first.level]
    evidence = [f"{item.level:g}: {item.evidence}" for item in (*good[-1:], first)]
    between = tuple(
        text
        for text, item in zip(unknown, (i for i in ranked if i.bad is None), strict=True)
        if item.level < first.level
    )
    return Knee(
        kind,
        "bracketed" if good else "below_first",
        good[-1].level if good else None,
        first.level,
        first.cause,
        (*evidence, *between),
    )
