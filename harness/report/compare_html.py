"""A comparison of two runs as one self-contained page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup
from matplotlib.ticker import FuncFormatter

from harness import __version__
from harness.compare.types import CellPair, Change, Comparison, MetricName
from harness.records import Loop
from harness.report.backend_view import TableView
from harness.report.compare_rows import (
    HEADS,
    TITLES,
    groups,
    head_lines,
    method_lines,
    mismatch_lines,
    unmatched_lines,
)
from harness.report.drawing import LIMIT, SERIES, Drawing, level_axis, new_figure, style, to_svg
from harness.report.html import page_environment, template_text

_DRAWN: tuple[MetricName, ...] = ("ttft_p95_s", "tpot_p95_s", "output_tokens_per_s")


@dataclass(frozen=True)
class GroupView:
    """One backend's section."""

    title: str
    table: TableView
    notes: tuple[str, ...]
    charts: tuple[tuple[Drawing, Markup], ...]


def comparison_page(comparison: Comparison) -> str:
    """The whole page; what came from servers is escaped by the template."""
    page = (
        page_environment()
        .get_template("compare.html")
        .render(
            css=Markup(template_text("report.css")),  # noqa: S704 - our own file, no user text
            name_a=comparison.name_a,
            name_b=comparison.name_b,
            head=head_lines(comparison),
            mismatches=[
                (item.refuses, line)
                for item, line in zip(
                    comparison.mismatches, mismatch_lines(comparison), strict=True
                )
            ],
            unmatched=unmatched_lines(comparison),
            groups=[_view(comparison, place) for place in range(len(groups(comparison)))],
            method=method_lines(),
            version=__version__,
        )
    )
    return page.strip() + "\n"


def _view(comparison: Comparison, place: int) -> GroupView:
    group = groups(comparison)[place]
    drawn = [_chart(f"g{place}-{name}", name, group.pairs, comparison.loop) for name in _DRAWN]
    return GroupView(
        title=group.title,
        table=TableView(group.title, tuple((head, "", "") for head in HEADS), group.rows),
        notes=group.notes,
        charts=tuple((d, Markup(d.svg)) for d in drawn if d is not None),  # noqa: S704 - our own drawing
    )


def _chart(key: str, name: MetricName, pairs: Sequence[CellPair], loop: Loop) -> Drawing | None:
    """B / A with its interval against the level; hollow where it is not trusted."""
    points = [
        (pair.cell.level, change)
        for pair in pairs
        for change in pair.changes
        if change.metric.name == name and change.change is not None
    ]
    if not points:
        return None
    title, _ = TITLES[name]
    better = "less is better" if points[0][1].metric.lower_is_better else "more is better"
    spoken = ", ".join(f"{_percent(_ratio(change))} at {level:g}" for level, change in points)
    with style():
        figure = new_figure(2.2)
        axes = figure.subplots()
        axes.axhline(1.0, color=LIMIT, linewidth=1.0)
        for level, change in points:
            found = change.change
            if found is None:
                continue
            trusted = change.outcome != "unsure"
            axes.errorbar(
                [level],
                [found.value],
                yerr=[[found.value - found.low], [found.high - found.value]],
                fmt="o",
                color=SERIES[0],
                markerfacecolor=SERIES[0] if trusted else "none",
                capsize=3,
            )
        axes.yaxis.set_major_formatter(FuncFormatter(_as_percent()))
        axes.set_ylabel("B against A")
        level_axis(axes, sorted({level for level, _ in points}), loop)
        alt = f"{title}, B against A: {spoken}"
        svg = to_svg(figure, key, alt)
    return Drawing(
        key,
        f"{title}: B against A ({better})",
        "Bars are 95 % intervals; hollow: no verdict.",
        alt,
        svg,
    )


def _ratio(change: Change) -> float:
    return change.change.value if change.change is not None else 1.0


def _as_percent() -> Callable[[float, int | None], str]:
    return lambda value, _: _percent(value)


def _percent(ratio: float) -> str:
    return f"{(ratio - 1.0) * 100:+.0f} %"
