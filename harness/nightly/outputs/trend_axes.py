"""What is drawn of one series: its nights, the baseline, the band, tonight, the change point."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from harness.nightly.gate_types import Reading, VerdictName
from harness.nightly.night_types import Judged
from harness.nightly.outputs.words import NAMES, clear_since
from harness.report.drawing import CARD, INK, LIMIT, MUTED, SERIES, WAIT

#: shape as well as colour says what tonight is
_MARKERS: dict[VerdictName, tuple[str, str]] = {
    "regressed": ("X", WAIT),
    "improved": ("^", SERIES[2]),
    "ok": ("D", INK),
}
_UNSURE = ("s", MUTED)


def draw(axes: Axes, item: Judged) -> None:
    """Draw it all; one night or more has the figure."""
    _draw_nights(axes, item)
    _draw_band(axes, item)
    _draw_tonight(axes, item)
    _draw_since(axes, item)
    _dress(axes, item)


def _shown(item: Judged, values: Sequence[float]) -> list[float]:
    return [value * NAMES[item.series.metric.name][2] for value in values]


def _draw_nights(axes: Axes, item: Judged) -> None:
    """Points and bars, each kind as one path: 400 nights stay small."""
    nights, kinds = item.nights, _kinds(item)
    size = 2.2 if len(nights) > 60 else 3.2
    for kind, color, edge in (("older", MUTED, 0.0), ("kept out", INK, 0.8), ("", SERIES[0], 0.0)):
        places = [i for i, found in enumerate(kinds) if found == kind]
        part, at = [nights[i] for i in places], [float(i - len(nights)) for i in places]
        if not part:
            continue
        pale = 0.5 if kind == "older" else 1.0
        _draw_bars(axes, item, at, part, color, pale)
        axes.plot(
            at,
            _shown(item, [reading.value for reading in part]),
            "o",
            color=color,
            markersize=size + edge,
            # a ring
            markerfacecolor=CARD if kind == "kept out" else color,
            markeredgewidth=edge,
            alpha=pale,
        )


def _kinds(item: Judged) -> list[str]:
    """Of each night: older than the baseline, kept out of it, or empty for one of it."""
    names = [reading.night for reading in item.series.baseline]
    used = item.verdict.nights if item.verdict.baseline is not None else len(names)
    older, known = set(names[: max(len(names) - used, 0)]), set(names)
    shown = [reading.night for reading in item.nights]
    return ["older" if n in older else "" if n in known else "kept out" for n in shown]


def _draw_bars(
    axes: Axes,
    item: Judged,
    places: Sequence[float],
    nights: Sequence[Reading],
    color: str,
    alpha: float = 1.0,
) -> None:
    xs = [x for place in places for x in (place, place, math.nan)]
    ends = [(min(night.repeats), max(night.repeats)) for night in nights]
    ys = [y for low, high in ends for y in (*_shown(item, (low, high)), math.nan)]
    axes.plot(xs, ys, color=color, linewidth=0.8, alpha=0.55 * alpha, solid_capstyle="butt")


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
    names = [reading.night for reading in item.nights]
    # a night that is not shown lies between those that are and tonight
    place = names.index(since.night) - len(names) if since.night in names else 0
    axes.axvline(place - 0.5, color=INK, linewidth=1.2, linestyle=":")


def _dress(axes: Axes, item: Judged) -> None:
    nights, tonight = item.nights, item.series.tonight
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
