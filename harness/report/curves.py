"""Curves over concurrency: one per backend, and what every such figure shares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.artist import Artist
from matplotlib.axes import Axes

from harness.analysis.summary_types import CellFigures, RunSummary
from harness.analysis.verdict_types import BackendVerdict, Knee
from harness.report.drawing import CARD, GRID, INK, LIMIT, MUTED, SERIES, level_axis
from harness.report.units import level_text

_MARKERS = ("o", "s", "D", "^", "v", "P", "X", "*")


@dataclass(frozen=True)
class Curve:
    """One backend's cells, by rising level, and how they are drawn."""

    verdict: BackendVerdict
    name: str
    cells: tuple[CellFigures, ...]
    color: str
    marker: str


def curves(summary: RunSummary) -> list[Curve]:
    """One curve per backend and workload; colours follow the manifest's order."""
    order = {info.name: index for index, info in enumerate(summary.manifest.backends)}
    lengths = len({(v.prompt_tokens, v.output_tokens) for v in summary.verdicts}) > 1
    several = lengths or any(v.variant for v in summary.verdicts)
    found: list[Curve] = []
    for verdict in summary.verdicts:
        index = order[verdict.backend.name] if not several else len(found)
        name = verdict.backend.name
        if lengths:
            name += f" {verdict.prompt_tokens}+{verdict.output_tokens}"
        if verdict.variant:
            name += f" {verdict.variant}"
        cells = tuple(
            cell
            for cell in summary.cells_of(verdict.backend.name)
            if (cell.cell.prompt_tokens, cell.cell.output_tokens, cell.cell.variant)
            == (verdict.prompt_tokens, verdict.output_tokens, verdict.variant)
        )
        found.append(Curve(verdict, name, cells, SERIES[index % len(SERIES)], _MARKERS[index % 8]))
    return found


def points(line: Curve, get: Callable[[CellFigures], float | None]) -> list[tuple[float, float]]:
    """(level, value) by rising level; repeats are averaged."""
    found: dict[float, list[float]] = {}
    for cell in line.cells:
        value = get(cell)
        if value is not None:
            found.setdefault(cell.cell.level, []).append(value)
    return [(level, sum(values) / len(values)) for level, values in sorted(found.items())]


def finish(axes: Axes, lines: Sequence[Curve], legend_columns: int = 4) -> None:
    """Level axis, knee brackets, predicted capacities, legend."""
    levels = sorted({cell.cell.level for line in lines for cell in line.cells})
    level_axis(axes, levels, lines[0].verdict.loop)
    for line in lines:
        knee = line.verdict.capacity
        if knee.last_good is not None and knee.first_bad is not None:
            axes.axvspan(
                knee.last_good, knee.first_bad, color=line.color, alpha=0.09, linewidth=0, zorder=0
            )
        predicted = line.verdict.predicted
        if predicted is not None and levels[0] <= predicted.requests <= levels[-1]:
            axes.axvline(
                predicted.requests, color=line.color, linewidth=1.0, linestyle=(0, (2, 2)), zorder=1
            )
            axes.annotate(
                f"predicted {predicted.requests}",
                (predicted.requests, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(-2, -2),
                textcoords="offset points",
                rotation=90,
                ha="right",
                va="top",
                fontsize=7,
                color=line.color,
            )
    handles, _ = axes.get_legend_handles_labels()
    if handles:
        axes.legend(
            loc="lower left",
            bbox_to_anchor=(0.0, 1.02),
            ncols=min(legend_columns, _columns(handles)),
            labelcolor=INK,
            columnspacing=1.4,
        )
    axes.tick_params(axis="x", color=GRID)


def _columns(handles: Sequence[Artist]) -> int:
    """Of a legend: as many as its longest name leaves room for."""
    longest = max(len(str(handle.get_label())) for handle in handles)
    return max(1, _LEGEND_CHARACTERS // (longest + 5))


#: what a legend's line has room for, handles and gaps included
_LEGEND_CHARACTERS = 66
#: shares of an axis' height: what a name takes, and below what a line counts as low
_NAME_HEIGHT, _LOW = 0.09, 0.25


def limit_line(axes: Axes, value: float, text: str) -> None:
    """A horizontal line with its name: a pool or an SLO."""
    axes.axhline(value, color=LIMIT, linewidth=1.2)
    at = axes.transAxes.inverted().transform(axes.get_yaxis_transform().transform((0.0, value)))
    # a low line has its curves above it, and room for its name below
    below = _NAME_HEIGHT < at[1] < _LOW
    axes.annotate(
        text,
        (0.0, value),
        xycoords=("axes fraction", "data"),
        xytext=(3, -2 if below else 2),
        textcoords="offset points",
        ha="left",
        va="top" if below else "bottom",
        fontsize=7.5,
        color=MUTED,
    )


def hollow(axes: Axes, line: Curve, found: Sequence[tuple[float, float]]) -> None:
    """Hollow the markers of levels that give no verdict."""
    judged = {cell.cell.level for cell in line.cells if cell.unjudged is None}
    rest = [(level, value) for level, value in found if level not in judged]
    axes.plot(
        [level for level, _ in rest],
        [value for _, value in rest],
        linestyle="none",
        marker=line.marker,
        markerfacecolor=CARD,
        markeredgecolor=line.color,
    )


def knee_caption(lines: Sequence[Curve]) -> str:
    """What shading, dashes and hollow markers mean; empty without any."""
    parts: list[str] = []
    if any(v.last_good is not None and v.first_bad is not None for v in _capacities(lines)):
        parts.append("Shaded: the capacity knee.")
    levels = [cell.cell.level for line in lines for cell in line.cells]
    predicted = [v.predicted.requests for v in (ln.verdict for ln in lines) if v.predicted]
    if any(min(levels) <= requests <= max(levels) for requests in predicted):
        parts.append("Dashed: the predicted capacity.")
    if any(cell.unjudged is not None for line in lines for cell in line.cells):
        parts.append("Hollow: levels that give no verdict.")
    return " ".join(parts)


def _capacities(lines: Sequence[Curve]) -> list[Knee]:
    return [line.verdict.capacity for line in lines]


def spoken(
    points: Sequence[tuple[Curve, list[tuple[float, float]]]], text: Callable[[float], str]
) -> str:
    """The points in words, for those who cannot see the figure."""
    return "; ".join(
        f"{line.name} "
        + ", ".join(f"{text(value)} at {level_text(level)}" for level, value in found)
        for line, found in points
    )
