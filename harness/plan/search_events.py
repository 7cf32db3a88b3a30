"""What a knee search decides, as events of the run: flat, and read back from there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import cast, get_args

from harness.plan.search_types import (
    Cause,
    Found,
    FoundStatus,
    LevelState,
    LevelVerdict,
    SearchGoal,
)
from harness.records import RunEvent, Scalar

_LINE = "\n"


def verdict_detail(verdict: LevelVerdict) -> dict[str, Scalar]:
    """The detail of a ``level_verdict``."""
    return {
        "goal": verdict.goal,
        "state": verdict.state,
        "share": verdict.share,
        "low": verdict.low,
        "high": verdict.high,
        "threshold": verdict.threshold,
        "n": verdict.n,
        "cause": verdict.cause,
        "evidence": _LINE.join(verdict.evidence),
        "against": _LINE.join(verdict.against),
    }


def found_detail(found: Found, flags: Sequence[str]) -> dict[str, Scalar]:
    """The detail of a ``search_found``."""
    return {
        "backend": found.backend,
        "goal": found.goal,
        "status": found.status,
        "last_good": found.last_good,
        "first_bad": found.first_bad,
        "low": found.low,
        "high": found.high,
        "cause": found.cause,
        "evidence": _LINE.join(found.evidence),
        "against": _LINE.join(found.against),
        "flags": " ".join(flags),
    }


def read_verdict(event: RunEvent) -> LevelVerdict | None:
    """The verdict of a ``level_verdict``; None for one that is damaged."""
    detail = event.detail
    goal, state = detail.get("goal"), detail.get("state")
    threshold, n = _number(detail.get("threshold")), _number(detail.get("n"))
    if event.cell is None or goal not in get_args(SearchGoal) or state not in get_args(LevelState):
        return None
    if threshold is None or n is None:
        return None
    return LevelVerdict(
        level=event.cell.level,
        goal=cast("SearchGoal", goal),
        state=cast("LevelState", state),
        share=_number(detail.get("share")),
        low=_number(detail.get("low")),
        high=_number(detail.get("high")),
        threshold=threshold,
        n=int(n),
        cause=_cause(detail.get("cause")),
        evidence=_lines(detail.get("evidence")),
        against=_lines(detail.get("against")),
    )


def read_found(events: Iterable[RunEvent]) -> tuple[Found, ...]:
    """What a search has come to, each with the verdicts of its levels, by rising level."""
    found: list[Found] = []
    verdicts: list[tuple[str, LevelVerdict]] = []
    for event in events:
        if event.kind == "level_verdict" and event.cell is not None and not event.cell.variant:
            verdict = read_verdict(event)
            verdicts += [(event.cell.backend, verdict)] if verdict is not None else []
        elif event.kind == "search_found":
            item = _read_one(event)
            found += [item] if item is not None else []
    return tuple(
        replace(
            item,
            levels=tuple(
                sorted(
                    (v for name, v in verdicts if name == item.backend and v.goal == item.goal),
                    key=lambda v: v.level,
                )
            ),
        )
        for item in found
    )


def _read_one(event: RunEvent) -> Found | None:
    detail = event.detail
    backend, goal, status = (detail.get(name) for name in ("backend", "goal", "status"))
    if goal not in get_args(SearchGoal) or status not in get_args(FoundStatus):
        return None
    return Found(
        backend=str(backend),
        goal=cast("SearchGoal", goal),
        status=cast("FoundStatus", status),
        last_good=_number(detail.get("last_good")),
        first_bad=_number(detail.get("first_bad")),
        low=_number(detail.get("low")),
        high=_number(detail.get("high")),
        cause=_cause(detail.get("cause")),
        evidence=_lines(detail.get("evidence")),
        against=_lines(detail.get("against")),
    )


def _number(value: Scalar) -> float | None:
    usable = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if usable else None  # type: ignore[arg-type]


def _cause(value: Scalar) -> Cause | None:
    return cast("Cause", value) if value in get_args(Cause) else None


def _lines(value: Scalar) -> tuple[str, ...]:
    return tuple(value.split(_LINE)) if isinstance(value, str) and value else ()
