"""One series over its nights as an inline SVG, with the same in words and as a table. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import matplotlib as mpl
from markupsafe import escape
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from harness.errors import printable
from harness.kv.units import counted
from harness.nightly.gate_types import Reading, VerdictName
from harness.nightly.night_types import Judged
from harness.nightly.outputs.words import (
    NAMES,
    bare_text,
    cell_text,
    change_text,
    clear_since,
    metric_text,
    since_text,
    unit_text,
    value_text,
    verdict_text,
)
from harness.report.drawing import (
    INK,
    LIMIT,
    MUTED,
    SERIES,
    WAIT,
    Drawing,
    new_figure,
    style,
    to_svg,
)

_HEIGHT_IN = 2.2
#: the table beside a drawing; the whole history is exported by ``kvknee history``
_MOST_ROWS = 30
#: shape as well as colour says what tonight is
_MARKERS: dict[VerdictName, tuple[str, str]] = {
    "regressed": ("X", WAIT),
    "improved": ("^", SERIES[2]),
    "ok": ("D", INK),
}
_UNSURE = ("s", MUTED)
READ = (
    "A point is a night (the mean of its repeats), its bar goes from the least to the largest "
    "repeat; grey points are older than the baseline. The line is the baseline, the band ends "
    "where a regression is called tonight. Tonight: a diamond is ok, a cross regressed, a "
    "triangle improved, a square has no verdict. A dotted upright line: since then it is another "
    "level."
)


TABLE_HEADS = ("night", "mean", "least", "largest", "repeats")


def trend(item: Judged, key: str) -> Drawing | None:
    """The drawing; None where no night has the figure. ``key`` makes its ids unique."""
    nights = item.series.baseline
    tonight = item.series.tonight
    if not nights and not (tonight and tonight.repeats):
        return None
    title = f"{cell_text(item)}: {metric_text(item.series.metric)}, {unit_text(item.series.metric)}"
    alt = printable(_spoken(item))
    # nothing that a server sent is drawn, so no text is taken for a formula
    with style(), mpl.rc_context({"path.simplify": False}):
        figure = new_figure(_HEIGHT_IN)
        axes = figure.subplots()
        _draw_nights(axes, item)
        _draw_band(axes, item)
        _draw_tonight(axes, item)
        _draw_since(axes, item)
        _dress(axes, item)
        svg = _described(to_svg(figure, key, alt), printable(title), alt)
    return Drawing(key, title, _caption(item), alt, svg)


def night_rows(item: Judged) -> tuple[tuple[str, ...], ...]:
    """The last nights under ``TABLE_HEADS``, tonight first."""
    found = [item.series.tonight, *reversed(item.series.baseline[-_MOST_ROWS:])]
    readings = [reading for reading in found if reading is not None and reading.repeats]
    return tuple(_night_row(item, reading) for reading in readings)


def left_out_text(item: Judged) -> str:
    """How many nights the table leaves out; empty for none."""
    more = len(item.series.baseline) - _MOST_ROWS
    return f"{counted(more, 'older night')}: kvknee history export" if more > 0 else ""


def _night_row(item: Judged, reading: Reading) -> tuple[str, ...]:
    metric = item.series.metric
    name = f"{reading.night} (tonight)" if reading is item.series.tonight else reading.night
    values = (reading.value, min(reading.repeats), max(reading.repeats))
    return (name, *(bare_text(metric, value) for value in values), str(len(reading.repeats)))


def _described(svg: str, title: str, text: str) -> str:
    """With ``title`` and ``desc`` as the first children, for those who cannot see it."""
    inner = f"><title>{escape(title)}</title><desc>{escape(text)}</desc>"
    return svg.replace(">", inner, 1)


def _spoken(item: Judged) -> str:
    metric, verdict = item.series.metric, item.verdict
    values = [reading.value for reading in item.series.baseline]
    text = f"{cell_text(item)}, {metric_text(metric)}: {verdict_text(verdict)}"
    if values:
        low, high = value_text(metric, min(values)), value_text(metric, max(values))
        text += f"; {counted(len(values), 'night')} from {low} to {high}"
    return f"{text}; {_caption(item)}"


def _caption(item: Judged) -> str:
    verdict, metric = item.verdict, item.series.metric
    if verdict.tonight is None:
        return "Not measured tonight."
    text = f"Tonight {value_text(metric, verdict.tonight)}"
    if verdict.baseline is not None:
        text += (
            f", baseline {value_text(metric, verdict.baseline)} over "
            f"{counted(verdict.nights, 'night')}: {change_text(metric, verdict.change)}"
        )
    since = since_text(item)
    return f"{text}, {since}." if since else f"{text}."


def _shown(item: Judged, values: Sequence[float]) -> list[float]:
    return [value * NAMES[item.series.metric.name][2] for value in values]


def _draw_nights(axes: Axes, item: Judged) -> None:
    """Points and bars, each kind as one path: 400 nights stay small."""
    nights = item.series.baseline
    places = [float(i - len(nights)) for i in range(len(nights))]
    used = item.verdict.nights if item.verdict.baseline is not None else len(nights)
    size = 2.2 if len(nights) > 60 else 3.2
    for low, high, color in (
        (0, max(len(nights) - used, 0), MUTED),
        (max(len(nights) - used, 0), len(nights), SERIES[0]),
    ):
        part, at = nights[low:high], places[low:high]
        if part:
            _draw_bars(axes, item, at, part, color)
            means = _shown(item, [reading.value for reading in part])
            axes.plot(
                at, means, "o", color=color, markersize=size, markeredgewidth=0, alpha=_alpha(color)
            )


def _alpha(color: str) -> float:
    """Nights older than the baseline are pale."""
    return 0.5 if color == MUTED else 1.0


def _draw_bars(
    axes: Axes, item: Judged, places: Sequence[float], nights: Sequence[Reading], color: str
) -> None:
    xs = [x for place in places for x in (place, place, math.nan)]
    ends = [(min(night.repeats), max(night.repeats)) for night in nights]
    ys = [y for low, high in ends for y in (*_shown(item, (low, high)), math.nan)]
    axes.plot(xs, ys, color=color, linewidth=0.8, alpha=0.55 * _alpha(color), solid_capstyle="butt")


def _draw_band(axes: Axes, item: Judged) -> None:
    """From the baseline to where a regression is called."""
    baseline, limit = item.verdict.baseline, _limit(item)
    if baseline is None:
        return
    axes.axhline(*_shown(item, (baseline,)), color=MUTED, linewidth=1.0)
    if limit is not None:
        low, high = _shown(item, sorted((baseline, limit)))
        axes.axhspan(low, high, color=WAIT, alpha=0.08, linewidth=0, zorder=0)
        axes.axhline(*_shown(item, (limit,)), color=LIMIT, linewidth=1.0, linestyle="--")


def _limit(item: Judged) -> float | None:
    """The figure beyond which a regression is called, in the metric's unit."""
    metric, verdict = item.series.metric, item.verdict
    if (
        verdict.baseline is None
        or verdict.threshold is None
        or not math.isfinite(verdict.threshold)
    ):
        return None
    way = 1.0 if metric.better == "lower" else -1.0
    if metric.is_share:
        return verdict.baseline + way * verdict.threshold
    return verdict.baseline * (1.0 + way * verdict.threshold)


def _draw_tonight(axes: Axes, item: Judged) -> None:
    tonight = item.series.tonight
    if tonight is None or not tonight.repeats:
        return
    marker, color = _MARKERS.get(item.verdict.name, _UNSURE)
    _draw_bars(axes, item, (0.0,), (tonight,), color)
    mean = _shown(item, (tonight.value,))
    axes.plot([0.0], mean, marker, color=color, markersize=7.0, markeredgewidth=0, zorder=5)


def _draw_since(axes: Axes, item: Judged) -> None:
    """Between the last night of the old level and the first of the new one."""
    since = clear_since(item)
    if since is None:
        return
    names = [reading.night for reading in item.series.baseline]
    # nights that were kept out of the baseline lie between it and tonight
    place = names.index(since.night) - len(names) if since.night in names else 0
    axes.axvline(place - 0.5, color=INK, linewidth=1.2, linestyle=":")


def _dress(axes: Axes, item: Judged) -> None:
    nights, tonight = item.series.baseline, item.series.tonight
    count = max(len(nights), 4)
    # tonight's marker is larger than a night is wide
    axes.set_xlim(-count - 0.8, max(0.8, 0.03 * count))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda at, _: f"{-at:.0f}" if at else "tonight"))
    axes.set_xlabel("comparable nights before tonight")
    values = [value for night in nights for value in night.repeats]
    values += list(tonight.repeats) if tonight else []
    low, high = min(values), max(values)
    limit = _limit(item)
    # a limit far off would press the nights into a line
    if limit is not None and low / 2 <= limit <= 2 * high:
        low, high = min(low, limit), max(high, limit)
    pad = 0.12 * (high - low) or 0.05 * abs(high) or NAMES[item.series.metric.name][2] * 0.001
    axes.set_ylim(*_shown(item, (low - pad, high + pad)))
