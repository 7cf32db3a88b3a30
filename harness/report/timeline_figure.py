"""A level over time: requests in flight and waiting above, KV bytes below."""

from __future__ import annotations

from matplotlib.axes import Axes

from harness.analysis.summary_types import CellFigures, RunSummary, Timeline
from harness.report.curves import Curve, curves
from harness.report.drawing import (
    GRID,
    INK,
    LIMIT,
    MUTED,
    WAIT,
    Drawing,
    from_zero,
    new_figure,
    style,
    to_svg,
)
from harness.report.units import byte_scale, bytes_text
from harness.report.words import load_words


def timeline_figures(summary: RunSummary) -> list[Drawing]:
    """One timeline per backend: its first bad level, else its highest one."""
    drawings: list[Drawing] = []
    for index, line in enumerate(curves(summary)):
        cell = told_cell(line)
        if cell is not None and any(cell.timeline.in_flight):
            drawings.append(_draw(line, cell, f"time-{index}"))
    return drawings


def told_cell(line: Curve) -> CellFigures | None:
    """The level that tells most: the first bad one, else the highest."""
    bad = [c for c in line.cells if c.cell.level == line.verdict.capacity.first_bad]
    return next(iter([*bad, *line.cells[-1:]]), None)


def _draw(line: Curve, cell: CellFigures, key: str) -> Drawing:
    timeline = cell.timeline
    budget = (cell.memory.budget_bytes or 0.0) if cell.memory is not None else 0.0
    used = [v for v in timeline.kv_used_bytes if v is not None]
    title = f"{line.name} at {load_words(cell.cell.level, line.verdict.loop)}, over time"
    with style():
        figure = new_figure(3.6 if used else 2.4)
        axes = figure.subplots(
            2 if used else 1, 1, sharex=True, squeeze=False, height_ratios=[3, 2] if used else None
        )[:, 0]
        _requests(axes[0], line, timeline)
        if used:
            _memory(axes[1], line, timeline, budget)
        for one in axes:
            _window(one, timeline)
        axes[-1].set_xlabel("seconds since the level began")
        axes[-1].set_xlim(timeline.t_s[0], max(timeline.t_s[-1], timeline.t_s[0] + 0.001))
        alt = _alt(title, timeline, used)
        svg = to_svg(figure, key, alt)
    return Drawing(
        key,
        title,
        "Shaded: the window that is measured; ramp, warm-up and drain lie outside.",
        alt,
        svg,
    )


def _requests(axes: Axes, line: Curve, timeline: Timeline) -> None:
    axes.plot(
        timeline.t_s,
        timeline.in_flight,
        color=MUTED,
        linewidth=1.2,
        label="in flight (client)",
        drawstyle="steps-post",
    )
    _gauge(axes, timeline, timeline.running, line.color, "running", "solid")
    _gauge(axes, timeline, timeline.waiting, WAIT, "waiting", "solid")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("requests")
    axes.legend(
        loc="lower left", bbox_to_anchor=(0.0, 1.02), ncols=3, labelcolor=INK, columnspacing=1.4
    )


def _gauge(
    axes: Axes,
    timeline: Timeline,
    values: tuple[float | None, ...],
    color: str,
    label: str,
    dash: str,
) -> None:
    found = [(t, v) for t, v in zip(timeline.sample_t_s, values, strict=True) if v is not None]
    if found:
        axes.plot(
            [t for t, _ in found],
            [v for _, v in found],
            color=color,
            linewidth=1.6,
            label=label,
            linestyle=dash,
        )


def _memory(axes: Axes, line: Curve, timeline: Timeline, budget: float) -> None:
    found = [
        (t, v)
        for t, v in zip(timeline.sample_t_s, timeline.kv_used_bytes, strict=True)
        if v is not None
    ]
    divisor, unit = byte_scale(max(budget, *(v for _, v in found)))
    times, values = [t for t, _ in found], [v / divisor for _, v in found]
    axes.fill_between(times, values, color=line.color, alpha=0.18, linewidth=0)
    axes.plot(times, values, color=line.color, linewidth=1.6)
    if budget:
        axes.axhline(budget / divisor, color=LIMIT, linewidth=1.2)
        axes.annotate(
            f"pool {bytes_text(budget)}",
            (0.0, budget / divisor),
            xycoords=("axes fraction", "data"),
            xytext=(3, 2),
            textcoords="offset points",
            fontsize=7.5,
            color=MUTED,
        )
    from_zero(axes, max(budget / divisor, *values) * 1.3)
    axes.set_ylabel(f"KV used in {unit}")


def _window(axes: Axes, timeline: Timeline) -> None:
    if timeline.open_s is not None and timeline.close_s is not None:
        axes.axvspan(
            timeline.open_s, timeline.close_s, color=GRID, alpha=0.35, linewidth=0, zorder=0
        )


def _alt(title: str, timeline: Timeline, used: list[float]) -> str:
    parts = [f"{title}. At most {max(timeline.in_flight)} requests in flight"]
    waiting = [v for v in timeline.waiting if v is not None]
    if waiting:
        parts.append(f"at most {max(waiting):.0f} waiting")
    if used:
        parts.append(f"at most {bytes_text(max(used))} of KV cache used")
    return ", ".join(parts) + "."
