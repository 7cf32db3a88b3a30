"""What a knee search found, in lines: the levels, the flags to paste, whether that was verified."""

from __future__ import annotations

from harness.analysis.summary_types import CellFigures, RunSummary
from harness.manifest import BackendInfo
from harness.plan.search_flags import found_flags, in_effect
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


def search_lines(summary: RunSummary) -> tuple[str, ...]:
    """Per backend what it holds, what meets the SLO, and how to start it so."""
    infos = {info.name: info for info in summary.manifest.backends}
    loop = summary.manifest.workload.loop
    lines: list[str] = []
    for found in summary.found:
        info = infos.get(found.backend)
        lines.append(found_line(found, loop))
        if info is not None:
            lines += _flag_lines(found, info, _verified(summary, found), loop)
    return tuple(lines)


def _verified(summary: RunSummary, found: Found) -> CellFigures | None:
    """The level that was measured after the restart with what was found."""
    cells = (item for item in summary.cells_of(found.backend) if item.cell.variant)
    return next(cells, None) if found.goal == "capacity" else None


def _flag_lines(
    found: Found, info: BackendInfo, verified: CellFigures | None, loop: Loop
) -> list[str]:
    flags = " ".join(found_flags(info, found, loop))
    if not flags:
        return []
    if verified is not None:
        return [f"{info.name} verified with {flags}: {_outcome(verified)}"]
    if in_effect(info, found):
        return [f"{info.name} runs with {flags} already"]
    return [f"{info.name}: start it with {flags}"]


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
