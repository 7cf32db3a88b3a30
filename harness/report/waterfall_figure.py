"""From one request at a time to a paged cache, as two waterfalls: requests held, tokens/s."""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from harness.analysis.scenario_types import Waterfall, WaterfallStep
from harness.report.drawing import INK, MUTED, SERIES, Drawing, from_zero, new_figure, style, to_svg
from harness.report.units import level_text, number

_HEIGHT_IN = 2.9
_WIDTH = 0.62


def waterfall_figures(found: tuple[Waterfall, ...]) -> list[Drawing]:
    """Two drawings per level: what each step adds to the requests held, and to tokens/s."""
    drawings = []
    for item in found:
        key = f"{level_text(item.level)}-{item.repeat}"
        drawings += [
            _waterfall(item, f"held-{key}", "requests held", lambda step: step.held),
            _waterfall(
                item, f"rate-{key}", "output tokens / s", lambda step: step.output_tokens_per_s
            ),
        ]
    return [drawing for drawing in drawings if drawing is not None]


def _waterfall(
    found: Waterfall, key: str, what: str, get: Callable[[WaterfallStep], float | None]
) -> Drawing | None:
    known = [(step, value) for step in found.steps if (value := get(step)) is not None]
    if len(known) < 2:
        return None
    title = _title(what, known)
    with style():
        figure = new_figure(_HEIGHT_IN)
        axes = figure.subplots()
        last = 0.0
        for place, (step, value) in enumerate(known):
            _bar(axes, place, last, value, first=place == 0)
            axes.annotate(
                _label(step, last, value),
                (place, max(last, value)),
                xytext=(0, 2),
                textcoords="offset points",
                ha="center",
                fontsize=7,
                color=INK,
            )
            last = value
        axes.set_xticks(range(len(known)), [step.backend for step, _ in known])
        from_zero(axes, max(value for _, value in known) * 1.25)
        axes.set_ylabel(what)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.0f}"))
        alt = f"{title}. " + "; ".join(f"{s.backend} {number(v)}" for s, v in known)
        svg = to_svg(figure, key, alt)
    caption = (
        f"Dark: what a server adds to the one left of it; pale: what that one had. "
        f"{level_text(found.level)} requests in flight, the same list for all."
    )
    return Drawing(key, title, caption, alt, svg)


def _bar(axes: Axes, place: int, last: float, value: float, *, first: bool) -> None:
    color = SERIES[0]
    if first:
        axes.bar(place, value, _WIDTH, color=color)
        return
    axes.bar(place, min(last, value), _WIDTH, color=color, alpha=0.25)
    bottom, height = min(last, value), abs(value - last)
    if value >= last:
        axes.bar(place, height, _WIDTH, bottom=bottom, color=color)
    else:
        axes.bar(place, height, _WIDTH, bottom=bottom, fill=False, edgecolor=color, hatch="///")
    axes.plot([place - 1, place], [last, last], color=MUTED, linewidth=0.8)


def _label(step: WaterfallStep, last: float, value: float) -> str:
    if not last:
        return number(value)
    change = f"{step.change}\n" if step.change else ""
    return f"{change}{number(value)} (x {number(value / last)})"


def _title(what: str, known: list[tuple[WaterfallStep, float]]) -> str:
    (first, low), (last, high) = known[0], known[-1]
    if not low:
        return f"{what}: from {first.backend} to {last.backend}"
    gain = f"{number(high / low)} times"
    return f"{last.backend} has {gain} the {what} of {first.backend}"
