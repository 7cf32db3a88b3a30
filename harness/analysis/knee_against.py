"""What speaks against a knee's cause, from its first bad level. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from harness.analysis.cause_facts import counter_evidence
from harness.analysis.summary_types import CellFigures
from harness.analysis.verdict_types import Knee
from harness.plan.search_types import Cause


def with_against(
    knee: Knee,
    groups: Sequence[tuple[float, Sequence[CellFigures]]],
    cause_of: Callable[[CellFigures], Cause],
) -> Knee:
    """The knee with its counter-evidence; ``groups`` are its cells by rising level.

    ``cause_of`` a level finds the repeat that the knee's cause was taken from.
    """
    if knee.first_bad is None or knee.cause is None:
        return knee
    blamed = (cell for cell in _judged(groups, knee.first_bad) if cause_of(cell) == knee.cause)
    shown = next(blamed, None)
    if shown is None:
        return knee
    before = next(iter(_judged(groups, knee.last_good)), None)
    return replace(knee, against=counter_evidence(knee.cause, shown, before))


def _judged(
    groups: Sequence[tuple[float, Sequence[CellFigures]]], level: float | None
) -> list[CellFigures]:
    return [cell for at, cells in groups if at == level for cell in cells if cell.unjudged is None]
