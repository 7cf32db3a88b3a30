"""How sure each level is: its share of the SLO, its gain in throughput, its steady part."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.analysis.confidence import latency_intervals, throughput_intervals
from harness.analysis.confidence_types import LevelInterval
from harness.analysis.knee import GAIN_PER_DOUBLING
from harness.analysis.slo_evidence import SLO_SHARE
from harness.analysis.steady_types import Steady
from harness.analysis.summary_types import CellFigures
from harness.report.rows import Column, level_column
from harness.report.units import ABSENT, percent_text


def sure_columns(cells: Sequence[CellFigures], slo_share: float = SLO_SHARE) -> list[Column]:
    """Figures that decide a knee with their intervals; empty where there are none.

    ``slo_share`` of the requests must meet the SLO.
    """
    columns = [level_column(cells)]
    if any(latency_intervals([cell], slo_share) for cell in cells):
        columns += _judged(
            "SLO met", lambda c: next(iter(latency_intervals([c], slo_share)), None), _share
        )
    gains = _gains(cells)
    if gains:
        columns += _judged("gain per doubling", lambda c: gains.get(c.cell.level), _gain)
    if any(cell.steady is not None for cell in cells):
        columns += [
            Column(
                "steady",
                "of window",
                lambda c: steady_text(c.steady),
                "the longest stretch with full load in which neither throughput nor TTFT nor KV "
                "usage trends",
            ),
            Column("from", "s", lambda c: _from(c), "the stretch's start, from the window's"),
            Column("for", "s", lambda c: _for(c.steady), "the stretch's length"),
        ]
    return columns if len(columns) > 1 else []


def steady_text(steady: Steady | None) -> str:
    """``100 %``, ``62.5 %``, ``none``, ``too short to tell``."""
    if steady is None:
        return ABSENT
    if steady.state == "too_short":
        return "too short to tell"
    return "none" if steady.share is None else percent_text(steady.share)


def _from(figures: CellFigures) -> str:
    steady, opened = figures.steady, figures.window.open_s
    if steady is None or steady.start_s is None or opened is None:
        return ABSENT
    return f"{steady.start_s - opened:.1f}"


def _for(steady: Steady | None) -> str:
    return ABSENT if steady is None or steady.length_s is None else f"{steady.length_s:.1f}"


def _gains(cells: Sequence[CellFigures]) -> dict[float, LevelInterval]:
    groups: dict[float, list[CellFigures]] = {}
    for cell in sorted(cells, key=lambda c: c.cell.level):
        groups.setdefault(cell.cell.level, []).append(cell)
    return {i.level: i for i in throughput_intervals(list(groups.items()), GAIN_PER_DOUBLING)}


def _judged(
    title: str,
    get: Callable[[CellFigures], LevelInterval | None],
    text: Callable[[float], str],
) -> list[Column]:
    """A figure, its interval, and whether that decides it."""

    def shown(tell: Callable[[LevelInterval], str]) -> Callable[[CellFigures], str]:
        def column(figures: CellFigures) -> str:
            found = get(figures)
            return ABSENT if found is None else tell(found)

        return column

    return [
        Column(title, "", shown(lambda i: text(i.figure.value)), ""),
        Column(
            title,
            "95 % interval",
            shown(lambda i: f"{text(i.figure.low)} to {text(i.figure.high)}"),
            "",
        ),
        Column(
            title,
            "so",
            shown(lambda i: i.state),
            "undecided: the threshold lies in the interval",
        ),
    ]


def _share(ratio: float) -> str:
    return percent_text(ratio)


def _gain(ratio: float) -> str:
    return f"{ratio * 100:+.0f} %"
