"""One series over its nights as an inline SVG, with the same in words and as a table. Pure."""

from __future__ import annotations

import matplotlib as mpl
from markupsafe import escape

from harness.errors import printable
from harness.kv.units import counted
from harness.nightly.gate_types import Reading
from harness.nightly.night_types import Judged
from harness.nightly.outputs.trend_axes import draw
from harness.nightly.outputs.words import (
    bare_text,
    cell_text,
    change_text,
    metric_text,
    since_text,
    unit_text,
    value_text,
    verdict_text,
)
from harness.report.drawing import Drawing, new_figure, style, to_svg

_HEIGHT_IN = 2.2
#: the table beside a drawing; the whole history is exported by ``kvknee history``
_MOST_ROWS = 30
READ = (
    "A point is a night (the mean of its repeats), its bar goes from the least to the largest "
    "repeat; grey points are older than the baseline, rings were kept out of it. The line is the "
    "baseline, the band ends where a regression is called tonight. Tonight: a diamond is ok, a "
    "cross regressed, a triangle improved, a square has no verdict. A dotted upright line: since "
    "then it is another level."
)


TABLE_HEADS = ("night", "mean", "least", "largest", "repeats")


def trend(item: Judged, key: str) -> Drawing | None:
    """The drawing; None where no night has the figure. ``key`` makes its ids unique."""
    tonight = item.series.tonight
    if not item.nights and not (tonight and tonight.repeats):
        return None
    title = f"{cell_text(item)}: {metric_text(item.series.metric)}, {unit_text(item.series.metric)}"
    alt = printable(_spoken(item))
    # nothing that a server sent is drawn, so no text is taken for a formula
    with style(), mpl.rc_context({"path.simplify": False}):
        figure = new_figure(_HEIGHT_IN)
        draw(figure.subplots(), item)
        svg = _described(to_svg(figure, key, alt), printable(title), alt)
    return Drawing(key, title, _caption(item), alt, svg)


def night_rows(item: Judged) -> tuple[tuple[str, ...], ...]:
    """The last nights under ``TABLE_HEADS``, tonight first."""
    found = [item.series.tonight, *reversed(item.nights[-_MOST_ROWS:])]
    readings = [reading for reading in found if reading is not None and reading.repeats]
    return tuple(_night_row(item, reading) for reading in readings)


def left_out_text(item: Judged) -> str:
    """How many nights the table leaves out; empty for none."""
    more = len(item.nights) - _MOST_ROWS
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
    values = [reading.value for reading in item.nights]
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
