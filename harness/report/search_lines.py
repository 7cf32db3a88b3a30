"""What a knee search found, in lines: the levels, why, what to limit, whether that was verified."""

from __future__ import annotations

from dataclasses import dataclass

from harness.analysis.summary_types import CellFigures, RunSummary
from harness.manifest import BackendInfo
from harness.plan.search_flags import advice, found_flags
from harness.plan.search_reasons import Reasons, reasons_of
from harness.plan.search_text import found_line
from harness.plan.search_types import Found, SearchGoal
from harness.records import Loop
from harness.report.units import ABSENT, level_text, percent_text
from harness.report.words import CAUSES

SEARCH_METHOD = (
    "Levels were chosen as the run went on: from what the server's own facts predict, doubling "
    "until a level is bad, then halving the gap. A level went on until the 95 % interval of its "
    "share (of samples in which requests are kept out, of requests that meet the SLO) lay on one "
    "side of the threshold, or its time was over."
)
REASONS = "Why, and what speaks against it"


@dataclass(frozen=True)
class SearchAnswer:
    """What a search says of one backend and goal."""

    line: str
    #: None where there is no cause to speak of
    reasons: Reasons | None
    #: what to limit, or how that went; empty: nothing to say
    advice: str


#: What the share of a goal is a share of.
GOALS: dict[SearchGoal, str] = {
    "capacity": "samples with requests kept out",
    "slo": "requests that meet the SLO",
}
#: (title, unit)
SEARCH_HEADS: tuple[tuple[str, str], ...] = (
    ("backend", ""),
    ("goal", ""),
    ("level", ""),
    ("verdict", ""),
    ("share", ""),
    ("95 % interval", ""),
    ("threshold", ""),
    ("n", ""),
    ("cause", ""),
)


def search_rows(summary: RunSummary) -> list[tuple[str, ...]]:
    """What each level said, by backend, goal and rising level."""
    return [
        (
            found.backend,
            GOALS[found.goal],
            level_text(item.level),
            item.state,
            percent_text(None if item.over_saturated else item.share),
            f"{percent_text(item.low)} to {percent_text(item.high)}",
            percent_text(item.threshold),
            f"{item.n}",
            CAUSES[item.cause] if item.cause is not None else ABSENT,
        )
        for found in summary.found
        for item in found.levels
    ]


def search_answers(summary: RunSummary) -> tuple[SearchAnswer, ...]:
    """Per backend and goal what was found, why, and what to limit."""
    infos = {info.name: info for info in summary.manifest.backends}
    loop = summary.manifest.workload.loop
    return tuple(
        SearchAnswer(
            found_line(found, loop),
            reasons_of(found, loop),
            _advice(found, infos.get(found.backend), _verified(summary, found), loop),
        )
        for found in summary.found
    )


def search_lines(summary: RunSummary) -> tuple[str, ...]:
    """Per backend what it holds, what meets the SLO, and how to start it so."""
    lines = ((answer.line, answer.advice) for answer in search_answers(summary))
    return tuple(text for pair in lines for text in pair if text)


def search_reasons(summary: RunSummary) -> tuple[Reasons, ...]:
    """What speaks for each cause that was found, and what against it."""
    said = (answer.reasons for answer in search_answers(summary))
    return tuple(reasons for reasons in said if reasons is not None)


def _verified(summary: RunSummary, found: Found) -> CellFigures | None:
    """The level that was measured after the restart with what was found."""
    cells = (item for item in summary.cells_of(found.backend) if item.cell.variant)
    return next(cells, None) if found.goal == "capacity" else None


def _advice(
    found: Found, info: BackendInfo | None, verified: CellFigures | None, loop: Loop
) -> str:
    if info is None:
        return ""
    flags = " ".join(found_flags(info, found, loop))
    if flags and verified is not None:
        # whoever measures next must know that the server was left restricted
        left = "it runs so until kvknee down"
        return f"{info.name} verified with {flags}: {_outcome(verified)}; {left}"
    return advice(info, found, loop)


def _outcome(figures: CellFigures) -> str:
    """``4 at once, none kept out, 98.2 % meet the SLO``."""
    level = f"{figures.cell.level:g} at once"
    if figures.unjudged is not None:
        return f"{level}, not judged: {figures.unjudged}"
    kept = figures.admission
    held = "none kept out" if kept.state in ("free", "compute") else kept.evidence
    share = figures.throughput.slo_attainment
    met = f", {percent_text(share)} of the requests meet the SLO" if share is not None else ""
    return f"{level}, {held}{met}"
